"""A comparison is fair, goes on where it stopped, and says what a variant cannot do."""

import csv
import json
import math
import re
import signal
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sizes import in_full
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from regard import config, studies, zoo
from regard.config.trunk import KERNELS as KERNEL_NAMES
from regard.core.kernels import KERNELS, register_kernel
from regard.data.builtin import ToyDataset
from regard.inference.load import load_model
from regard.measure.complexity import cost_order
from regard.measure.peak_memory import peak_tensor_bytes
from regard.report.study_pages import write_comparison_page as write_page
from regard.studies import comparison, kernel_error, table, trials, tune, variant_probes
from regard.studies.study import parse_axes, shorten_keys, split_values
from regard.training.api import fit
from regard.training.run import Run
from regard.training.trainer import Trainer
from regard.training.validation import validate

KEY = "model.kernel=reference,fused"
LENGTHS = (2048, 4096, 8192)


def asked(*keys, seeds=1, recipe="recipe.toml"):
    return studies.study_from_keys(recipe, keys, seeds)


def compared(*keys, seeds=1, out="out", measured=False, **settings):
    return studies.StudyRun(asked(*keys, seeds=seeds), Path(out), measured=measured, **settings)


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize("source, values", [
    ("a,b", ["a", "b"]),
    ("causal & window(8, 2), causal", ["causal & window(8, 2)", "causal"]),
    ('{kind="conv", kernel_size=3},{kind="none"}', ['{kind="conv", kernel_size=3}', '{kind="none"}']),
    ("[0.9, 0.95]", ["[0.9, 0.95]"]),
    ('"a,b",c', ['"a,b"', "c"]),
    ("a,,b,", ["a", "b"]),
])  # fmt: skip
def test_a_comma_parts_values_unless_it_stands_in_brackets_or_quotes(source, values):
    assert split_values(source) == values


def test_every_value_meets_every_other_and_one_value_is_shared(desk):
    made = studies.expand_variants(asked("model.depth=1,2", "train.batch_size=3", KEY).parts[0])

    shapes = [(each.recipe.model.trunk.depth, each.recipe.model.trunk.attention.kernel) for each in made]
    assert shapes == [(1, "reference"), (1, "fused"), (2, "reference"), (2, "fused")]
    assert {each.recipe.train.batch_size for each in made} == {3}
    assert [each.name for each in made][1] == "depth=1, kernel=fused"


def test_keys_are_called_by_as_few_words_as_tell_them_apart():
    keys = ["model.trunk.norm.kind", "model.trunk.attention.qk_norm.kind", "train.optimizer.lr",
            "model.encoder.trunk.dim", "model.trunk.dim"]  # fmt: skip

    assert list(shorten_keys(keys).values()) == ["norm", "qk_norm", "lr", "encoder.trunk.dim", "model.trunk.dim"]


def test_names_that_a_file_system_would_not_tell_apart_get_a_number(desk):
    made = studies.expand_variants(asked('report.prompt="a?","a!","A*"').parts[0])

    assert len({each.folder.lower() for each in made}) == 3


def test_a_whole_recipe_may_be_a_value(desk):
    (desk / "other.toml").write_text((desk / "recipe.toml").read_text().replace("depth = 2", "depth = 1"))

    made = studies.expand_variants(asked("recipe=recipe.toml,other.toml").parts[0])

    assert [each.recipe.model.trunk.depth for each in made] == [2, 1]


def test_settings_that_go_together_are_one_variant(desk):
    part = studies.StudyTable(recipe="recipe.toml", variants=("near: model.kernel=local; model.mask=causal & window(3)",
                                                        "model.kernel=fused"),
                              grid=("train.batch_size=2,3",))  # fmt: skip
    made = studies.expand_variants(part)

    assert [each.name for each in made] == [
        "near, "
        "batch_size=2", "near, batch_size=3", "model.kernel=fused, batch_size=2", "model.kernel=fused, batch_size=3"
    ]  # fmt: skip
    assert (made[0].recipe.model.trunk.mask, made[2].recipe.model.trunk.mask) == ("causal & window(3)", "causal")


