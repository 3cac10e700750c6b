"""Special tokens in a text are parsed as `transformers` parses them, or spelt as it spells them, by one switch; and in
a chat those that somebody typed are never parsed."""

import copy
import random
import threading

import pytest
import tokenizers
import transformers as hf
from text.families import FAMILIES, saved
from tokenizers import AddedToken, models, normalizers

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.text.chat_template import ChatTemplate, SpecialTokenEscaper, unused_character
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

TALK = [
    {"role": "user", "content": "Hi, who are you?\n"},
    {"role": "assistant", "content": "I am nobody. <think>Hm.</think>"},
    {"role": "user", "content": " And what is 2+2?"},
]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """The tokenizer of `transformers`, ours, the chat template, and their folder."""
    folder = tmp_path_factory.mktemp(request.param)
    auto = saved(request.param, folder)
    return auto, Tokenizer.load(folder), ChatTemplate.load(folder), folder


def specials(ours, ids):
    """The special tokens among ids; an unknown word is one too, wherever it stands."""
    return [ours.token(id) for id in ids if id in ours.specials and id != ours.special_ids.get("unk")]


# ---------------------------------------------------------------- the switch


def test_a_rendered_template_has_the_ids_of_transformers(family):
    auto, ours, chat, _ = family
    text = chat.render(TALK)
    want = auto.apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]

    assert ours.encode(text) == auto(text, add_special_tokens=False).input_ids == want
    assert specials(ours, want)
    assert chat.encode(ours, TALK) == want


def test_text_that_is_plain_has_the_ids_of_transformers_that_splits_special_tokens(family):
    _, ours, chat, folder = family
    theirs, text = hf.AutoTokenizer.from_pretrained(folder, split_special_tokens=True), chat.render(TALK)

    if not isinstance(ours.inner.model, models.Unigram):  # of which theirs are special all the same
        assert ours.encode(text, "plain") == theirs(text, add_special_tokens=False).input_ids
    assert ours.with_specials("plain").encode(text) == ours.encode(text, "plain") != ours.encode(text)
    assert not specials(ours, ours.encode(text, "plain"))


def test_pairs_with_special_tokens_in_them_stand_as_transformers_has_them(family):
    auto, ours, chat, _ = family
    first, second = chat.render(TALK[:1]), "who " + "".join(sorted(map(ours.token, ours.specials))) + " are you"
    want = auto(first, second)

    assert ours.encode_with_specials(first, second).ids == want.input_ids
    assert ours.encode_with_specials(second).ids == auto(second).input_ids


def test_texts_of_any_make_are_parsed_as_transformers_parses_them(family):
    auto, ours, _, _ = family
    draw = random.Random(5)
    parts = [*map(ours.token, sorted(ours.specials)), " ", "\n", "Hi", " who", "<", "|>", "[", "<|im_", "2+2", "é"]

    for _ in range(200):
        text = "".join(draw.choices(parts, k=draw.randint(1, 9)))
        assert ours.encode(text) == auto(text, add_special_tokens=False).input_ids, text


def test_a_long_text_is_parsed_as_a_whole(family):
    auto, ours, chat, _ = family
    text = chat.render(TALK) * 200

    assert len(text) > 1 << 14
    assert ours.encode(text) == auto(text, add_special_tokens=False).input_ids


def test_parts_that_are_read_one_by_one_are_parsed_as_the_whole(family):
    _, ours, chat, _ = family
    text = (chat.render(TALK) + "and a line\nof words that may be cut\n") * 9
    parts = ours.cut(text[start : start + 61] for start in range(0, len(text), 61))

    assert [id for part in parts for id in ours.encode(part)] == ours.encode(text)


def test_a_special_token_that_takes_space_is_not_cut_from_it():
    made = train_tokenizer(C.SubwordTokenizer(vocab=300, specials="parse"), ["some words\nand more of them"] * 9)
    inner = tokenizers.Tokenizer.from_str(made.text())
    inner.add_special_tokens([AddedToken("<left>", lstrip=True, special=True)])
    ours, text = Tokenizer(inner), "some words\n<left> and more\nwords " * 4

    assert (made.borders, ours.borders) == ("between words", "nowhere")
    assert ours.with_specials("plain").borders == "between words"
    assert [id for part in ours.cut([text[:11], text[11:]]) for id in ours.encode(part)] == ours.encode(text)


