"""Folders of sentence-transformers: one vector for a text, as modules.json and what it names say it is made."""

import json
import shutil

import pytest
import torch
from hub.builders import gpt2, model, words

import regard
from regard.config.errors import DataError
from regard.hub import read_folder, write_folder
from regard.hub.sentence_pooling import SentencePooling, read_pooling

STEPS = ["Transformer", "Pooling", "Normalize"]
MODES = {
    "cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}  # fmt: skip


def laid_out(place, steps=STEPS, said=None, lengths=None, prompts=None):
    """A folder as sentence-transformers writes it, without the model."""
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(steps) if number)]
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for i, (path, kind) in enumerate(zip(paths, steps, strict=True))]  # fmt: skip
    files = {"modules.json": listed, "1_Pooling/config.json": said or mode("mean"), **(lengths or {})}
    files |= {} if prompts is None else {"config_sentence_transformers.json": prompts}
    for name, content in files.items():
        (place / name).parent.mkdir(exist_ok=True, parents=True)
        (place / name).write_text(json.dumps(content))
    return place


def mode(*names, **more):
    return {"word_embedding_dimension": 36, **{key: name in names for name, key in MODES.items()}, **more}


@pytest.mark.parametrize("place", MODES)
@pytest.mark.parametrize("normal", [True, False])
def test_the_place_and_the_length_of_the_vector_are_heard(place, normal, tmp_path):
    lengths = {"sentence_bert_config.json": {"max_seq_length": 257, "do_lower_case": False}}
    at = laid_out(tmp_path, STEPS[: 2 + normal], mode(place), lengths)

    assert read_pooling(at) == SentencePooling(place, normal, 257)


def test_a_later_spelling_means_the_same(tmp_path):
    assert read_pooling(laid_out(tmp_path / "a", said={"pooling_mode": "lasttoken"})).place == "last"
    assert (
        read_pooling(laid_out(tmp_path / "b", said={"pooling_mode": ["mean"], "include_prompt": True})).place == "mean"
    )


def test_a_prompt_that_every_text_is_given_is_told(tmp_path):
    said = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"}

    assert read_pooling(laid_out(tmp_path, prompts=said)).prompt == "query: "


def test_a_folder_that_says_nothing_of_it_has_none(tmp_path):
    assert read_pooling(tmp_path) is None


MISTAKES = {
    "two places": (dict(said=mode("mean", "cls")), ["1_Pooling/config.json", "cls", "mean", "side by side"]),
    "no place": (dict(said=mode()), ["1_Pooling/config.json", "no way", "mean, cls, max, last"]),
    "another way": (dict(said=mode(pooling_mode_weightedmean_tokens=True)), ["weightedmean", "mean, cls, max, last"]),
    "no truth": (dict(said=mode(pooling_mode_cls_token="yes")), ["pooling_mode_cls_token", "true or false"]),
    "a step more": (dict(steps=[*STEPS[:2], "Dense", "Normalize"]), ["modules.json", "Dense", "expected Transformer"]),
    "no length": (dict(lengths={"sentence_bert_config.json": {"max_seq_length": -1}}), ["max_seq_length", "-1"]),
    "small letters": (
        dict(lengths={"sentence_roberta_config.json": {"do_lower_case": True}}),
        ["sentence_roberta_config.json", "do_lower_case", "false"],
    ),
    "no such prompt": (
        dict(prompts={"prompts": {"q": "?"}, "default_prompt_name": "p"}), ["default_prompt_name", '"p"', "for q"],
    ),
    "a prompt that does not count": (
        dict(said=mode("mean", include_prompt=False), prompts={"prompts": {"q": "?"}, "default_prompt_name": "q"}),
        ["include_prompt"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_not_understood_is_one_sentence(name, tmp_path):
    said, words = MISTAKES[name]
    with pytest.raises(DataError) as error:
        read_pooling(laid_out(tmp_path, **said))
    message = str(error.value)

    assert message.startswith(str(tmp_path)) and "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "1_Pooling/../../elsewhere"])
def test_a_step_outside_the_folder_is_not_looked_for(path, tmp_path):
    at = laid_out(tmp_path / "at")
    laid_out(tmp_path / "elsewhere")
    steps = json.loads((at / "modules.json").read_text())
    steps[1]["path"] = path
    (at / "modules.json").write_text(json.dumps(steps))

    with pytest.raises(DataError, match="not inside this folder"):
        read_pooling(at)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"type": 1}]', "[" * 100_000, '[{"path": "x"}]'])
def test_a_broken_list_of_steps_is_one_sentence(text, tmp_path):
    (tmp_path / "modules.json").write_text(text)

    with pytest.raises(DataError, match="modules.json"):
        read_pooling(tmp_path)


def test_a_model_that_is_saved_again_takes_its_pooling_along(tmp_path):
    torch.manual_seed(3)
    write_folder.save_model(tmp_path / "at", model(gpt2()), words())
    laid_out(tmp_path / "at", [*STEPS[:2], "Dense"])
    (tmp_path / "at/2_Dense").mkdir()
    shutil.copy(tmp_path / "at/model.safetensors", tmp_path / "at/2_Dense/model.safetensors")
    (tmp_path / "at/2_Dense/evil.py").write_text("print()")
    regard.load(tmp_path / "at", device="cpu").save(tmp_path / "again")

    for name in ("modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "at" / name).read_bytes()
    assert not (tmp_path / "again/2_Dense/evil.py").exists()
    with pytest.raises(DataError, match="Dense"):
        _ = read_folder.read_model_folder(tmp_path / "again").pooling
