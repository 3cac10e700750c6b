"""regard check: a table for people, an object for scripts, an exit code for both."""

import json

import pytest
import torch
from hub.decoder_cases import CASES
from hub.published import pair
from sizes import in_full

import regard
import regard.inference.load as room
from regard import zoo
from regard.hub.check import reference


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 as `transformers` saves it."""
    pair(CASES["gpt2"], tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.fixture
def planted(monkeypatch):
    """Every model that is loaded from now on has one weight that is not its own."""
    load = room.load_model

    def wrong(*path, **given):
        model = load(*path, **given)
        model.trunk.blocks[1].attn.qkv.weight.data[3, 5] += 1.5
        return model

    monkeypatch.setattr(room, "load_model", wrong)


def test_equal_models_end_with_zero_and_a_table(say, folder):
    told = say("check", folder, "--quick")

    assert told.code == 0 and told.out.endswith("\nequal\n")
    assert "GPT2LMHeadModel of transformers" in told.out and "40 tensors, every byte the same" in told.out
    assert [line.split()[0] for line in told.out.splitlines() if line[:4] in ("fp32", "bf16")] == ["fp32", "bf16"]


def test_scripts_get_one_object(say, folder):
    told = json.loads(say("check", folder, "--quick", "--json", "--dtype", "fp64,fp32", "--tokens", 9).out)

    assert told["equal"] is True and told["class"] == "GPT2LMHeadModel" and told["back"]["whole"] is True
    assert [row["dtype"] for row in told["dtypes"]] == ["fp64", "fp32"]
    assert all(row["difference"] <= row["tolerance"] and row["argmax"] == 1 for row in told["dtypes"])
    assert told["dtypes"][0]["asked"]["input_ids"] == [3, 9] and told["dtypes"][0]["ours"] is None
    assert "layers" not in told["dtypes"][0]


def test_every_layer_is_told_where_that_is_asked_for(say, folder):
    shown = say("check", folder, "--quick", "--layer-diff", "--dtype", "fp32").out
    [row] = json.loads(say("check", folder, "--quick", "--layer-diff", "--dtype", "fp32", "--json").out)["dtypes"]

    wheres = ["trunk.embed", "trunk.0.residual", "trunk.1.residual", "trunk.2.residual"]
    assert [step["where"] for step in row["layers"]] == wheres
    assert all(where in shown for where in wheres)


def test_a_planted_error_ends_with_one_and_is_named_by_its_address(say, folder, planted):
    told = say("check", folder, "--quick", "--dtype", "fp32")
    script = json.loads(say("check", folder, "--quick", "--dtype", "fp32", "--json").out)

    assert told.code == 1 and told.out.endswith("\nnot equal\n")
    assert "trunk.1.attn.out" in told.out and "changed transformer.h.1.attn.c_attn.weight" in told.out
    assert script["equal"] is False and script["dtypes"][0]["first"] == "trunk.1.attn.out"
    assert script["back"]["changed"] == ["transformer.h.1.attn.c_attn.weight"]


def test_a_model_of_ours_that_is_of_a_family_is_compared_too(say, checkpoint):
    told = say("check", checkpoint, "--quick", "--dtype", "fp32")

    assert told.code == 0, told.err
    assert told.out.endswith("\nequal\n")


@pytest.mark.slow
def test_time_and_memory_stand_side_by_side(say, tmp_path):
    """Each in a process of its own, which holds at least its weights."""
    torch.manual_seed(0)
    model = regard.build(zoo.preset("gpt2", dim=512, depth=3, heads=4, vocab=1000, position={"length": 40}))
    model.save(tmp_path / "model")
    [row] = json.loads(say("check", tmp_path / "model", "--dtype", "fp32", "--json").out)["dtypes"]
    weights = sum(4 * weight.numel() for weight in model.parameters())

    for side in ("ours", "theirs"):
        assert weights <= row[side]["peak_bytes"] <= 6 * weights
        assert 0 < row[side]["forward_seconds"] < 60 and 0 < row[side]["load_seconds"] < 60


@in_full  # what is shown of the numbers above
@pytest.mark.slow
def test_time_and_memory_are_shown(say, checkpoint):
    shown = say("check", checkpoint, "--dtype", "bf16").out
    assert [line.split()[-1] for line in shown.splitlines() if "ours" in line or "theirs " in line[4:]] == ["MB", "MB"]


# ---------------------------------------------------------------- what cannot be compared


def test_without_the_other_library_it_says_how_to_get_it(say, folder, monkeypatch):
    monkeypatch.setattr(reference, "find_spec", lambda name: None)
    told = say("check", folder)

    assert (told.code, told.out) == (2, "")
    assert told.err == "regard: check: compares with `transformers`, which is not installed; pip install transformers\n"


@pytest.mark.slow
def test_a_model_that_transformers_has_no_class_for_is_refused(say, tmp_path):
    regard.build(zoo.preset("lab", dim=12, depth=1, heads=2, vocab=11)).save(tmp_path / "own")
    told = say("check", tmp_path / "own")

    assert told.code == 3 and "`transformers` has no class to compare it with (trunk.attention.qk_norm" in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.slow
def test_a_model_in_our_words_says_how_it_can_be_compared(say, folder, tmp_path):
    say("convert", folder, tmp_path / "own", "--as", "regard")
    told = say("check", tmp_path / "own")

    assert told.code == 3 and f"`regard convert {tmp_path / 'own'} FOLDER` writes it as a GPT2LMHeadModel" in told.err


@pytest.mark.parametrize("words, code, said", [
    (["nowhere"], 3, "nowhere"),
    (["{}", "--dtype", "fp31"], 2, "--dtype: no type 'fp31'; did you mean 'fp32'?"),
    (["{}", "--tokens", "0"], 2, "--tokens: 0 is less than 1"),
    (["{}", "--device", "abacus"], 2, "device: no 'abacus'"),
])  # fmt: skip
def test_a_slip_is_one_sentence(say, folder, words, code, said):
    told = say("check", *(word.format(folder) for word in words))

    assert told.code == code and said in told.err.splitlines()[-1]
    assert told.out == "" and "bug" not in told.err


def test_a_folder_whose_weights_are_cut_off_is_bad_data(say, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    assert say("check", folder).code == 3