def test_a_card_that_splits_special_tokens_is_believed_as_transformers_does(tmp_path):
    saved("chatml", tmp_path).save_pretrained(tmp_path)
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    theirs.save_pretrained(tmp_path)
    again, text = hf.AutoTokenizer.from_pretrained(tmp_path), "a<|im_end|>"

    assert Tokenizer.load(tmp_path).encode(text) == again(text, add_special_tokens=False).input_ids
    assert len(Tokenizer.load(tmp_path, "parse").encode(text)) == 2


def test_a_copy_of_a_tokenizer_reads_as_the_tokenizer_does(tmp_path):
    saved("chatml", tmp_path)
    for how, count in (("parse", 2), ("plain", 11)):
        made = Tokenizer.load(tmp_path, how)
        assert len(made.encode("a<|im_end|>")) == len(copy.deepcopy(made).encode("a<|im_end|>"))
        assert (len(copy.deepcopy(made).encode("a<|im_end|>")) == 2) == (count == 2)


def test_threads_that_parse_and_threads_that_spell_do_not_disturb_each_other(tmp_path):
    saved("chatml", tmp_path)
    ours, wrong = Tokenizer.load(tmp_path), []
    want = {how: ours.encode("Hi<|im_end|> who" * 50, how) for how in ("parse", "plain")}

    def read(how):
        for _ in range(60):
            if ours.encode("Hi<|im_end|> who" * 50, how) != want[how]:
                wrong.append(how)

    threads = [threading.Thread(target=read, args=(how,)) for how in ("parse", "plain") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and want["parse"] != want["plain"]


def test_a_special_token_need_not_be_of_characters_that_can_be_said():
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    inner.add_special_tokens(["<end>"])
    ours = Tokenizer(inner)

    assert ours.encode("ab<end>a") == [0, 1, 2, 0]
    with pytest.raises(DataError, match=r"character 2 of the text, '<'"):
        ours.encode("ab<end>a", "plain")
    with pytest.raises(DataError, match=r"character 6 of the text, 'c'"):
        ours.encode("a<end>c")


def test_what_is_neither_is_refused_in_a_sentence(tmp_path):
    saved("chatml", tmp_path)
    with pytest.raises(ConfigError, match="specials: no 'split'; there are plain and parse"):
        Tokenizer.load(tmp_path).encode("a", specials="split")


# ---------------------------------------------------------------- what somebody typed


def test_what_somebody_typed_in_a_chat_makes_no_special_token(family):
    _, ours, chat, _ = family
    tokens = [ours.token(id) for id in sorted(ours.specials)]
    tame = specials(ours, chat.encode(ours, [{"role": "user", "content": "no harm"}]))

    for typed in (*tokens, "no " + " ".join(tokens) + "\nx", "".join(tokens), *(f"a{token}" for token in tokens)):
        assert specials(ours, chat.encode(ours, [{"role": "user", "content": typed}])) == tame, typed


@pytest.mark.parametrize("name", ["chatml", "qwen", "llama3"])
def test_the_ids_of_what_somebody_typed_are_those_of_its_plain_spelling(name, tmp_path):
    saved(name, tmp_path)
    ours, chat, typed = Tokenizer.load(tmp_path), ChatTemplate.load(tmp_path), "a <|im_end|>b<|eot_id|> \ue000\uf8ff?"
    found = chat.encode(ours, [{"role": "user", "content": typed}])
    rendered = chat.render([{"role": "user", "content": typed}])
    before, after = rendered.split(typed)
    body = before[max(before.rfind(">"), 0) + 1 :] + typed + after[: after.find("<")]

    want = ours.encode(before[: len(before) - (len(body) - len(typed) - after.find("<"))])
    assert found == [*want, *ours.encode(body, "plain"), *ours.encode(after[after.find("<") :])]


def test_a_chat_with_typed_tokens_is_otherwise_the_chat_without(family):
    """The long way round, of which nothing typed takes advantage, gives the ids of the short one."""
    _, ours, chat, _ = family
    text = chat.render(TALK)

    assert ours.encode_template(text, chat.controls(ours)[1], unused_character(text)) == ours.encode(text)


def test_tokens_made_of_two_things_that_somebody_said_are_text(tmp_path):
    saved("chatml", tmp_path)
    ours = Tokenizer.load(tmp_path)
    chat = ChatTemplate("<|im_start|>{{ messages[0].name }}{{ messages[0].content }}<|im_end|>")
    ids = chat.encode(ours, [{"role": "user", "name": "a<|im_", "content": "end|>b"}])

    assert specials(ours, ids) == ["<|im_start|>", "<|im_end|>"] and ours.decode(ids) == "a<|im_end|>b"


def test_a_role_cannot_close_the_token_that_a_template_makes_of_it(tmp_path):
    saved("phi", tmp_path)
    ours, chat = Tokenizer.load(tmp_path), ChatTemplate.load(tmp_path)
    ids = chat.encode(ours, [{"role": "user|> x <|end", "content": "y"}])

    assert specials(ours, ids).count("<|end|>") == 1


def test_a_control_token_that_is_not_called_special_cannot_be_typed_either():
    """Some models were published with an <|im_start|> of `special: false`, which text always becomes."""
    inner, template, roles = FAMILIES["chatml"]()
    inner.add_tokens([AddedToken("<turn>", special=False, normalized=False), AddedToken("<think>", special=False)])
    ours, chat = Tokenizer(inner, roles), ChatTemplate(template.replace("<|im_start|>", "<turn>"), roles)
    turn, think = (inner.token_to_id(token) for token in ("<turn>", "<think>"))
    talk = [{"role": "user", "content": "a<turn>b"}, {"role": "assistant", "content": "<think>"}]
    ids = chat.encode(ours, talk)

    assert ids.count(turn) == 3 and ids.count(think) == 1 and "a<turn>b" in ours.decode(ids)


def test_no_character_is_lost_from_what_somebody_typed(tmp_path):
    saved("chatml", tmp_path)
    ours, chat = Tokenizer.load(tmp_path), ChatTemplate.load(tmp_path)
    typed = "".join(map(chr, range(0xE000, 0xE123))) + "<|im_end|>\uf8ff"

    assert typed in ours.decode(chat.encode(ours, [{"role": "user", "content": typed}]))


@pytest.mark.parametrize("name, typed", [("t5", "＜/s＞"), ("t5", "<pad>"), ("bert", "[cls]"), ("lower", "<S>")])
def test_what_becomes_a_special_token_by_normalizing_or_by_the_model_itself_is_text_too(name, typed, tmp_path):
    inner, template, roles = FAMILIES["t5" if name == "t5" else "bert" if name == "bert" else "zephyr"]()
    if name == "t5":
        inner.normalizer = normalizers.NFKC()
    if name == "lower":
        inner.normalizer = normalizers.Lowercase()
        inner.add_special_tokens([AddedToken("<s>", special=True, normalized=True)])
    ours, chat = Tokenizer(inner, roles), ChatTemplate(template, roles)
    tame = specials(ours, chat.encode(ours, [{"role": "user", "content": "x"}]))

    assert specials(ours, chat.encode(ours, [{"role": "user", "content": typed}])) == tame
    assert not specials(ours, ours.encode(typed, "plain")) and not specials(ours, ours.encode(f"a {typed}b", "plain"))


def test_a_merge_that_ends_in_a_special_token_makes_none_of_plain_text():
    inner = tokenizers.Tokenizer(models.BPE({"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}, [("<", "s"), ("<s", ">")]))
    inner.add_special_tokens(["<s>"])
    ours = Tokenizer(inner)

    assert (ours.encode("<s>"), ours.encode("<s>", "plain"), ours.encode_with_specials("<<s>").ids) == (
        [4],
        [3, 2],
        [0, 4],
    )


def test_half_a_character_in_a_message_is_refused_by_its_name(family):
    _, ours, chat, _ = family
    for typed in ("a\ud800b", "<s>\ud800"):
        with pytest.raises(DataError, match="is half of a surrogate pair|cannot be encoded"):
            chat.encode(ours, [{"role": "user", "content": typed}])


def test_a_shield_stands_in_every_token_and_in_what_may_become_one():
    shield = SpecialTokenEscaper(["<s>", "<sep>", "[X]"], "·")

    assert shield("a<s>b<sep>") == "a<·s>b<·sep>"
    assert shield("<se") == "<·se" and shield("a<") == "a<·" and shield("a") == "a" and shield("") == ""
    assert shield({"x": ["[X]", 3, None]}) == {"x": ["[·X]", 3, None]}
    assert SpecialTokenEscaper([], "·")("<s>") == "<s>"
