"""Comparing from the command line: a table on stdout, talk on stderr, a page that needs nothing else."""

import json
import re

import pytest
from torch.utils.flop_counter import FlopCounterMode

from regard.cli import compare as verb
from regard.studies import complexity
from regard.studies.demo import DemoSettings

KEY = "model.kernel=reference,fused"


@pytest.fixture
def small(monkeypatch):
    """Growth is measured of short texts alone."""
    monkeypatch.setattr("regard.studies.kernel_error.SHORTEST", 128)
    monkeypatch.setattr("regard.studies.kernel_error.LONG", 0.0)  # long enough for anybody


def test_the_ready_made_names_are_those_that_the_room_has():
    from regard import studies

    assert sorted([*studies.DEMOS, *studies.builtin_studies()]) == list(verb.BUILTIN_STUDIES)


@pytest.mark.slow
def test_a_comparison_is_a_table_a_page_and_files(desk, say, small):
    told = say("compare", "recipe.toml", KEY, "--seeds", 2, "--out", "out")

    assert told.code == 0, told.err
    head, first, second, *_ = told.out.splitlines()
    assert head.split()[:2] == ["parameters", "validation"] and first.startswith("kernel=reference")
    assert "±" in second and "page  out/compare.html" in told.out
    assert "kernel-fused-seed1: validation" in told.err and "4 of 4" in told.err
    assert {"compare.json", "compare.csv", "compare.html", "kernel-reference-seed0"} <= {
        path.name for path in (desk / "out").iterdir()
    }


@pytest.mark.slow
def test_a_script_reads_one_object_and_asking_again_takes_no_time(desk, say, small):
    words = ("compare", "recipe.toml", "model.kernel=reference,fused,nonsense", "--seeds", 1, "--out", "out", "--json")
    first = json.loads(say(*words).out)
    again = say(*words)

    assert json.loads(again.out) == first and "validation" not in again.err
    rows = first["tables"][0]["rows"]
    assert [row["name"] for row in rows] == ["kernel=reference", "kernel=fused", "kernel=nonsense"]
    assert rows[0]["validation"] == rows[0]["seeds"][0] > 0 and rows[0]["refused"] is None
    assert rows[2]["refused"].startswith("model.trunk.attention.kernel: no 'nonsense'")


@pytest.mark.slow
def test_the_page_holds_all_it_shows_and_runs_nothing(desk, say, small):
    say("compare", "recipe.toml", 'report.prompt="<b>","a"', "--seeds", 1, "--out", "out")
    page = (desk / "out" / "compare.html").read_text()

    assert "<script" not in page and not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert "<svg" in page and "default-src 'none'" in page and "{{" not in page


@pytest.mark.parametrize("words, said", [
    (["recipe.toml", "model.kernell=a,b"], "model.kernell: no such setting; did you mean 'kernel'?"),
    (["recipe.toml", KEY, "--seeds", "0"], "--seeds 0: is less than 1"),
    (["recipe.toml", KEY, "--quick"], "--quick: is for the ready-made studies"),
    (["attentoin", "--out", "x"], "attentoin: no such recipe or study; did you mean 'attention'?"),
    (["recipe.toml", "model.kernel"], "expected key=value or key=a,b,c"),
])  # fmt: skip
def test_a_slip_is_one_sentence_and_leaves_nothing_behind(desk, say, words, said):
    before = sorted(desk.iterdir())
    told = say("compare", *words)

    assert (told.code, told.out) == (2, "") and said in told.err and told.err.count("\n") == 1
    assert sorted(desk.iterdir()) == before


@pytest.mark.slow
def test_tuning_ends_with_a_recipe_to_train(desk, say, small):
    told = say("compare", "recipe.toml", "--tune", "train.steps=2", "train.schedule.warmup=1", "data.validation=0.4",
               "model.dropout=0.0,0.1", "train.optimizer.lr=1e-3,1e-2", "model.dim=12,24", "--out", "out")  # fmt: skip

    assert told.code == 0, told.err
    order = ["learning rate", "warm-up", "batch", "dropout", "shape"]
    assert [line for line in told.out.splitlines() if line in order] == order
    assert say("train", "out/tuned.toml", "train.steps=1", "--out", "tuned").code == 0


# ---------------------------------------------------------------- scale


