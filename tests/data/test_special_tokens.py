"""Special tokens in training data are text unless tokenizer.specials says to parse them; what is kept knows it."""

import json

import pytest
from text.families import saved

from regard import config as C
from regard import zoo
from regard.data.prepare import prepare_text
from regard.text.tokenizer import Tokenizer
from regard.training.data.read import Reporter, read_run_data

TALKS = [[{"role": "user", "content": f"Hi, who {word}?"}, {"role": "assistant", "content": "I am nobody."}]
         for word in ("are you", "am I", "is it")] * 4  # fmt: skip


def heard(line):
    raise AssertionError(line)


@pytest.fixture(params=["chatml", "mistral", "t5"])
def rendered(request, tmp_path, monkeypatch):
    """The tokenizer of `transformers`, its folder, and chats as it renders them, a record each."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    auto = saved(request.param, tmp_path / "known")
    texts = [auto.apply_chat_template(talk, tokenize=False) for talk in TALKS]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return auto, tmp_path / "known", tmp_path / "chats.jsonl", texts


def setting(folder, specials):
    return C.TokenizerFile(path=str(folder), specials=specials)


def test_a_text_that_is_kept_parsed_is_not_taken_for_one_that_is_kept_plain(rendered, tmp_path):
    auto, folder, file, texts = rendered
    data = C.Data(source=str(file), validation=0.0)
    made = {how: prepare_text(data, setting(folder, how), notice=heard) for how in ("plain", "parse", "plain", "parse")}
    ids = {how: one.train.ids().tolist() for how, one in made.items()}

    assert made["plain"].train.digest != made["parse"].train.digest
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".ids", ".ids", ".json", ".json"]
    parsed = [auto(text, add_special_tokens=False).input_ids for text in texts]
    end, start = auto.eos_token_id, auto.bos_token_id
    want = list[int]()
    for place, text in enumerate(parsed):
        want += [end] if place and end is not None and want[-1] != end else []
        want += [start] if start is not None and text[0] != start else []
        want += text
    assert ids["parse"] == want and len(ids["plain"]) > len(want)


def test_a_tokenizer_that_is_given_reads_as_the_recipe_says(rendered):
    _, folder, file, texts = rendered
    known = Tokenizer.load(folder)
    for how in ("plain", "parse"):
        made = prepare_text(C.Data(source=str(file), validation=0.0), setting(folder, how), tokenizer=known)
        assert made.tokenizer.encode(texts[0]) == known.encode(texts[0], how)


@pytest.mark.parametrize("pack", ["true", "false"])
def test_rows_of_a_recipe_are_parsed_or_plain_as_it_says_and_not_kept_for_each_other(rendered, pack):
    auto, folder, file, texts = rendered
    rows = {}
    for how in ("plain", "parse", "plain"):
        recipe = zoo.read_recipe("shakespeare-nano", [
            f"data.source={file}", "data.validation=0", f'tokenizer={{kind="file", path="{folder}", specials="{how}"}}',
            f"train.pack={pack}", *([] if pack == "true" else ["train.batch_tokens=900"]), "train.context=300",
            "train.batch_size=1", "train.eval_every=none", "train.epochs=none", "train.keep_best=false"])  # fmt: skip
        found = read_run_data(recipe, None, Reporter(heard))
        inner = found.train.rows if hasattr(found.train, "rows") else found.train.data.rows
        rows[how] = [inner[place]["ids"] for place in range(len(inner))]
    parsed = auto(texts[0], add_special_tokens=False).input_ids

    assert any(row == parsed or row[1:] == parsed or row[:-1] == parsed or row[1:-1] == parsed for row in rows["parse"])
    twice = [(a, b) for row in rows["parse"] for a, b in zip(row, row[1:], strict=False) if a == b == auto.eos_token_id]
    assert not twice and min(map(len, rows["plain"])) > max(map(len, rows["parse"]))


def test_a_tokenizer_is_learnt_once_for_both(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on <|endoftext|> a mat. " * 30)
    data, cache = C.Data(source=str(tmp_path / "a.txt"), validation=0.0), tmp_path / "cache"
    made = [prepare_text(data, C.SubwordTokenizer(vocab=301, specials=how), cache=cache) for how in ("plain", "parse")]

    assert len(list(cache.glob("*.tokenizer.json"))) == 1
    assert [one.train.ids().eq(one.tokenizer.special_ids["eos"]).sum().item() for one in made] == [0, 30]
    again = prepare_text(data, C.SubwordTokenizer(vocab=301, specials="parse"), cache=cache)
    assert again.train.ids().equal(made[1].train.ids()) and again.tokenizer.parses_specials