@pytest.mark.parametrize("keys, said", [
    (["model.kernel"], "'model.kernel': expected key=value or key=a,b,c"),
    (["model.depth=1,2", "model.depth=3"], "model.depth: given twice"),
])  # fmt: skip
def test_a_slip_in_the_keys_is_one_sentence(keys, said):
    with pytest.raises(config.ConfigError, match=said.split(":")[0]) as problem:
        asked(*keys)

    assert said in str(problem.value)


def test_a_value_that_is_said_twice_is_refused(desk):
    with pytest.raises(config.ConfigError, match="model.depth: a value is given twice"):
        compared("model.depth=1,1")


@pytest.mark.parametrize("name", studies.builtin_studies())
@pytest.mark.parametrize("quick", [False, True])
def test_every_ready_made_study_can_be_read(name, quick):
    """A variant may be one that this version cannot train; a study all of whose variants are wrong is wrong itself."""
    study = studies.load_study(name, quick=quick)

    assert study.title and study.about and study.minutes
    for part in study.parts:
        made = studies.expand_variants(part)
        assert len(made) > 1 and sum(each.problem is None for each in made) > len(made) // 2
        assert all(key == "recipe" or "." in key for key, _ in parse_axes(part.grid))


# ---------------------------------------------------------------- runs


@pytest.mark.slow
def test_a_member_is_an_ordinary_run_bit_for_bit(desk):
    compared(KEY, seeds=2).run()

    alone = zoo.read_recipe("recipe.toml", ["model.kernel=fused", "train.seed=1"])
    fit(replace(alone, report=replace(alone.report, temperatures=())), desk / "alone", quiet=True)
    ours, theirs = (load_model(path).state_dict() for path in ("out/kernel-fused-seed1", "alone"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_seeds_take_turns(desk):
    made = compared(KEY, seeds=2)

    assert [name for name, _ in made.members] == [f"kernel-{kernel}-seed{seed}" for seed in (0, 1)
                                                  for kernel in ("reference", "fused")]  # fmt: skip


def test_asked_again_nothing_is_trained_twice(desk, monkeypatch):
    compared(KEY).run()
    before = json.loads((desk / "out" / "compare.json").read_text())
    monkeypatch.setattr("regard.studies.comparison.run_trial", lambda *given: pytest.fail("it was trained already"))

    again = compared(KEY)

    assert again.run() is None and again.kept["members"] == before["members"]


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_to_the_same_numbers(desk, monkeypatch):
    whole = compared(KEY, out="whole")
    whole.run()
    note, seen = Trainer.note, Counter()

    def interrupted(self, step):
        seen[self.out.name] += 1
        if (self.out.name, step.number) == ("kernel-fused-seed0", 3):
            signal.raise_signal(signal.SIGINT)
        note(self, step)

    monkeypatch.setattr(Trainer, "note", interrupted)
    first = compared(KEY)
    assert first.run() == signal.SIGINT
    assert list(first.kept["members"]) == ["kernel-reference-seed0"]
    monkeypatch.setattr(Trainer, "note", note)

    second = compared(KEY)

    assert second.run() is None
    for name, found in whole.kept["members"].items():
        assert {key: value for key, value in second.kept["members"][name].items() if "seconds" not in key} == {
            key: value for key, value in found.items() if "seconds" not in key
        }


def test_another_grid_in_the_same_folder_is_refused(desk):
    compared(KEY).run()

    for keys, said in (([KEY, "train.steps=7"], "other recipes"), (["model.kernel=fused"], "variants")):
        with pytest.raises(config.ConfigError, match="--out out: holds another comparison") as problem:
            compared(*keys)
        assert said in str(problem.value)
    with pytest.raises(config.ConfigError, match="seeds were 1, and 2 are asked for"):
        compared(KEY, seeds=2)


def test_a_folder_with_something_else_in_it_is_left_alone(desk):
    (desk / "out").mkdir()
    (desk / "out" / "thesis.txt").write_text("dear reader")

    with pytest.raises(config.ConfigError, match="not empty"):
        compared(KEY)
    assert [path.name for path in (desk / "out").iterdir()] == ["thesis.txt"]


def test_what_a_variant_cannot_do_is_its_row_and_the_others_go_on(desk):
    made = compared("model.kernel=fused,local,nonsense")
    made.run()
    rows = table.variant_rows(made, made.tables[0])

    assert rows[0].validation is not None and not rows[0].refused
    assert "local" in rows[1].refused and rows[1].validation is None
    assert rows[2].refused.startswith("model.trunk.attention.kernel: no 'nonsense'")
    assert not (desk / "out" / "kernel-local-seed0").exists()
    assert "refused: model.trunk.attention.kernel" in studies.format_tables(made)


def test_where_no_variant_can_be_read_the_mistake_is_told(desk):
    with pytest.raises(config.ConfigError, match="model.dimm: no such setting"):
        compared("model.dimm=3,4")
    assert not (desk / "out").exists()


def test_a_bug_in_one_variant_is_told_in_its_row_and_tried_again(desk, monkeypatch):
    @register_kernel("broken")
    def broken(q, k, v, plan, how):
        raise AssertionError("nobody foresaw this")

    try:
        made = compared("model.kernel=fused,broken")
        made.run()
        said = made.kept["members"]["kernel-broken-seed0"]
        assert "bug" in said["refused"] and "nobody foresaw this" in said["refused"]
        monkeypatch.setenv("REGARD_DEBUG", "1")
        with pytest.raises(AssertionError, match="nobody foresaw this"):
            compared("model.kernel=fused,broken").run()
    finally:
        del KERNELS["broken"]
        KERNEL_NAMES.remove("broken")


def test_a_pause_does_not_move_the_time_of_a_step():
    steps = [{"step": n, "seconds": 0.5 * n + (60 if n > 7 else 0)} for n in range(1, 15)]

    assert trials.median_step_seconds(steps) == 0.5
    assert trials.median_step_seconds(steps[:1]) is None


# ---------------------------------------------------------------- the table


@pytest.mark.slow
def test_a_loss_is_a_mean_over_seeds_and_their_standard_deviation(desk):
    made = compared("model.depth=1,2", seeds=3)
    made.run()

    for place, row in enumerate(table.variant_rows(made, made.tables[0])):
        losses = [made.kept["members"][f"depth-{place + 1}-seed{seed}"]["validation"] for seed in range(3)]
        assert len(set(losses)) == 3
        assert row.validation.mean == pytest.approx(sum(losses) / 3)
        assert row.validation.spread == pytest.approx(statistics.stdev(losses))
    assert "note: depth=2 has" in studies.format_tables(made)  # times the parameters of depth=1


def test_one_seed_has_no_spread_and_says_so(desk):
    made = compared(KEY)
    made.run()

    assert table.variant_rows(made, made.tables[0])[0].validation.spread is None
    assert "one seed shows no variance" in studies.format_tables(made)


def test_every_setting_that_differs_is_shown_and_not_only_what_was_typed(desk):
    """The kind of an optimizer brings a learning rate of its own."""
    made = compared("train.optimizer.kind=adamw,muon", "train.steps=1")
    made.run()
    told = studies.study_results(made)["tables"][0]["settings"]

    assert told["train.optimizer.lr"] == {"optimizer=adamw": "0.0001", "optimizer=muon": "0.02"}
    assert told["train.optimizer.momentum"] == {"optimizer=adamw": "", "optimizer=muon": "0.95"}
    assert "train.steps" not in told and not any(path.startswith("model") for path in told)
    assert re.search(r"^train.optimizer.lr +0.0001 +0.02$", studies.format_tables(made), re.M)
    page = write_page(made.out, studies.study_results(made)).read_text()
    assert "Settings that differ" in page and "train.optimizer.lr" in page


def test_variants_that_differ_in_nothing_have_nothing_to_tell(desk):
    made = compared("train.steps=1")
    made.run()

    assert studies.study_results(made)["tables"][0]["settings"] == {} and "differ" not in studies.format_tables(made)


def test_the_csv_holds_what_the_table_shows(desk):
    made = compared(KEY, "model.mask=causal", seeds=2)
    made.run()
    path = studies.write_results(made)

    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert [line["variant"] for line in lines] == ["kernel=reference", "kernel=fused"]
    assert float(lines[0]["validation"]) == table.variant_rows(made, made.tables[0])[0].validation.mean


APPROXIMATE, UNCACHED = {"topk", "linear", "performer", "lsh"}, {"lsh"}
CELLS = {"lstm", "gru"}
COLUMNS = {"parameters", "validation", "a step", "memory", "writes", "off dense", "grows"}


@pytest.mark.slow
@pytest.mark.spec("S123")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=in_full if name == "transformer-vs-rnn" else ())  # tests/cli/test_packaged_studies.py
        for name in studies.builtin_studies()
    ],
)
def test_every_variant_has_loss_time_memory_and_growth(desk, monkeypatch, name):
    """Each that a packaged study names, at its quick size and on its first words: which they are does not matter."""
    monkeypatch.setattr(ToyDataset, "records", lambda toy, tally: map(toy.record, range(300)))
    monkeypatch.setattr(kernel_error, "LONG", 0.0)
    quick = studies.load_study(name, ["train.steps=2"], quick=True)
    made = studies.StudyRun(replace(quick, longest=256), Path("out"))
    made.run()

    for part, told in zip(made.tables, studies.study_results(made)["tables"], strict=True):
        rows = {row.name: row for row in table.variant_rows(made, part)}
        assert list(rows) == [each.name for each in studies.expand_variants(part.part)]
        assert [who for who, row in rows.items() if row.refused] == [who for who in rows if "linformer" in who]
        for variant in part.variants:
            row, trunk = rows[variant.name], variant.recipe.model.trunk
            if row.refused:
                assert "must be full, not causal" in row.refused
                continue
            kernel = trunk.cell if trunk.kind == "recurrent" else trunk.attention.kernel.partition("(")[0]
            assert row.validation.mean > 0 and row.step_seconds > 0 and row.memory > 4 * row.parameters, row
            assert row.growth["kernel"] in (KERNEL_NAMES if kernel == "auto" else [kernel])
            assert len(row.growth["seconds"]) == 3 and math.isfinite(row.growth["exponent"]), row
            assert (row.speed is None) if kernel in UNCACHED else row.speed > 0, row
            assert (row.error is None) if kernel in CELLS else (row.error > 1e-5) == (kernel in APPROXIMATE), row
        assert told["columns"].keys() >= COLUMNS