@pytest.mark.slow
@pytest.mark.spec("S144")
def test_scaling_fits_a_law_through_four_sizes_of_two_families(desk, say, small):
    told = say("scale", "recipe.toml", "train.steps=3", "--sizes", "6,12,18,24", "--family",
               "model.trunk.position.kind=rotary model.heads=1", "--out", "out", "--json")  # fmt: skip

    assert told.code == 0, told.err
    families = json.loads(told.out)["families"]
    assert [len(each["sizes"]) for each in families] == [4, 4]
    assert families[0]["sizes"] == sorted(families[0]["sizes"]) and families[0]["line"]["alpha"] is not None
    assert len(families[0]["line"]["left"]) == 4 and "<svg" in (desk / "out" / "scale.html").read_text()
    again = say("scale", "recipe.toml", "train.steps=3", "--sizes", "6,12,18,24", "--family",
                "model.trunk.position.kind=rotary model.heads=1", "--out", "out")  # fmt: skip
    assert "L = " in again.out and "validation" not in again.err


@pytest.mark.parametrize("sizes, said", [
    ("3", "a law needs 4 sizes or more"), ("6,12,18", "a law needs 4 sizes or more"), ("many", "expected a number"),
    ("9", "name the widths"),
])  # fmt: skip
def test_too_few_sizes_are_refused(desk, say, sizes, said):
    told = say("scale", "recipe.toml", "--sizes", sizes, "--out", "out")

    assert told.code == 2 and said in told.err and not (desk / "out").exists()


@pytest.mark.parametrize("family, said", [("recipe=lstmm", "mean 'lstm'"), ("model.dmi=8", "mean 'dim'")])
def test_a_family_of_which_nothing_can_be_trained_is_refused_before_anything_is(desk, say, family, said):
    told = say("scale", "recipe.toml", "--sizes", "6,12,18,24", "--family", family, "--out", "out")

    assert told.code == 2 and said in told.err and not (desk / "out").exists()


# ---------------------------------------------------------------- claims


@pytest.mark.slow
@pytest.mark.spec("S139")
def test_the_operations_of_a_layer_grow_as_its_formula_says(desk, monkeypatch):
    """By torch's own counter in place of the clock: tests share their machine, and operations are the same on all."""
    monkeypatch.setattr("regard.studies.kernel_error.AGAIN", 0)  # and each time the same
    with FlopCounterMode(display=False) as counter:
        monkeypatch.setattr(
            "regard.studies.kernel_error.current_seconds", lambda device: 1e-12 * counter.get_total_flops()
        )
        sheet = complexity.layer_table(DemoSettings(desk, quick=True))

    counted = [each for each in sheet.numbers if each["kernel"] != "fused"]  # which the counter does not know on a CPU
    assert len(counted) == 4
    for each in counted:
        assert each["exponent"] == pytest.approx(each["power"], abs=0.2), each["name"]


@pytest.mark.slow
@pytest.mark.spec("S122", "S141", "S142")
def test_complexity_measures_what_the_formulas_say(desk, say):
    told = say("compare", "complexity", "--quick", "--out", "out", "--json")

    assert told.code == 0, told.err
    layers, memory, shares = json.loads(told.out)["tables"]
    grows = {each["name"]: each for each in layers["numbers"]}
    assert grows["attention"]["exponent"] > grows["recurrent"]["exponent"] > 0.5  # times, on a machine that is shared
    assert [each["pairs"] for each in memory["numbers"]] == [16384, 65536, 262144, 1048576]
    assert memory["numbers"][-1]["formula"] == 33_554_432
    for each in memory["numbers"]:
        assert each["reference"] == pytest.approx(2 * each["formula"], rel=0.1)  # scores, and weights
        assert each["fused"] < each["formula"] / 4
    for each in shares["numbers"]:
        assert each["counted"] == pytest.approx(each["formula"], rel=0.02)
    assert [round(100 * each["formula"], 1) for each in shares["numbers"]] == [2.7, 10.0, 25.0]


@pytest.mark.slow
@pytest.mark.spec("S195")
def test_residuals_change_the_landscape(desk, say):
    told = say("compare", "landscape", "--quick", "data.validation=0.02", "--out", "out", "--json")

    assert told.code == 0, told.err
    [table] = json.loads(told.out)["tables"]
    with_them, without = table["numbers"]
    assert (with_them["name"], without["name"]) == ("residual=true", "residual=false")
    assert len(with_them["losses"]) == len(with_them["losses"][0]) == 5
    assert with_them["rise"] < without["rise"]
    assert "var(--ramp-4)" in (desk / "out" / "compare.html").read_text()
