"""The loop: the same seed gives the same bits, a step is a step however it is cut, and a plain loop learns the same."""

import copy
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from training.builders import KINDS, V, advanced, assert_same, bits, copied, model

import regard
from regard import config
from regard.tasks.next_token import NextToken
from regard.tasks.task import total_counts
from regard.training.loop import StepRunner, train_steps
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.optim.schedule import build_schedule
from regard.training.parallel.ranks import ProcessRanks
from regard.training.run import Run
from regard.training.run_files import step_line
from regard.training.validation import validate


class Rows:
    """The same few rows again and again."""

    def __init__(self, rows=5, length=8):
        self.ids = torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(3))

    def batch(self, step):
        return self.ids


def run_of(made, settings, data=None, objective=None):
    """A Run by hand, around any model."""
    parts = (objective or NextToken(), data or Rows(), OptimizerGroup(made, settings.optimizer))
    return Run(made, *parts, build_schedule(settings.schedule, 12), settings)


def short(**changes):
    return config.Train(**{"steps": 6, "compile": False, "schedule": config.WarmupSchedule(warmup=0), **changes})


# ---------------------------------------------------------------- bits


@pytest.mark.spec("S089")
@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_the_same_bits_and_another_seed_others(recipe, kind):
    first, second, third = (Run.from_recipe(recipe(*KINDS[kind], f"train.seed={seed}")) for seed in (4, 4, 5))
    began = copied(third.model.state_dict())
    losses = [seeded(run, 4) for run in (first, second)]

    assert losses[0] == losses[1]
    assert_same(bits(first), bits(second))
    assert seeded(third, 5) != losses[0]
    assert not torch.equal(began["trunk.blocks.0.attn.qkv.weight"], first.model.trunk.blocks[0].attn.qkv.weight)


def seeded(run, seed):
    """Dropout draws from torch's own generator, so each of several runs in one process is given a beginning."""
    torch.manual_seed(seed)
    return advanced(run)


@pytest.mark.spec("S089")
def test_a_recipe_decides_all_whatever_was_drawn_before(recipe):
    losses = []
    for drawn in (1, 17):
        torch.rand(drawn)
        losses.append(advanced(Run.from_recipe(recipe())))

    assert losses[0] == losses[1]


def test_whatever_happens_between_steps_changes_nothing(recipe):
    alone = advanced(Run.from_recipe(recipe()))
    disturbed = []
    for step in train_steps(Run.from_recipe(recipe())):
        disturbed.append(float(step.loss))
        torch.rand(3)

    assert disturbed == alone


def test_the_run_counts_its_steps_and_its_seconds(recipe):
    run = Run.from_recipe(recipe())
    steps = list(regard.train(run))

    assert [step.number for step in steps] == [1, 2, 3, 4, 5, 6] and run.is_over
    assert [step.seconds for step in steps] == sorted({step.seconds for step in steps}) and run.seconds > 0
    assert {step.tokens for step in steps} == {5 * 7}
    assert list(train_steps(run)) == []


def test_a_loop_that_was_left_goes_on_where_it_was(recipe):
    run, straight = Run.from_recipe(recipe("model.dropout=0.0")), Run.from_recipe(recipe("model.dropout=0.0"))

    assert advanced(run, 2) + advanced(run, 1) + advanced(run) == advanced(straight)
    assert_same(bits(run), bits(straight))


@pytest.mark.parametrize("given, expected", [
    (["train.steps=0"], 0),
    (["train.minutes=0"], 0),
    (["train.steps=none", "train.minutes=0"], 0),
    (["train.steps=none", "train.minutes=1e-9"], 1),
    (["train.steps=3", "train.minutes=60"], 3),
])  # fmt: skip
def test_a_run_ends_by_steps_or_by_minutes(recipe, given, expected):
    assert len(advanced(Run.from_recipe(recipe(*given)))) == expected


def test_progress_is_by_steps_or_by_minutes_whichever_is_nearer_its_end(recipe):
    run = Run.from_recipe(recipe("train.steps=8", "train.minutes=2"))
    found = []
    for run.step, run.seconds in ((2, 0.0), (2, 60.0), (6, 60.0), (9, 0.0)):
        found.append(run.progress)

    assert found == [0.25, 0.5, 0.75, 1.0]