# ---------------------------------------------------------------- measurements


def test_memory_is_what_the_profiler_counts(desk, recipe):
    weight = torch.randn(301, 203, requires_grad=True)

    def call():
        ((torch.ones(7, 301) @ weight).relu() @ weight.mT).square().sum().backward()
        weight.grad = None

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = peak = 0
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)

    assert peak_tensor_bytes(call) == pytest.approx(peak, rel=0.01)


def test_a_longer_context_takes_more_memory(recipe):
    assert variant_probes.step_memory(recipe("train.context=14")) > 1.5 * variant_probes.step_memory(recipe())


@pytest.fixture
def trained(desk, recipe):
    fit(recipe("model.position.kind=rotary", "model.dim=24"), "run", quiet=True)
    return variant_probes.load_trial(Path("run"))


def test_an_exact_kernel_is_as_far_from_dense_as_rounding_goes(trained):
    assert kernel_error.kernel_error(trained) < 1e-6


def test_a_kernel_that_answers_nothing_is_wholly_off(trained):
    before = dict(KERNELS)
    KERNELS.update({name: replace(one, run=lambda q, k, v, plan, how: 0 * q) for name, one in before.items()})
    try:
        assert kernel_error.kernel_error(trained) == pytest.approx(1.0)
    finally:
        KERNELS.update(before)


