"""The doctor: every planted fault is named with its evidence and a remedy, and nothing else is."""

import random

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from training.builders import advanced, assert_same, bits

from regard import config, data, doctor, text
from regard.core.masks import FULL
from regard.core.model import mask_variants
from regard.doctor import check_memory
from regard.doctor.probe_run import ProbeRun
from regard.tasks.next_token import NextToken
from regard.training.run import Run

WORDS = """cat dog owl king queen jug mouse river stone light saw met fed sang kept broke the a my her old small red
green over under near and but while""".split()  # noqa: SIM905
PATIENT = """
[data]
source = "long.txt"
[tokenizer]
byte_fallback = false
[model]
preset = "gpt2"
dim = 24
depth = 2
heads = 3
dropout = 0.0
[train]
steps = 500
batch_size = 7
context = 33
compile = false
device = "cpu"
[train.optimizer]
lr = 3e-3
[train.schedule]
kind = "constant"
warmup = 20
"""
PAIRS = """
[data]
source = "toy:reverse(11, 3000)"
[task]
kind = "translation"
[tokenizer]
byte_fallback = false
[model]
preset = "transformer-base"
dim = 24
depth = 2
heads = 3
dropout = 0.0
[train]
steps = 500
batch_size = 15
context = 21
compile = false
device = "cpu"
[train.optimizer]
lr = 3e-3
[train.schedule]
warmup = 20
"""


def prose(seed=0, count=9000):
    """Random words: nothing in it stands there twice but by chance."""
    chance = random.Random(seed)
    return "".join(chance.choice(WORDS) + chance.choice("      ,.\n") for _ in range(count))


@pytest.fixture
def clinic(desk):
    (desk / "long.txt").write_text(prose())
    (desk / "patient.toml").write_text(PATIENT)
    (desk / "pairs.toml").write_text(PAIRS)
    return desk


@pytest.fixture
def patient(clinic):
    """A run that there is nothing wrong with, but for changes such as "train.batch_size=5"."""
    return lambda *changes, recipe="patient.toml": Run.from_recipe(recipe, changes)


def examined(run, steps=30):
    return {finding.check: finding for finding in doctor.examine_run(run, steps)}


def wrong(findings):
    return [name for name, finding in findings.items() if finding.verdict == "wrong"]


def troubled(findings):
    return [name for name, finding in findings.items() if finding.verdict != "fine"]


# ---------------------------------------------------------------- faults


class Instead:
    """Data with batches that somebody spoils."""

    def __init__(self, data, spoil):
        self.data, self.spoil = data, spoil

    def __getattr__(self, name):
        return getattr(self.data, name)

    def batch(self, step):
        return self.spoil(step, self.data.batch(step))


def spoiled(spoil):
    def plant(run):
        run.data = Instead(run.data, spoil)

    return plant


class Copying(NextToken):
    def loss_sums(self, model, batch):
        return NextToken.loss_sums(self, model, {"ids": batch[:, :-1], "labels": batch[:, :-1]})


class Leaping(NextToken):
    def loss_sums(self, model, batch):
        return NextToken.loss_sums(self, model, {"ids": batch[:, :-2], "labels": batch[:, 2:]})


def labels_not_shifted(run):
    run.objective = Copying()


def labels_shifted_twice(run):
    run.objective = Leaping()


def causal_mask_off(run):
    run.model.trunk.masks = [mask_variants(FULL)]


def initialisation_times_fifty(run):
    for weight in run.model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(50)


def a_frozen_layer(run):
    run.model.trunk.blocks[1].requires_grad_(False)


def a_layer_that_nobody_hears(run):
    run.model.trunk.blocks[0].mlp.down.register_forward_hook(lambda part, given, out: 0 * out.detach())


def a_layer_that_the_optimizer_does_not_know(run):
    for name in [name for name in run.optimizer.own if ".blocks.1." in name]:
        del run.optimizer.own[name]


def noise(step, batch, at=17):
    if step != at:
        return batch
    return torch.randint(28, batch.shape, generator=torch.Generator().manual_seed(0))


def another_tokenizer(run):
    letters = "".join(sorted(set(prose())))
    run.tokenizer = text.train_tokenizer(config.CharTokenizer(byte_fallback=False), [f"!{letters}"])


