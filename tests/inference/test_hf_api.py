"""from_pretrained and save_pretrained: the spellings that people know, and a model called as they call it."""

import json
import warnings

import pytest
import torch
from hub import decoder_cases, encoder_cases, encoder_decoder_cases, image_cases
from hub.published import answers, pair, question
from parity.tolerance import OUTPUT, assert_near
from torch import nn

import regard
import regard.inference.load as room
from regard.config.errors import ConfigError, DataError

CASES = decoder_cases.CASES | encoder_cases.CASES | image_cases.CASES | encoder_decoder_cases.CASES


@pytest.fixture
def folder(tmp_path):
    pair(CASES["gpt2"], tmp_path / "gpt2")
    return tmp_path / "gpt2"


# ---------------------------------------------------------------- one test for each shape


def theirs_and_ours(name, tmp_path):
    of = pair(CASES[name], tmp_path / "model")
    asked = question(of)
    [theirs], _ = answers(of, asked)
    return theirs, regard.from_pretrained(tmp_path / "model"), asked


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "distilbert"])
def test_a_model_of_text_is_called_with_ids(name, tmp_path):
    theirs, model, asked = theirs_and_ours(name, tmp_path)
    ids = asked.theirs["input_ids"]
    segment = {"segment": asked.theirs["token_type_ids"]} if "token_type_ids" in asked.theirs else {}
    logits = model(ids, **segment)

    assert logits.shape == (*ids.shape, model.c.embed.vocab)
    assert_near(logits.flatten(0, 1), theirs.reshape(-1, theirs.shape[-1]), OUTPUT)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_an_encoder_decoder_is_called_with_a_target_and_a_source(name, tmp_path):
    theirs, model, asked = theirs_and_ours(name, tmp_path)
    target, source = asked.theirs["decoder_input_ids"], asked.theirs["input_ids"]
    logits = model(target, source=source)

    assert logits.shape == (*target.shape, model.c.embed.vocab)
    assert_near(logits.flatten(0, 1), theirs.reshape(-1, theirs.shape[-1]), OUTPUT)


@pytest.mark.parametrize("name", ["vit", "deit", "swin"])
def test_a_model_of_images_is_called_with_pixels(name, tmp_path):
    theirs, model, asked = theirs_and_ours(name, tmp_path)

    assert_near(model(asked.theirs["pixel_values"]), theirs, OUTPUT)


def test_towers_are_called_with_pixels_and_ids(tmp_path):
    theirs, model, asked = theirs_and_ours("clip", tmp_path)

    assert isinstance(model, regard.DualEncoderModel)
    assert_near(model(asked.theirs["pixel_values"], asked.theirs["input_ids"]), theirs, OUTPUT)


@pytest.mark.parametrize("name, shape", [
    ("gpt2 tags", (3, 9)), ("gpt2 label", (3,)), ("bert answers, silu", (3, 9)), ("bert classes, gelu_new", (3,)),
])  # fmt: skip
def test_the_head_that_was_loaded_answers(name, shape, tmp_path):
    pair(CASES[name], tmp_path / "model")
    model = regard.Model.from_pretrained(tmp_path / "model")

    assert model(torch.randint(3, 50, (3, 9))).shape[:-1] == shape


# ---------------------------------------------------------------- spellings


def test_all_spellings_are_one_model(folder):
    ids = torch.tensor([[3, 5, 7]])
    told = [open_(folder)(ids) for open_ in (regard.load, regard.from_pretrained, regard.Model.from_pretrained)]

    assert torch.equal(told[0], told[1]) and torch.equal(told[1], told[2])


def test_save_pretrained_is_save(folder, tmp_path):
    model = regard.Model.from_pretrained(folder)
    model.save_pretrained(tmp_path / "one", safe_serialization=True)
    model.save(tmp_path / "other")
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "other")]

    assert files[0].keys() == files[1].keys() >= {"config.json", "model.safetensors"}
    assert all(files[0][name] == files[1][name] for name in files[0] if name != "MANIFEST.json")


def test_a_class_opens_its_own_kind_alone(folder):
    with pytest.raises(DataError, match="holds Model and not DualEncoderModel; use regard.Model.from_pretrained"):
        regard.DualEncoderModel.from_pretrained(folder)