def test_watching_kernels_leaves_the_table_as_it_was(trained):
    before = dict(KERNELS)
    kernel_error.kernel_error(trained)

    assert before == KERNELS


def test_a_model_that_runs_beside_is_not_measured_and_not_disturbed(trained, recipe):
    rough = Run.from_recipe(recipe("model.kernel=linear", "train.precision=mixed")).model.eval()
    alone, ids, seen = kernel_error.kernel_error(trained), torch.arange(6)[None], []
    want = trained.model(ids)

    class Meanwhile(type(trained.objective)):
        def loss_sums(self, model, batch):
            with ThreadPoolExecutor(1) as other:
                seen.append(other.submit(lambda: (rough(ids), trained.model(ids), trained.model.hooks)).result())
            return super().loss_sums(model, batch)

    trained.objective = Meanwhile(trained.objective.c)

    assert kernel_error.kernel_error(trained) == alone
    [(_, told, hooks)] = seen
    assert torch.equal(told, want) and hooks == ()


def test_a_model_in_which_nothing_attends_has_no_error(recipe):
    run = Run.from_recipe(recipe("model.trunk.mixer.kind=conv"))

    assert kernel_error.kernel_error(run) is None


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_exponent_is_the_power_that_time_grows_with(desk, recipe, monkeypatch, power):
    now = [0.0]

    @register_kernel("paced")
    def paced(q, k, v, plan, how):
        now[0] += 1e-9 * q.shape[2] ** power
        return v

    monkeypatch.setattr(kernel_error, "current_seconds", lambda device: now[0])
    try:
        found = kernel_error.time_exponent(
            lambda length: recipe("model.kernel=paced", f"train.context={length}"), LENGTHS[-1]
        )
    finally:
        del KERNELS["paced"]
        KERNEL_NAMES.remove("paced")

    assert found["exponent"] == pytest.approx(power)
    assert (found["kernel"], found["lengths"]) == ("paced", list(LENGTHS))