PLANTED = {
    "causal mask": [causal_mask_off],
    "labels": [labels_not_shifted, labels_shifted_twice],
    "initialisation": [initialisation_times_fifty],
    "layers": [a_frozen_layer, a_layer_that_nobody_hears, a_layer_that_the_optimizer_does_not_know],
    "batches": [spoiled(noise)],
    "tokenizer": [another_tokenizer, spoiled(lambda step, batch: batch + 1)],
}


@pytest.mark.slow
@pytest.mark.parametrize("check, plant", [(check, plant) for check, some in PLANTED.items() for plant in some])
def test_a_planted_fault_is_named_and_nothing_else(patient, check, plant):
    run = patient()
    plant(run)
    found = examined(run, 50)

    assert wrong(found) == [check]
    assert found[check].evidence and found[check].remedy


@pytest.mark.slow
def test_without_a_fault_all_is_fine(patient):
    assert troubled(examined(patient(), 50)) == []


SAID = {
    "learning rate": ["train.optimizer.lr=3"],
    "learning rate, too low": ["train.optimizer.lr=3e-6"],
    "leaks": ["data.validation=long.txt"],
    "amount of data": ["model.dim=384", "model.depth=12", "train.batch_size=2", "train.context=9"],
    "labels": ["task.kind=masked_lm", "task.mask_replace_prob=0", "task.random_replace_prob=0", "model.mask=full"],
    "initialisation": ["model.init=t5"],
}


@pytest.mark.slow
@pytest.mark.parametrize("check", SAID)
def test_a_fault_that_a_recipe_can_have_is_named(patient, check):
    assert wrong(examined(patient(*SAID[check]), 20)) == [check.partition(",")[0]]


def test_settings_refuse_a_decoder_that_sees_ahead(patient):
    with pytest.raises(config.ConfigError, match=r"model.trunk.mask: 'full' attends to the label"):
        patient("model.mask=full")


# ---------------------------------------------------------------- evidence and remedies


@pytest.mark.slow
@pytest.mark.spec("S159")
@pytest.mark.parametrize("optimizer", [[3e-3], [0.02, 3e-3]], ids=["adamw", "muon"])
def test_a_thousandfold_learning_rate_is_brought_back_to_one_that_learns(patient, optimizer):
    names = ["train.optimizer.lr", "train.optimizer.adam_lr"]
    kind = ["train.optimizer.kind=muon"] if len(optimizer) > 1 else []
    hasty = [f"{name}={1000 * rate:g}" for name, rate in zip(names, optimizer, strict=False)]
    found = examined(patient(*kind, *hasty))["learning rate"]
    remedy = found.remedy.split()

    assert [word.partition("=")[0] for word in remedy] == names[: len(optimizer)]
    assert float(remedy[0].partition("=")[2]) == pytest.approx(optimizer[0])
    assert "learning rate" not in troubled(examined(patient(*kind, *remedy)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["train.optimizer.kind=muon", "train.optimizer.adam_lr=3e-6"]],
                         ids=["adamw", "muon"])  # fmt: skip
def test_a_learning_rate_that_is_too_low_is_raised_to_one_that_learns(patient, kind):
    found = examined(patient(*kind, "train.optimizer.lr=3e-6"))["learning rate"]
    remedy = found.remedy.split()

    assert found.verdict == "wrong" and "too low" in found.evidence and "0.00%" not in found.evidence
    assert remedy[0].startswith("train.optimizer.lr=") and len(remedy) == 1 + len(kind) // 2
    assert "learning rate" not in troubled(examined(patient(*kind, *remedy)))


@pytest.mark.slow
@pytest.mark.spec("S160")
def test_collapsed_attention_is_seen_in_the_entropy_of_heads(patient):
    run = patient()
    before = examined(run)["initialisation"].evidence
    initialisation_times_fifty(run)
    after = examined(run)["initialisation"].evidence

    assert "attention entropy is 100% of its maximum" in before and "attention has collapsed" in after
    assert "the weights are 50 times as large" in after


@pytest.mark.slow
@pytest.mark.spec("S161")
def test_a_poisonous_batch_is_named_by_its_step_and_its_rows(patient):
    run = patient()
    where = run.data.names(23)
    run.data = Instead(run.data, lambda step, batch: noise(step, batch, at=23))
    found = examined(run, 40)["batches"]

    assert "the batch of step 24 " in found.evidence
    assert all(str(place) in found.evidence for place in where[:5])


