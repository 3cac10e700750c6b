"""Conversations say what is said after reading everything again, and read only what is new."""

import warnings

import pytest
import torch
from chat import chat_model
from generation import builders
from parity.tolerance import randomise

from regard import config as C
from regard import text
from regard.chat.conversation import Conversation
from regard.chat.formats import ContinuationFormat, TemplateFormat, find_chat_template, template_end_ids
from regard.config.errors import ConfigError, DataError, RunError
from regard.inference.load import load_model
from regard.text.chat_template import ChatTemplate

TURNS = ["Hello, you?", "Who?", "And why is it so", "ok"]
ALPHABET = "abcdefghijklm .,?!\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return chat_model.folder(tmp_path_factory.mktemp("chat") / "tiny")


@pytest.fixture(scope="module")
def model(place):
    return load_model(place, device="cpu").double()


@pytest.fixture
def talk(model):
    """A conversation that is greedy unless said."""

    def talk(system=None, **settings):
        form = TemplateFormat(model, find_chat_template(model))
        return Conversation(model, form, system=system, **{"max_new_tokens": 9, "temperature": 0.0} | settings)

    return talk


def said(conversation, message):
    return "".join(conversation.send(message))


def afresh(conversation):
    """Another that has not read what this one has."""
    other = Conversation(conversation.model, conversation.form)
    other.restore(conversation.table())
    return other


# ---------------------------------------------------------------- what is said


def test_every_turn_says_what_transformers_says_from_the_whole_chat(model, talk):
    theirs, tokens = chat_model.model(), chat_model.tokenizer()
    randomise(theirs)
    theirs = theirs.double().eval()
    conversation = talk(system="be brief")
    for turn in TURNS:
        asked = [*conversation.messages, {"role": "user", "content": turn}]
        ids = tokens.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        want = theirs.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=[2, 4], pad_token_id=0)

        assert said(conversation, turn) == tokens.decode(want[0, ids.shape[1] :], skip_special_tokens=True)
        assert conversation.answer.read + conversation.answer.kept == ids.shape[1]


def test_a_turn_reads_what_was_not_read_or_said_before(talk):
    conversation = talk(system="be brief")
    known = 0
    for turn in TURNS:
        said(conversation, turn)
        answer = conversation.answer

        assert answer.kept == known
        known += answer.read + answer.tokens - 1  # the last token was said, and nobody has read it


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.0, "seed": 5}, {"repetition_penalty": 1.4}, {"presence_penalty": 3.0}]
)
def test_drawn_turns_are_those_of_one_that_reads_all_again(talk, settings):
    conversation = talk(**settings)
    for turn in TURNS:
        fresh = afresh(conversation)

        assert said(conversation, turn) == said(fresh, turn)
        assert fresh.answer.kept == 0


def test_with_a_seed_a_conversation_comes_again_and_its_turns_differ(talk):
    talks = [talk(temperature=2.0, seed=3) for _ in range(2)]
    one, other = ([said(conversation, "Hello") for _ in range(3)] for conversation in talks)

    assert one == other and len(set(one)) == 3


def test_an_answer_ends_where_the_template_ends_it(model, talk):
    conversation = talk(logit_bias={4: 1e6})

    assert 4 not in model.generation_limits.ends
    assert said(conversation, "Hello") == "" and conversation.answer.reason == "eos"
    assert 4 not in model.generation_limits.ends


def test_the_end_of_answers_is_not_lent_to_the_model_which_another_thread_may_use(model, talk, monkeypatch):
    ends, begin = [], model.session

    def session(*texts, **settings):
        ends.append(model.generation_limits.ends)
        return begin(*texts, **settings)

    monkeypatch.setattr(model, "session", session)
    said(talk(), "Hello")

    assert ends and not any(4 in each for each in ends)


@pytest.mark.parametrize("name, end", [("chatml", "<|im_end|>"), ("zephyr", "</s>"), ("mistral", "</s>")])
def test_the_end_of_an_answer_is_found_in_the_template(place, name, end):
    tokens = text.Tokenizer.load(place)
    template = (chat_model.Path(__file__).parents[1] / "text" / "chats" / f"{name}.jinja").read_text()
    chat = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})

    assert template_end_ids(chat, tokens) == {chat_model.SPECIALS.index(end)}


def test_a_template_without_an_end_finds_none(place):
    assert (
        template_end_ids(
            ChatTemplate("{% for m in messages %}{{ m.content }}\n{% endfor %}"), text.Tokenizer.load(place)
        )
        == set()
    )


def test_a_space_that_the_template_writes_is_not_said_twice(model):
    mistral = (chat_model.Path(__file__).parents[1] / "text" / "chats" / "mistral.jinja").read_text()
    form = TemplateFormat(model, ChatTemplate(mistral, {"bos_token": "<s>", "eos_token": "</s>"}))
    asked = [{"role": "user", "content": "a"}]

    assert form.parse_reply(asked, " b c") == "b c"
    assert TemplateFormat(model, find_chat_template(model)).parse_reply(asked, " b c\n") == " b c\n"