def test_every_kernel_that_a_config_can_say_has_a_formula():
    assert [name for name in KERNEL_NAMES if name != "auto" and cost_order(name) is None] == []
    assert {cost_order(name)[1] for name in ("reference", "local", "linear")} == {1.0, 2.0}


def test_beyond_its_context_a_model_is_asked_about_longer_windows(trained):
    found = variant_probes.longer_context_losses(trained, (2, 3))
    longer = replace(trained.validation, context=14)

    assert list(found) == ["14", "21"]
    assert found["14"] == validate(trained.model, longer.batches(variant_probes.EVAL_TOKENS), trained.task).loss


def test_learned_positions_say_that_they_end(desk, recipe):
    fit(recipe(), "learned", quiet=True)

    assert (
        "more than position.length 7"
        in variant_probes.longer_context_losses(variant_probes.load_trial(Path("learned")), (2,))["14"]
    )


def test_only_models_that_write_have_a_speed(trained):
    assert variant_probes.generation_speeds({"one": trained})["one"] > 0


# ---------------------------------------------------------------- tuning


class Formula:
    """Stands for a comparison whose losses are known: best at a rate of 3e-3, dropout 0.1 and batches of 5."""

    tried: list = []

    def __init__(self, study, out, **rest):
        self.tables = [comparison.StudyPart(part, studies.expand_variants(part), out) for part in study.parts]
        self.tried += [each.variants[0].recipe for each in self.tables]

    def run(self):
        return None

    def of(self, table, variant):
        c = variant.recipe
        far = (
            abs(c.train.optimizer.lr / 3e-3 - 1)
            + abs(c.model.trunk.dropout.residual - 0.1)
            + abs(c.train.batch_size - 5)
        )
        return [{"validation": far + c.model.trunk.dim / 1000}]