# ---------------------------------------------------------------- a step


@pytest.mark.spec("S099")
def test_two_micro_batches_are_one_batch_of_twice_the_rows(recipe):
    whole, cut = (Run.from_recipe(recipe("model.dropout=0.0", "train.steps=4", *given)) for given in
                  (["train.batch_size=6"], ["train.batch_size=3", "train.gradient_accumulation=2"]))  # fmt: skip
    first, second = (list(train_steps(run)) for run in (whole, cut))

    for one, two in zip(first, second, strict=True):
        assert one.tokens == two.tokens == 42
        assert float(one.loss) == pytest.approx(float(two.loss), abs=1e-6)
        assert float(one.norm) == pytest.approx(float(two.norm), abs=1e-5)


@pytest.mark.spec("S099")
def test_the_gradients_of_ragged_micro_batches_are_those_of_the_mean():
    made = model()
    twin, ids = copy.deepcopy(made), Rows(7, 11).ids
    pieces = [ids[:2], ids[2:3, :4], ids[3:]]
    settings = short(optimizer=config.AdamW(lr=0.0, weight_decay=0.0), max_grad_norm=None)
    run, seen = run_of(made, settings), {}
    for name, weight in made.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda w, name=name: seen.update({name: w.grad.clone()}))
    loss, norm, _ = StepRunner(run, print).step(
        pieces, [total_counts([run.objective.count_parts(piece) for piece in pieces])] * 3
    )
    logits = torch.cat([twin(piece[:, :-1]).flatten(0, 1) for piece in pieces])
    mean = F.cross_entropy(logits, torch.cat([piece[:, 1:].flatten() for piece in pieces]))
    mean.backward()

    assert float(loss) == pytest.approx(mean.item(), abs=1e-6)
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(seen[name], weight.grad, atol=1e-6, rtol=0, msg=name)
    assert float(norm) == pytest.approx(torch.nn.utils.get_total_norm(w.grad for w in twin.parameters()).item())


@pytest.mark.spec("S099")
def test_mixed_precision_keeps_weights_and_moments_in_fp32_and_bf16_keeps_masters(recipe):
    mixed, half = (Run.from_recipe(recipe(f"train.precision={name}", "train.steps=2")) for name in ("mixed", "bf16"))
    for run in (mixed, half):
        advanced(run)
    kinds = {name.rpartition("/")[2]: tensor.dtype for name, tensor in half.optimizer.state().items()}

    assert {tensor.dtype for tensor in bits(mixed).values()} == {torch.float32}
    assert {weight.dtype for weight in half.model.parameters()} == {torch.bfloat16}
    assert kinds == dict.fromkeys(("master", "step", "exp_avg", "exp_avg_sq"), torch.float32)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.spec("S099")
@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_every_precision_learns_about_the_same(recipe, precision):
    changes = ["model.dropout=0.0", "train.steps=20", "train.optimizer.lr=0.01"]
    full, other = (advanced(Run.from_recipe(recipe(*changes, f"train.precision={name}"))) for name in
                   ("fp32", precision))  # fmt: skip

    assert other == pytest.approx(full, abs=0.05) and other != full


class Trap(NextToken):
    """Answers one question with a loss that is no number."""

    def __init__(self, at):
        self.at, self.asked = at, 0

    def loss_sums(self, model, batch):
        self.asked += 1
        sums = super().loss_sums(model, batch)
        return {"loss": sums["loss"] * float("nan")} if self.asked == self.at else sums


class Pair(ProcessRanks):
    """The first of two ranks, alone in its process."""

    def sum(self, tensor):
        return tensor

    def gather_lists(self, items):
        return items


class Apart:
    """An objective of two arguments, as the docs have it: no rank needs another's rows."""

    def __init__(self):
        self.told = []

    def count_parts(self, batch):
        return NextToken().count_parts(batch)

    def loss_sums(self, model, batch):
        self.told.append(1)
        return NextToken().loss_sums(model, batch)