@pytest.mark.slow
@pytest.mark.parametrize("label", ["1e9", "nan"])
def test_a_row_with_an_impossible_number_is_named(patient, clinic, label):
    """Readers refuse such numbers in files; code of one's own does not."""
    rows = [f"{line[:25]}\t{len(line) / 20:.2f}" for line in prose().splitlines() if len(line) > 9][:400]
    (clinic / "numbers.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    run = patient(
        "data.source=numbers.tsv", "task.kind=regression", "model.head.kind=pooling", "model.head.pooling=last"
    )
    where = run.data.names(11)[2]

    def spoil(step, batch):
        return batch | {"label": batch["label"].clone().index_fill_(0, torch.tensor(2), float(label))} if (
            step == 11) else batch  # fmt: skip

    run.data = Instead(run.data, spoil)

    assert f"step 12 has a loss of {'nan' if label == 'nan' else '1'}" in (told := examined(run)["batches"].evidence)
    assert f"rows {where}," in told


@pytest.mark.slow
@pytest.mark.spec("S162")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_is_looked_at_is_named(patient, side):
    """Taken from the mask of the trunk, or forgotten in the batch."""
    changes = [f"train.padding_side={side}"]
    healthy, unmasked, forgotten = (patient(*changes, recipe="pairs.toml") for _ in range(3))
    trunk = unmasked.model.encoder
    trunk.masks = [{key: each[False, key[1]] for key in each} for each in trunk.masks]
    forgotten.data = Instead(
        forgotten.data, lambda step, batch: {name: table for name, table in batch.items() if name != "source_real"}
    )

    assert wrong(examined(healthy)) == []
    assert wrong(examined(unmasked)) == ["padding"]
    assert wrong(examined(forgotten)) == ["padding"]


