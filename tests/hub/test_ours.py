"""A model of a family in our own words: the same model, and its weights are written once."""

import json

import torch
from hub.made import gpt2, model, words
from safetensors.torch import load_file

import regard
from regard.hub import folder, names
from regard.hub.ours import save_own


def test_a_model_of_a_family_is_saved_in_our_words_with_one_writing(tmp_path, monkeypatch):
    torch.manual_seed(5)
    folder.write(tmp_path / "theirs", model(gpt2()), words())
    made, written, write = regard.load(tmp_path / "theirs", device="cpu"), [], folder.tensors_to
    monkeypatch.setattr(folder, "tensors_to", lambda path, tensors: written.append(path.name) or write(path, tensors))
    save_own(made, tmp_path / "ours")
    said, again = json.loads((tmp_path / "ours/config.json").read_text()), regard.load(tmp_path / "ours", device="cpu")

    assert written == ["model.safetensors"]
    assert said["model_type"] == "regard" and "architectures" not in said
    assert load_file(tmp_path / "ours/model.safetensors").keys() == names.once(made).keys()
    assert again.tokenizer.text() == made.tokenizer.text() and again.c == made.c
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in made.state_dict().items())