def test_a_class_of_your_own_is_not_taken_for_what_was_loaded(folder):
    class Mine(regard.Model):
        pass

    with pytest.raises(DataError, match="holds Model and not Mine"):
        Mine.from_pretrained(folder)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("said, kind", [
    (torch.bfloat16, torch.bfloat16), ("bfloat16", torch.bfloat16), ("bf16", torch.bfloat16),
    (torch.float16, torch.float16), ("half", torch.float16), ("double", torch.float64), ("float32", torch.float32),
    ("auto", torch.float32), (None, torch.float32),
])  # fmt: skip
def test_a_type_is_said_in_either_way(folder, key, said, kind):
    model = regard.from_pretrained(folder, **{key: said})

    assert {weight.dtype for weight in model.parameters()} == {kind}


@pytest.mark.parametrize("said", ["cpu", "auto", None, {"": "cpu"}, torch.device("cpu")])
def test_a_device_map_is_one_device(folder, said):
    place = next(regard.from_pretrained(folder, device_map=said).parameters()).device

    assert place.type == (room.resolve_device("auto").type if said == "auto" else "cpu")


def test_keywords_that_say_what_is_done_anyway_change_nothing(folder):
    with warnings.catch_warnings(record=True) as told:
        model = regard.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, low_cpu_mem_usage=True)

    assert not told and isinstance(model, nn.Module) and not model.training


@pytest.mark.parametrize("given, said", [
    (dict(trust_remote_code=True), "trust_remote_code=True is refused: code that comes with weights is never run here"),
    (dict(use_safetensors=False), "use_safetensors=False is refused: other files may run code"),
    (dict(low_cpu_mem_usage=False), "weights always go straight to their place"),
    (dict(load_in_8bit=True), "from_pretrained: no keyword 'load_in_8bit'; there are dtype, torch_dtype, device_map"),
    (dict(devise_map="cpu"), "no keyword 'devise_map'; did you mean 'device_map'?"),
    (dict(dtype="int4"), "dtype: no 'int4'; there are auto, fp32, bf16, fp16, fp64, float32, float, bfloat16"),
    (dict(torch_dtype=torch.int8), "torch_dtype: no torch.int8"),
    (dict(dtype=torch.float32, torch_dtype="auto"), "torch_dtype: dtype is given as well; keep one of the two"),
    (dict(device_map={"trunk": 0, "head": 1}), "device_map: {'trunk': 0, 'head': 1}; a model stays whole here"),
    (dict(device_map="balanced"), "device: no 'balanced'"),
    (dict(token="hf_secret"), "token is refused: `hf auth login` keeps one, or HF_TOKEN says it"),
    (dict(revision="v2"), "is a folder here, which has none; leave it out"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_in_a_sentence(folder, given, said):
    with pytest.raises(ConfigError) as problem:
        regard.Model.from_pretrained(folder, **given)

    assert said in str(problem.value) and "secret" not in str(problem.value)


@pytest.mark.parametrize("given, said", [
    (dict(safe_serialization=False), "safe_serialization=False is refused: weights are written as safetensors"),
    (dict(push_to_hub=True), "push_to_hub=True is refused: nothing is sent anywhere"),
    (dict(max_shard_size="5GB"), "save_pretrained: no keyword 'max_shard_size'"),
])  # fmt: skip
def test_a_save_that_cannot_be_is_refused_and_nothing_is_written(folder, tmp_path, given, said):
    model = regard.load(folder)
    with pytest.raises(ConfigError) as problem:
        model.save_pretrained(tmp_path / "out", **given)

    assert said in str(problem.value) and not (tmp_path / "out").exists()


def test_a_short_name_is_an_id_of_the_hub_unless_it_is_a_folder_here(folder, monkeypatch):
    """Nothing is fetched in tests: what is not in the cache is told by the name that was looked for."""
    with pytest.raises(DataError, match="no-such-model@v3: not in the cache"):
        regard.from_pretrained("no-such-model", revision="v3")
    with pytest.raises(DataError, match="somebody/no-such-model: not in the cache"):
        regard.from_pretrained("somebody/no-such-model")
    with pytest.raises(ConfigError, match="local_files_only: no-such-model is no folder here; with HF_HUB_OFFLINE=1"):
        regard.from_pretrained("no-such-model", local_files_only=True)
    monkeypatch.chdir(folder.parent)
    assert regard.from_pretrained("gpt2", local_files_only=True).source_folder.path.name == "gpt2"


def test_a_folder_that_asks_for_its_own_code_is_refused_whatever_is_passed(folder):
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"model_type": "mine", "auto_map": {"AutoModel": "mine.M"}}))

    with pytest.raises(DataError, match="asks for code from the folder to be run, which is never done here"):
        regard.from_pretrained(folder)