@pytest.mark.slow
def test_packed_documents_that_see_each_other_are_named(patient, clinic):
    (clinic / "lines.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in prose().splitlines() if line))
    changes = ["data.source=lines.jsonl", "train.pack=true", "train.context=101", "tokenizer.byte_fallback=true"]
    healthy, joined = patient(*changes), patient(*changes)
    joined.model.trunk.masks = [{key: each[key[0], False] for key in each} for each in joined.model.trunk.masks]

    assert examined(healthy)["documents"].verdict == "fine" and not wrong(examined(healthy))
    assert "documents" in wrong(examined(joined))


@pytest.mark.slow
@pytest.mark.spec("S162")
def test_positions_that_are_all_zero_are_named(patient):
    run = patient("model.position.kind=sinusoidal")
    assert troubled(examined(run)) == []
    run.model.trunk.position.table = lambda places: torch.zeros(1, 1, 24)
    found = examined(run)

    assert wrong(found) == ["positions"] and found["positions"].remedy == "model.trunk.position.kind=learned"


@pytest.mark.slow
def test_a_position_table_of_zeros_that_can_learn_is_none_of_the_doctor_s_business(patient):
    run = patient()
    run.model.trunk.position.tables[0].data.zero_()

    assert troubled(examined(run)) == []


@pytest.mark.slow
def test_too_many_unknown_words_are_named(patient):
    few = patient("tokenizer.kind=word", "tokenizer.vocab=70", "tokenizer.byte_fallback=false")
    some = patient("tokenizer.kind=word", "tokenizer.vocab=12", "tokenizer.byte_fallback=false")

    assert "tokenizer" not in wrong(examined(few))
    assert "unknown" in examined(some)["tokenizer"].evidence and "tokenizer" in wrong(examined(some))


@pytest.mark.slow
def test_data_of_another_tokenizer_is_named(patient, clinic):
    """Byte pairs of one text are not the byte pairs of another with the same numbers."""
    (clinic / "pieces.toml").write_text(PATIENT.replace("byte_fallback = false", 'kind = "bpe"\nvocab = 340'))
    run = patient(recipe="pieces.toml")
    assert "tokenizer" not in troubled(examined(run))
    (clinic / "other.txt").write_text("Nobody expects the spanish inquisition! " + prose(seed=1))
    other = patient("data.source=other.txt", recipe="pieces.toml").tokenizer
    assert len(other) == len(run.tokenizer)
    ids = torch.tensor(other.encode((clinic / "long.txt").read_text()))
    run.data = data.WindowBatches(data.TokenShards(ids, "long.txt"), 33, 7, seed=0)

    assert wrong(examined(run)) == ["tokenizer"]


@pytest.mark.slow
def test_what_settings_freeze_may_stay(patient):
    found = examined(patient("train.freeze=['trunk.blocks.0']"))

    assert found["layers"].verdict == "fine" and "trunk.0 are frozen by train.freeze" in found["layers"].evidence


@pytest.mark.slow
def test_dead_units_are_named(patient):
    run = patient("model.preset=lab", "model.trunk.mlp.bias=true")
    assert not wrong(examined(run))
    run.model.trunk.blocks[1].mlp.up.bias.data.fill_(-99.0)

    assert "units" in wrong(found := examined(run)) and "trunk.1.mlp" in found["units"].evidence


@pytest.mark.spec("S132")
def test_few_examples_and_few_tokens_for_the_size_are_worth_a_look(patient, clinic):
    rows = [f"{line[:25]}\t{len(line) % 2}" for line in prose().splitlines() if len(line) > 9][:300]
    (clinic / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    changes = ["data.source=rows.tsv", "task.kind=classification", "model.head.kind=pooling", "model.head.pooling=last"]
    small = ["model.dim=6", "model.heads=2", "model.depth=1"]
    many, few, scarce = patient(*small), patient(*changes, *small), patient("model.dim=192", "model.depth=3")

    def amount(run):
        return doctor.DOCTOR_CHECKS["amount of data"](doctor.DoctorCase(run, 10))

    assert amount(many).verdict == "fine"
    assert amount(few).verdict == "look" and "below 10,000 a transformer has few advantages" in amount(few).evidence
    assert amount(scarce).verdict == "look" and amount(scarce).remedy.startswith("model.dim=")


@pytest.mark.spec("S163")
def test_a_batch_that_does_not_fit_gets_a_setting_that_does(patient, monkeypatch):
    monkeypatch.setattr(check_memory, "available_bytes", lambda device: 60e6)
    changes = ["train.batch_size=1000", "train.context=65"]
    case = doctor.DoctorCase(patient(*changes), 10)
    case.need = check_memory.estimate_need(case)
    found = check_memory.check_memory(case)
    again = doctor.DoctorCase(patient(*changes, *found.remedy.split()), 10)
    again.need = check_memory.estimate_need(again)
    rows, times = (int(word.partition("=")[2]) for word in found.remedy.split())

    assert found.verdict == "wrong" and not case.need.fits and again.need.fits
    assert rows * times >= 1000 > rows
    assert len(case.batch(0)) <= 8  # what does not fit is examined in small


@pytest.mark.spec("S163")
@pytest.mark.parametrize("changes", [
    ["train.batch_size=24", "train.context=65"],
    ["train.batch_size=24", "train.context=65", "model.dropout=0.1", "train.precision=mixed"],
    ["train.batch_size=2", "model.dim=96"],
    ["train.batch_size=2", "model.dim=96", "train.optimizer.kind=muon"],
    ["train.batch_size=12", "train.activation_checkpointing=true", "model.depth=6", "train.optimizer.kind=adafactor"],
], ids=["activations", "dropout", "weights", "muon", "recomputed"])  # fmt: skip
def test_the_peak_is_told_before_the_first_step_within_a_fifth(patient, changes):
    """Held to every byte that tensors take in a step of the run, as the profiler counts them."""
    case = doctor.DoctorCase(patient(*changes), 10)
    told = check_memory.predict_micro_batch(case, check_memory.largest_micro_batch(case)).memory
    course = ProbeRun(case).run(case.factors[:1])
    before = [*course.model.parameters(), *course.optimizer.state().values()]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        course.step(1.0)
    held = peak = sum(table.nbytes for table in before)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)

    assert told == pytest.approx(peak, rel=0.2)


# ---------------------------------------------------------------- nothing is touched


@pytest.mark.slow
def test_a_run_is_left_as_it_was_found(patient):
    run, twin = patient("model.dropout=0.1"), patient("model.dropout=0.1")
    advanced(run, 3), advanced(twin, 3)
    numbers = torch.get_rng_state()
    doctor.examine_run(run, 20)

    assert_same(bits(run), bits(twin))
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(part.training for part in run.model.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in run.model.parameters())
    assert advanced(run, 4) == advanced(twin, 4)


def test_a_probe_has_from_ten_to_fifty_steps(patient):
    with pytest.raises(config.ConfigError, match="steps: 51; a probe takes from 10 to 50"):
        doctor.examine_run(patient(), 51)


def test_a_model_of_somebody_else_is_refused(patient):
    run = patient()
    run.model = torch.nn.Linear(3, 5)

    with pytest.raises(config.ConfigError, match="not a Linear"):
        doctor.examine_run(run)
