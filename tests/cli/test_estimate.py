"""regard estimate: figures that documents publish, for people and for scripts, and a table of mistakes."""

import json
import subprocess
import sys

import pytest

from regard import config, zoo

MIXED = ("--dtype", "mixed")


@pytest.fixture
def told(say, desk):
    """The JSON of an estimate; what was said on stderr is at .err of the last."""

    def told(*words):
        answer = say("estimate", *words, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    return told


# ---------------------------------------------------------------- published figures


@pytest.mark.spec("S056", "S140")
def test_gpt3_has_its_published_figures(told):
    found = told("gpt3-175b", "--tokens", "300e9")

    assert found["parameters"] == 174_604_259_328 and (found["batch"], found["context"]) == (1, 2048)
    assert found["flops"]["rule"]["parameters"] == 175e9
    assert found["flops"]["rule"]["forward_sequence"] == pytest.approx(716.8e12)
    assert found["training"]["rounded_rule"] == pytest.approx(3.15e23)
    assert found["training"]["flops"] == pytest.approx(3.15e23, rel=0.02)
    assert found["share"]["formula"] == pytest.approx(0.027, abs=5e-4)


@pytest.mark.spec("S145")
def test_gpt3_on_v100s_costs_4_6_million(told):
    found = told("gpt3-175b", "--tokens", "300e9", "--device", "v100", "--utilization", 0.224, "--price", 1.5, *MIXED)

    assert found["training"]["cost"] == pytest.approx(4.6e6, rel=0.04)
    assert found["pace"]["rate"] == pytest.approx(28e12)
    assert any("1.5 an hour" in note for note in found["assumptions"])


@pytest.mark.spec("S071")
def test_400_billion_parameters_in_bf16_are_800_gb(say, told):
    assert told("--params", "400e9", "--dtype", "bf16")["memory"]["weights"] == 800e9
    assert ["weights", "800", "GB"] in [line.split() for line in say("estimate", "--params", "400e9", "--dtype",
                                                                     "bf16").out.splitlines()]  # fmt: skip


@pytest.mark.spec("S147")
def test_too_few_tokens_are_noted_on_stderr(say):
    few, enough = say("estimate", "--params", "175e9", "--tokens", "300e9"), say("estimate", "--params", "110e6",
                                                                                "--tokens", "10e9")  # fmt: skip

    assert (few.code, enough.code, enough.err) == (0, 0, "")
    assert few.err.startswith("regard: note: 1.71 tokens per parameter are fewer than the recommended 20")
    assert say("estimate", "--params", "175e9", "--tokens", "300e9", "--tokens-per-parameter", "1.5").err == ""


@pytest.mark.spec("S141", "S142")
def test_the_table_of_squares(told):
    rows = told("transformer-base")["growth"]

    assert [row["pairs"] for row in rows] == [16384, 65536, 262144, 1048576, 4194304, 16777216]
    assert rows[3]["layer"] == 33_554_432


# ---------------------------------------------------------------- what can be named


@pytest.mark.parametrize("name", ["vit-b16", "swin-tiny", "clip-vit-b32", "imagegpt-small", "t5-small", "albert-base"])
def test_every_kind_of_preset_can_be_estimated(told, name):
    found = told(name)

    assert found["parameters"] == sum(found["parts"].values())
    units = {"vit-b16": "image", "swin-tiny": "image", "clip-vit-b32": "pair"}
    assert found["flops"]["unit"] == units.get(name, "token")


def test_a_preset_takes_short_words_and_long_paths(told):
    assert told("gpt2", "depth=24", "dim=1024")["parameters"] == told("gpt2-medium")["parameters"] == 354_823_168
    assert told("gpt2", "trunk.depth=24", "trunk.dim=1024")["parameters"] == 354_823_168


def test_a_recipe_says_batch_context_precision_optimizer_and_length(told):
    found = told("recipe.toml", "train.batch_size=5", "train.gradient_accumulation=3", "train.precision=bf16")
    muon = told("recipe.toml", "train.optimizer.kind=muon")

    assert (found["batch"], found["context"], found["precision"]) == (5, 7, "bf16")
    assert found["training"]["tokens"] == 3 * 5 * 3 * 7
    assert muon["memory"]["optimizer"] < 8 * muon["parameters"]


def test_what_is_asked_wins_over_what_a_recipe_says(told):
    found = told("recipe.toml", "--batch", "1e1", "--context", "5", "--dtype", "mixed", "--tokens", "1_000")

    assert (found["batch"], found["context"], found["precision"]) == (10, 5, "mixed")
    assert found["training"]["tokens"] == 1000


def test_a_recipe_by_minutes_has_no_number_of_tokens(told):
    assert told("recipe.toml", "train.minutes=1.0")["training"] is None


def test_a_checkpoint_and_a_packaged_recipe_can_be_estimated(told, checkpoint):
    assert told("model")["context"] == 17
    assert told("shakespeare")["batch"] == zoo.read_recipe("shakespeare").train.batch_size


def test_ranks_share_and_say_so(told):
    alone, shared = told("gpt2"), told("gpt2", "--ranks", "8")

    assert shared["memory"] == alone["memory"] == alone["rank"]
    assert shared["rank"]["optimizer"] == alone["memory"]["optimizer"] // 8
    assert any("fully sharded" in note for note in shared["assumptions"])


def test_people_read_calm_sections(say, desk):
    answer = say("estimate", "gpt2", "--device", "a100-80gb", "--price", "2", "--tokens", "1e10", "--ranks", "8")

    for title in (
        "parameters",
        "arithmetic",
        "memory of a training step",
        "activations by kernel",
        "attention's share",
        "memory of generation",
        "attention weights",
        "one layer of this width",
        "a run",
        "assumed",
    ):
        assert f"\n{title}" in answer.out
    assert (answer.code, answer.err) == (0, "")
    assert "GB = 1e9" in answer.out.splitlines()[0]
    assert all(len(line) < 150 and line == line.rstrip() for line in answer.out.splitlines())


def test_scripts_find_the_same_keys_whatever_is_asked(told):
    bare, full = told("gpt2"), told("gpt2", "--tokens", "1e10", "--device", "t4", "--price", "1", "--ranks", "2")

    assert list(bare) == list(full)
    assert all(part in bare for part in ("parts", "flops", "memory", "activations", "cache", "share", "growth"))
    assert bare["pace"] is None and full["pace"]["device"]["name"] == "t4"


def test_calibrating_tells_what_was_measured(say, desk, monkeypatch):
    facts = {"processor": "a slide rule", "memory": "3.0 GB/s"}

    class Made:
        def facts(self):
            return facts

    monkeypatch.setattr("regard.measure.calibration.calibrate", lambda **asked: Made())

    assert json.loads(say("estimate", "--calibrate", "--json").out) == facts
    assert say("estimate", "--calibrate").out == "processor  a slide rule\nmemory     3.0 GB/s\n"


# ---------------------------------------------------------------- mistakes

MISTAKES = {
    "nothing": ("", "which model? --params"),
    "an unknown preset": ("gpt3-175", "gpt3-175: 'gpt3-175b' regard models"),
    "an unknown recipe": ("shakespear", "shakespear: 'shakespeare' regard models"),
    "a recipe that is not there": ("recipes/none.toml", "recipes/none.toml: no such preset or recipe"),
    "a preset and a count": ("gpt2 --params 1e9", "--params: gpt2 keep one"),
    "a batch of a count": ("--params 1e9 --batch 3", "--batch: a parameter count"),
    "a context of a count": ("--params 1e9 --context 3", "--context: a parameter count"),
    "a price of nothing": ("gpt2 --price 3", "--price: which device --device"),
    "no batch": ("gpt2 --batch 0", "--batch: 0 is less than 1"),
    "a negative batch": ("gpt2 --batch=-3", "--batch: -3 is less than 1"),
    "half a batch": ("gpt2 --batch 1.5", "--batch: whole number 1.5"),
    "a batch in letters": ("gpt2 --batch 64K", "--batch: whole number '64K'"),
    "no ranks": ("gpt2 --ranks 0", "--ranks: 0 is less than 1"),
    "no context": ("gpt2 --context 0", "--context: 0 is less than 1"),
    "no parameters": ("--params 0", "--params: 0 is less than 1"),
    "endless parameters": ("--params 1e400", "--params: whole number inf"),
    "parameters beyond numbers": ("--params 1e19", "--params: whole number"),
    "no tokens": ("gpt2 --tokens 0", "--tokens: 0 is not between 1 and 1e+30"),
    "endless tokens": ("gpt2 --tokens inf", "--tokens: inf is not between"),
    "tokens that are no number": ("gpt2 --tokens nan", "--tokens: expected a number"),
    "a negative price": ("gpt2 --device t4 --price=-1", "--price: -1"),
    "more than all": ("gpt2 --utilization 1.5", "--utilization: 1.5 is not between 1e-06 and 1"),
    "a share of nothing": ("gpt2 --utilization 0", "--utilization: 0 is not between"),
    "more tokens than there are": ("gpt2 --tokens 1e300", "--tokens: 1e+300 is not between"),
    "a price beyond money": ("gpt2 --device t4 --price 1e308", "--price: 1e+308 is not between"),
    "a precision that the device has not": ("gpt2 --device v100 --dtype bf16", "--dtype: v100 fp16 bf16; choose mixed"),
    "stages told by a short word": ("swin-tiny dim=48", "dim: a model of several stages"),
    "capitals": ("GPT2", "'gpt2'"),
    "no ratio": ("gpt2 --tokens-per-parameter 0", "--tokens-per-parameter: 0 is not between"),
    "an unknown precision": ("gpt2 --dtype bf17", "--dtype: 'bf17' 'bf16' fp32, mixed, bf16"),
    "an unknown device": ("gpt2 --device v1000", "--device: 'v1000' 'v100'"),
    "a device with several forms": ("gpt2 --device h100", "--device: 'h100-pcie' or 'h100-sxm'"),
    "a setting that is not there": ("gpt2 dimm=3", "dimm: 'dim'"),
    "no setting": ("gpt2 depth", "'depth' setting=value"),
    "another name": ("gpt2 name=x", "name: gpt2"),
    "heads that do not divide": ("gpt2 dim=100 heads=3", "dim 100 heads 3"),
    "towers by short words": ("clip-vit-b32 depth=3", "depth: clip-vit-b32 towers"),
    "a setting of a recipe that is not there": ("recipe.toml train.bach_size=3", "train.bach_size 'batch_size'"),
    "a setting of a checkpoint": ("model depth=3", "depth=3: model checkpoint fixed"),
}
LATER = {  # what only the model's own shape can tell
    "more context than places": ("gpt2 --context 1025", "--context: 1025 1024 positions trunk.position.length"),
    "a context of images": ("vit-b16 --context 64", "--context: 64 197 tokens leave it out"),
    "a step of everything": ("gpt2 --batch 1e15", "--batch: more than one step can hold"),
    "too many layers": ("gpt2 depth=1000000", "trunk.depth: 1000000 10000"),
    "too wide": ("gpt2 dim=6400000000", "trunk.dim: 6400000000"),
    "no peak in 32 bits": ("gpt2 --device tpu-v3", "--device: tpu-v3 fp32 mixed"),
}


@pytest.mark.parametrize("mistake", [*MISTAKES, *LATER])
def test_a_mistake_is_one_sentence_that_says_what_and_where(say, checkpoint, mistake):
    typed, words = (MISTAKES | LATER)[mistake]
    answer = say("estimate", *typed.split())

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("regard: ") and answer.err.count("\n") == 1
    assert "bug" not in answer.err
    for word in words.split():
        assert word in answer.err, answer.err


@pytest.mark.slow
def test_a_mistake_does_not_wait_for_torch(desk):
    typed = [words.split() for words, _ in MISTAKES.values() if "model" not in words]
    code = ("import sys; from regard.cli import main\n"
            f"codes = [main(['estimate', *words]) for words in {typed!r}]\n"
            "sys.exit(set(codes) != {2} or 'torch' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf8")

    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.spec("S056")
def test_the_largest_preset_takes_little_memory(desk):
    code = ("import sys, torch; from regard.cli import main\n"
            "from regard.measure.peak_memory import process_peak_bytes\n"
            "main(['estimate', 'gpt3-175b', '--json'])\n"
            "print(process_peak_bytes(torch.device('cpu')) // 1000, file=sys.stderr)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf8", check=True)

    assert json.loads(done.stdout)["parameters"] == 174_604_259_328
    assert int(done.stderr.split()[-1]) < 600_000  # kilobytes


def test_the_precisions_are_those_of_the_config():
    from typing import get_args, get_type_hints

    from regard.cli.estimate import PRECISIONS

    assert get_args(get_type_hints(config.Transformer)["precision"]) == PRECISIONS