class Together(Apart):
    """One that would gather the rows of all ranks, and asks how many there are."""

    def loss_sums(self, model, batch, ranks=1):
        self.told.append(ranks)
        return NextToken().loss_sums(model, batch)


@pytest.mark.parametrize("kind, size, told", [(Apart, 1, 1), (Apart, 2, 1), (Together, 1, 1), (Together, 2, 2)])
def test_an_objective_that_takes_the_number_of_ranks_is_given_it_and_no_other(kind, size, told):
    run = run_of(model(), short(steps=2), objective=kind())
    run.ranks = Pair(size=size)
    for _ in train_steps(run):
        pass
    validate(run.model, [run.data.batch(0)], run.objective, ranks=run.ranks)

    assert run.objective.told == [told] * 3


@pytest.mark.parametrize("optimizer", [config.AdamW(lr=0.01), config.Muon()], ids=lambda c: c.kind)
def test_a_step_whose_loss_is_no_number_is_skipped_and_logged(optimizer):
    made = model()
    run = run_of(made, short(optimizer=optimizer), objective=Trap(at=3))
    steps = train_steps(run)
    first = [step_line(step, 1.0) for step in islice(steps, 2)]
    before = bits(run)
    bad = step_line(next(steps), 1.0)
    assert_same(bits(run), before)
    rest = [step_line(step, 1.0) for step in steps]

    assert "not finite" in bad["skipped"] and bad["clipped"] is False and bad["loss"] == bad["norm"] == "nan"
    assert all("skipped" not in line and isinstance(line["loss"], float) for line in first + rest)
    assert rest[-1]["loss"] < first[0]["loss"]


@pytest.mark.spec("S098")
@pytest.mark.parametrize("clip, clipped", [(1e-3, True), (1e3, False), (None, None)])
def test_clip_events_are_logged(clip, clipped):
    lines = [step_line(step, clip) for step in train_steps(run_of(model(), short(max_grad_norm=clip)))]

    assert {line.get("clipped") for line in lines} == {clipped}


def test_gradients_are_gone_between_steps(recipe):
    run = Run.from_recipe(recipe())
    for _ in train_steps(run):
        assert all(weight.grad is None for weight in run.model.parameters())


# ---------------------------------------------------------------- plain PyTorch


def test_a_plain_loop_learns_exactly_what_ours_does():
    made = model()
    twin, ids = copy.deepcopy(made), Rows().ids
    settings = short(optimizer=config.AdamW(lr=0.01, eps=1e-4, weight_decay=0.0))
    ours = advanced(run_of(made, settings))

    theirs, optimizer = [], torch.optim.AdamW(twin.parameters(), 0.01, (0.9, 0.98), 1e-4, 0.0)
    for _ in range(6):
        loss = F.cross_entropy(twin(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())

    assert ours == pytest.approx(theirs, abs=1e-6) and theirs[-1] < theirs[0]
    for mine, other in zip(made.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


class Plain(torch.nn.Module):
    """Not one of ours: the last token decides the next."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(V, V)

    def forward(self, ids):
        return self.table(ids)


def test_any_module_can_be_trained():
    losses = advanced(run_of(Plain(), short(steps=30, optimizer=config.AdamW(lr=0.3))))

    assert losses[-1] < 0.5 * losses[0]


def test_a_module_that_cannot_be_saved_says_so(tmp_path):
    with pytest.raises((config.ConfigError, config.DataError, config.RunError, TypeError)):
        run_of(Plain(), short()).save(tmp_path / "plain")


@pytest.mark.slow
def test_a_compiled_model_learns_in_a_plain_loop():
    made, ids = model(), Rows().ids
    twin = copy.deepcopy(made)
    losses = []
    for forward, weights in ((torch.compile(made, fullgraph=True), made), (twin, twin)):
        optimizer = torch.optim.SGD(weights.parameters(), lr=0.3)
        losses.append([])
        for _ in range(8):
            loss = F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())

    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and losses[0][-1] < losses[0][0]