# ---------------------------------------------------------------- a growing text


def growing(one, context=None):
    one.tokenizer = text.train_tokenizer(C.CharTokenizer(byte_fallback=False), [ALPHABET])
    one.context = context
    return one


def recurrent():
    return builders.lively(C.Transformer(embed=C.TextEmbedding(vocab=19), trunk=C.RecurrentStack(dim=12, depth=2)))


MODELS = {
    "rotary": lambda: builders.model(),
    "learned": lambda: builders.model(builders.POSITIONS["learned"]),
    "t5": lambda: builders.model(builders.POSITIONS["t5"]),
    "window": lambda: builders.model(mask="causal & window(5)"),
    "prefix": lambda: builders.model(mask="prefix(3)"),
    "linear": lambda: builders.model(attention=C.Attention(heads=3, head_dim=4, kernel="linear")),
    "recurrent": recurrent,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_growing_text_goes_on_as_generate_does(name):
    torch.manual_seed(3)
    one = growing(MODELS[name]())
    conversation, whole = Conversation(one, ContinuationFormat(one), max_new_tokens=7, seed=5), ""
    for turn, typed in enumerate(["abcd", "e f", "", "g"]):
        whole += typed
        want = one.generate(whole, max_new_tokens=7, seed=5 + turn)

        assert said(conversation, typed) == want
        whole += want


def test_a_ring_goes_on_and_what_it_has_written_over_is_read_again():
    torch.manual_seed(3)
    one = growing(builders.model(mask="causal & window(5)"))
    conversation = Conversation(one, ContinuationFormat(one), max_new_tokens=7, seed=5)
    first = said(conversation, "abcdefg" * 71)
    ring, second = conversation.memory.cache, said(conversation, "hij" * 99)

    assert ring.reach and conversation.answer.kept == 71 * 7 + 6
    assert second == one.generate("abcdefg" * 71 + first + "hij" * 99, max_new_tokens=7, seed=6)
    conversation.undo()
    assert said(conversation, "k") == one.generate("abcdefg" * 71 + first + "k", max_new_tokens=7, seed=6)
    assert conversation.answer.kept == 0


def test_a_growing_text_that_slides_reads_its_newest_part():
    torch.manual_seed(3)
    one = growing(builders.model(), context=23)
    conversation = Conversation(one, ContinuationFormat(one), max_new_tokens=40, seed=5)
    with pytest.warns(UserWarning, match="newest"):
        assert len(said(conversation, "abcd")) == 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        assert len(said(conversation, "abc" * 20)) == 40


def test_a_growing_text_has_no_system_message():
    one = growing(builders.model())

    with pytest.raises(ConfigError, match="system"):
        Conversation(one, ContinuationFormat(one), system="be brief")


def test_without_a_tokenizer_there_is_no_conversation():
    one = builders.model()

    for form in (lambda: ContinuationFormat(one), lambda: TemplateFormat(one, ChatTemplate("a"))):
        with pytest.raises(DataError, match="no tokenizer"):
            form()


# ---------------------------------------------------------------- stopping


def test_an_answer_that_is_stopped_stays_as_far_as_it_came(talk):
    conversation = talk(max_new_tokens=50, min_new_tokens=50)
    pieces = conversation.send("Hello")
    heard = next(pieces) + next(pieces)

    assert conversation.stop() and not conversation.stop()
    heard += "".join(pieces)
    assert conversation.exchanges == [("Hello", heard)] and conversation.answer.reason == "stopped"
    assert conversation.answer.tokens == 2
    fresh = afresh(conversation)
    assert said(conversation, "Who?") == said(fresh, "Who?") and conversation.answer.kept > 0


def test_an_answer_that_is_broken_off_stays_and_is_read_again(talk):
    conversation = talk(max_new_tokens=50, min_new_tokens=50)
    pieces = conversation.send("Hello")
    heard = next(pieces) + next(pieces)
    with pytest.raises(KeyboardInterrupt):
        pieces.throw(KeyboardInterrupt)

    assert conversation.exchanges == [("Hello", heard)] and conversation.answer.reason == "stopped"
    fresh = afresh(conversation)
    assert said(conversation, "Who?") == said(fresh, "Who?") and conversation.answer.kept == 0


def test_before_the_first_token_the_message_goes_with_the_answer(talk, monkeypatch):
    conversation = talk()
    said(conversation, "Hello")
    before, model = conversation.table(), conversation.model

    def interrupted(*_, **__):
        assert not conversation.stop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            said(conversation, "Who?")

    assert conversation.table() == before
    assert said(conversation, "Who?") == said(afresh_of(before, conversation), "Who?")


def afresh_of(table, conversation):
    other = Conversation(conversation.model, conversation.form)
    other.restore(table)
    return other


def test_what_damaged_weights_say_is_no_answer(place):
    broken = load_model(place, device="cpu")
    with torch.no_grad():
        broken.head.weight.fill_(torch.nan)
    conversation = Conversation(broken, TemplateFormat(broken, find_chat_template(broken)))

    with pytest.raises(RunError, match="damaged"):
        said(conversation, "Hello")
    assert conversation.exchanges == []


# ---------------------------------------------------------------- the window


def test_when_the_window_is_full_the_oldest_exchanges_go_and_the_system_stays(model, talk):
    conversation, began = talk(system="SYS", max_new_tokens=11), []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        for turn in range(13):
            said(conversation, f"m{turn}")
            began.append(model.tokenizer.decode(conversation.speech.session.texts[0]))

    assert len([note for note in notes if "oldest" in str(note.message)]) == 1
    assert all("SYS" in text for text in began)
    assert "m0" in began[0] and "m0\n" not in began[-1] and "m12" in began[-1]
    assert max(map(len, map(model.tokenizer.encode, began))) <= chat_model.LENGTH
    assert len(conversation.exchanges) == 13  # they are not read, and not lost


def test_after_a_cut_the_next_turns_read_only_what_is_new_again(talk):
    conversation, read = talk(max_new_tokens=11), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(13):
            said(conversation, f"m{turn}")
            read.append(conversation.answer.read)

    assert 1 <= len([count for count in read if count > 99]) <= 3  # all of it, after a cut
    assert len([count for count in read if count < 40]) >= 10


def test_an_answer_never_outgrows_the_window(talk):
    conversation = talk(max_new_tokens=10_000, min_new_tokens=10_000)
    said(conversation, "Hello")

    assert conversation.answer.tokens == chat_model.LENGTH - conversation.answer.read + 1
    assert conversation.answer.reason == "length"


def test_a_message_longer_than_the_window_is_refused_and_forgotten(talk):
    conversation = talk()
    said(conversation, "Hello")
    before = conversation.table()

    with pytest.raises(DataError, match=f"more than the {chat_model.LENGTH}"):
        said(conversation, "a" * 999)
    assert conversation.table() == before
    said(conversation, "Who?")
    assert conversation.answer.kept > 0


# ---------------------------------------------------------------- changing and keeping


def test_undo_is_as_if_it_had_never_been_said(talk):
    conversation, other = talk(), talk()
    said(conversation, "Hello"), said(other, "Hello")
    said(conversation, "Who?")

    assert conversation.undo()[0] == "Who?"
    assert conversation.table() == other.table()
    assert said(conversation, "ok") == said(other, "ok")


def test_again_is_another_answer_to_the_same_message(talk):
    conversation = talk(temperature=2.0, seed=3)
    said(conversation, "Hello")
    first = said(conversation, "Who?")
    second, third = ("".join(conversation.regenerate()) for _ in range(2))

    assert len({first, second, third}) == 3
    assert [question for question, _ in conversation.exchanges] == ["Hello", "Who?"]
    assert conversation.exchanges[-1][1] == third


@pytest.mark.parametrize("what", ["undo", "regenerate"])
def test_nothing_can_be_taken_back_before_something_was_said(talk, what):
    with pytest.raises(ConfigError, match="the conversation is empty"):
        getattr(talk(), what)()


def test_settings_count_from_the_next_answer_on_and_none_is_as_usual(talk):
    conversation = talk()
    conversation.set({"max_new_tokens": 3, "min_new_tokens": 3})
    said(conversation, "Hello")
    assert conversation.answer.tokens == 3

    conversation.set({"max_new_tokens": None})
    assert conversation.sampling([]).max_new_tokens == C.SamplingParams.max_new_tokens


@pytest.mark.parametrize("wrong", [{"temperature": float("nan")}, {"temperture": 1.0}, {"temperture": None},
                                   {"max_new_tokens": -1}, {"top_p": 3.0}, {"stop": [""]}], ids=str)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(talk, wrong):
    conversation = talk()
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        conversation.set(wrong)

    assert conversation.settings == {"max_new_tokens": 9, "temperature": 0.0}


def test_a_template_that_knows_no_system_refuses_it_at_once(model):
    chat = ChatTemplate("{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
                "{% for m in messages %}{{ m.content }}{% endfor %}")  # fmt: skip
    conversation = Conversation(model, TemplateFormat(model, chat))

    with pytest.raises(DataError, match="no system here"):
        conversation.set_system("be brief")
    assert conversation.system is None


@pytest.mark.parametrize("table", [
    None, [], {"messages": None}, {"messages": ["a"]}, {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "a"}]},
    {"messages": [], "settings": 3}, {"messages": [], "settings": {"self": 3}}, {"messages": [], "seed": -1},
    {"messages": [{"role": "user", "content": "ü"}, {"role": "assistant", "content": "a"}]},
], ids=str)  # fmt: skip
def test_what_is_no_conversation_is_refused_and_changes_nothing(talk, table):
    conversation = talk()
    said(conversation, "Hello")
    before = conversation.table()

    with pytest.raises((DataError, ConfigError)):
        conversation.restore(table)
    assert conversation.table() == before
