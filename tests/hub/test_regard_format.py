"""A model of a family in our own words: the same model, and its weights are written once."""

import json

import torch
from hub.builders import gpt2, model, words
from safetensors.torch import load_file

import regard
from regard.hub import name_table, weights, write_folder
from regard.hub.write_folder import save_in_own_format


def test_a_model_of_a_family_is_saved_in_our_words_with_one_writing(tmp_path, monkeypatch):
    torch.manual_seed(5)
    write_folder.save_model(tmp_path / "theirs", model(gpt2()), words())
    made, written, write = regard.load(tmp_path / "theirs", device="cpu"), [], weights.save_tensors
    monkeypatch.setattr(
        write_folder, "save_tensors", lambda path, tensors: written.append(path.name) or write(path, tensors)
    )
    save_in_own_format(made, tmp_path / "ours")
    said, again = json.loads((tmp_path / "ours/config.json").read_text()), regard.load(tmp_path / "ours", device="cpu")

    assert written == ["model.safetensors"]
    assert said["model_type"] == "regard" and "architectures" not in said
    assert load_file(tmp_path / "ours/model.safetensors").keys() == name_table.untied_tensors(made).keys()
    assert again.tokenizer.text() == made.tokenizer.text() and again.c == made.c
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in made.state_dict().items())
