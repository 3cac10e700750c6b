"""A published chat model is fine-tuned on rendered chats: their special tokens are its own, and resuming knows it."""

import json

import pytest
from inference.test_special_tokens import llama

import regard
from regard import config, zoo
from regard.training.api import fit, resume_fit
from regard.training.init import pretrained

TALK = [{"role": "user", "content": "Hi, who are you?"}, {"role": "assistant", "content": "I am nobody."}]
CHANGES = ["data.source=chats.jsonl", "data.validation=0", "train.init_from=model", "train.steps=2",
           "train.batch_size=2",
           "train.context=40", "train.compile=false", "train.device=cpu", "train.eval_every=none",
           "train.epochs=none"]  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    known, _ = llama("chatml", tmp_path / "model")
    text = known.apply_chat_template(TALK, tokenize=False)
    (tmp_path / "chats.jsonl").write_text((json.dumps({"text": text}) + "\n") * 30)
    (tmp_path / "bare.toml").write_text('[report]\nprompt = "<|im_start|>user\\n"\n')
    return known, text


@pytest.mark.parametrize("how", ["plain", "parse"])
def test_a_run_on_rendered_chats_reads_the_ids_of_transformers_where_it_parses(desk, how):
    known, text = desk
    recipe = zoo.read_recipe("bare.toml", [*CHANGES, f"tokenizer.specials={how}"])
    run = regard.Run.from_recipe(recipe, notice=lambda line: None)
    rows, turn = run.data.batch(0).tolist(), known("<|im_end|>\n<|im_start|>assistant").input_ids
    turns = [row for row in rows for place in range(len(row)) if row[place : place + len(turn)] == turn]

    assert run.recipe.tokenizer == config.TokenizerFile(path="model", specials=how)
    assert (run.tokenizer.encode(text) == known(text).input_ids) == (how == "parse")
    assert bool(turns) == (how == "parse")


def test_the_words_of_the_weights_are_taken_whatever_is_said_of_special_tokens(desk):
    folder = pretrained.read_source("model")
    for said in (config.CharTokenizer(), config.CharTokenizer(specials="parse")):
        assert pretrained.tokenizer_of_folder(said, folder)[0] == config.TokenizerFile(
            path="model", specials=said.specials
        )


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_reading_of_special_tokens_and_no_other(desk):
    known, text = desk
    fit(zoo.read_recipe("bare.toml", [*CHANGES, "tokenizer.specials=parse"]), "run", quiet=True)
    with pytest.raises(config.ConfigError, match="tokenizer.specials"):
        resume_fit("run", ["tokenizer.specials=plain", "train.steps=3"], quiet=True)
    resume_fit("run", ["train.steps=3"], quiet=True)
    found = regard.evaluate("run", "chats.jsonl")
    ids = known(text).input_ids

    assert found.score.count == pytest.approx(30 * len(ids), abs=31)