@pytest.mark.spec("S101")
def test_tuning_goes_in_its_order_and_keeps_the_best_of_each_stage(desk, monkeypatch):
    monkeypatch.setattr(tune, "StudyRun", Formula)
    monkeypatch.setattr(Formula, "tried", [])
    tuning = studies.TuningRun("recipe.toml", ("train.optimizer.lr=1e-3", "model.dropout=0.0"), desk / "out")

    assert tuning.run() is None

    stages = list(dict.fromkeys(trial.stage for trial in tuning.trials))
    assert stages == ["learning rate", "warm-up", "batch", "dropout", "shape"]
    best = zoo.read_recipe(str(desk / "out" / "tuned.toml"))
    assert (best.train.optimizer.lr, best.model.trunk.dropout.residual, best.train.batch_size) == (3e-3, 0.1, 5)
    assert best.model.trunk.dim < 12
    for stage in stages:
        losses = [trial.loss.mean for trial in tuning.trials if trial.stage == stage]
        assert [trial.loss.mean for trial in tuning.trials if trial.stage == stage and trial.kept] == [min(losses)]
    assert len(Formula.tried) == len({str(config.to_dict(each)) for each in Formula.tried})  # nothing twice


def test_a_key_with_several_values_says_what_its_stage_tries(desk, monkeypatch):
    monkeypatch.setattr(tune, "StudyRun", Formula)
    tuning = studies.TuningRun("recipe.toml", ("train.optimizer.lr=2e-3,3e-3,4e-3", "model.heads=1,2"), desk / "out")
    tuning.run()

    rates = [trial.name for trial in tuning.trials if trial.stage == "learning rate"]
    assert rates == ["as it is", "train.optimizer.lr=2e-3", "train.optimizer.lr=3e-3", "train.optimizer.lr=4e-3"]
    assert tuning.trials[-1].stage == "model.heads"


@pytest.mark.slow
@pytest.mark.spec("S101")
def test_a_real_tuning_keeps_what_reached_the_lowest_loss(desk):
    """Every setting that was tried is trained once more by itself, and reaches the loss that the choice was made by."""
    tuning = studies.TuningRun("recipe.toml", ("train.optimizer.lr=1e-6,1e-2", "train.steps=9"), desk / "out")
    assert tuning.run() is None
    reached = {}
    for number, changes in enumerate(dict.fromkeys(trial.changes for trial in tuning.trials)):
        reached[changes] = fit(zoo.read_recipe("recipe.toml", changes), desk / str(number), quiet=True).eval_loss

    for stage in tuning.stages:
        tried = [trial for trial in tuning.trials if trial.stage == stage]
        assert [trial.loss.mean for trial in tried] == [reached[trial.changes] for trial in tried]
        assert [trial for trial in tried if trial.kept] == [min(tried, key=lambda trial: reached[trial.changes])]
    assert zoo.read_recipe(str(desk / "out" / "tuned.toml")).train.optimizer.lr == 1e-2  # at 1e-6 nothing is learned
    assert tuning.best == min(reached, key=reached.get)


def test_half_the_batch_takes_twice_the_steps(recipe):
    assert list(tune.propose_batch_sizes(recipe("train.batch_size=6", "train.steps=50"))) == [
        ("train.batch_size=3", "train.steps=100"), ("train.batch_size=12", "train.steps=25")]  # fmt: skip


def test_a_deeper_shape_has_about_as_many_weights(recipe):
    c = recipe("model.dim=96", "model.depth=4", "model.heads=3")
    for change in tune.propose_shapes(c):
        other = recipe(*change, "model.heads=3").model.trunk
        assert 12 * other.depth * other.dim**2 == pytest.approx(12 * 4 * 96**2, rel=0.15)


def test_the_formulas_of_a_table_agree_with_the_spread_of_its_numbers():
    made = table.mean_and_spread([1.0, 2.0, 4.0])

    assert_close(torch.tensor([made.mean, made.spread]), torch.tensor([7 / 3, torch.tensor([1.0, 2, 4]).std().item()]))
    assert str(made) == "2.3333 ± 1.5275"
