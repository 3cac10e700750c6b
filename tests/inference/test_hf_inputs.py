"""A model called as those of `transformers` are: model(**tokenizer(...)), with the same logits."""

import pytest
import torch
import transformers as hf
from hub import encoder_cases, encoder_decoder_cases, image_cases
from hub.published import pair
from hub.text_folders import TEXTS
from parity.tolerance import OUTPUT, assert_near

import regard
from regard import config as C
from regard.config.errors import DataError
from regard.text.tokenizer import Tokenizer
from regard.text.trainers import train_tokenizer

CASES = encoder_cases.CASES | image_cases.CASES | encoder_decoder_cases.CASES


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """One tokenizer, as `transformers` has it."""
    folder = tmp_path_factory.mktemp("words")
    train_tokenizer(C.SubwordTokenizer(vocab=300), TEXTS).save(folder)
    made = hf.AutoTokenizer.from_pretrained(folder)
    made.pad_token = made.pad_token or made.eos_token or "!"
    return made


def gpt2(folder, vocab):
    torch.manual_seed(1)
    sizes = dict(vocab_size=vocab, n_positions=64, n_embd=36, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes)).eval()
    theirs.save_pretrained(folder)
    return theirs, regard.load(folder, device="cpu")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", [torch.long, torch.bool, torch.float32])
def test_what_a_tokenizer_gives_is_what_a_decoder_takes(words, tmp_path, side, kind):
    theirs, ours = gpt2(tmp_path, len(words))
    words.padding_side = side
    given = words(TEXTS, return_tensors="pt", padding=True)
    given.pop("token_type_ids", None)
    places = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        want = theirs(**given, position_ids=places).logits
        given["attention_mask"] = (mask := given["attention_mask"]).to(kind)
        got = ours(**given)

    assert not mask.all()
    assert_near(got[mask.bool()], want[mask.bool()], OUTPUT)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta"])
def test_an_encoder_takes_masks_and_token_types(name, tmp_path):
    of = pair(CASES[name], tmp_path / "model")
    theirs, ours = of.theirs, regard.load(tmp_path / "model", device="cpu")
    given = {"input_ids": torch.randint(5, 40, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    given["attention_mask"][0, 6:] = 0
    if name == "bert":
        given["token_type_ids"] = torch.tensor([[0] * 4 + [1] * 5] * 2)
    with torch.no_grad():
        want, got = theirs(**given)[0], ours(**given)
    mask = given["attention_mask"].bool()

    assert_near(got[mask], want[mask], OUTPUT)


def test_an_encoder_decoder_takes_both_sides_by_their_names(tmp_path):
    of = pair(CASES["t5"], tmp_path / "model")
    ours = regard.load(tmp_path / "model", device="cpu")
    given = {"input_ids": torch.randint(5, 40, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long),
             "decoder_input_ids": torch.randint(5, 40, (2, 4))}  # fmt: skip
    given["attention_mask"][1, 5:] = 0
    with torch.no_grad():
        assert_near(ours(**given), of.theirs(**given).logits, OUTPUT)
    del given["decoder_input_ids"]
    with pytest.raises(TypeError, match="decoder_input_ids: there are none"):
        ours(**given)


def test_pixels_and_towers_are_given_by_name(tmp_path):
    of = pair(CASES["clip"], tmp_path / "model")
    ours = regard.load(tmp_path / "model", device="cpu")
    c = of.theirs.config
    size = c.vision_config.image_size
    ids = torch.randint(3, 20, (2, 7))
    ids[:, -1] = c.text_config.eos_token_id
    given = {"pixel_values": torch.randn(2, 3, size, size), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        assert_near(ours(**given), of.theirs(**given).logits_per_image, OUTPUT)
    with pytest.raises(TypeError, match="no input 'pixels'"):
        ours(pixels=1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return regard.build(regard.preset("gpt2", depth=1, dim=32, heads=2, vocab=50)).eval()


IDS = torch.tensor([[1, 2, 3]])


@pytest.mark.parametrize("given, said", [
    (dict(input_ids=IDS, labels=IDS), "labels: a model gives logits and no loss; torch.nn.functional.cross_entropy"),
    (dict(input_ids=IDS, foo=IDS), "no input 'foo' for this model; there are ids, source"),
    (dict(input_ids=IDS, attention_maks=IDS), "'attention_maks' for this model; did you mean 'attention_mask'?"),
    (dict(input_ids=IDS, use_cache=True), "use_cache: a cache is made by model.cache(batch, capacity)"),
    (dict(input_ids=IDS, output_attentions=True), "regard.looking(model"),
    (dict(input_ids=[[1, 2]]), 'input_ids: list, expected a tensor; ask the tokenizer for return_tensors="pt"'),
    (dict(input_ids=IDS, attention_mask=torch.ones(1, 1, 3, 3)), "attention_mask: expected (batch, tokens), got (1, 1"),
    (dict(input_ids=IDS, token_type_ids=IDS), "token_type_ids: this model knows no segments"),
    (dict(ids=IDS, input_ids=IDS), "input_ids: it is given as ids as well"),
    (dict(attention_mask=IDS), "ids: there are none; give them first, or by name"),
])  # fmt: skip
def test_what_cannot_be_taken_is_one_sentence(model, given, said):
    with pytest.raises(TypeError) as problem:
        model(**given)

    assert said in str(problem.value)


def test_a_table_of_inputs_is_told_how_it_is_given(model, words):
    with pytest.raises(TypeError, match=r"ids: BatchEncoding is a table of inputs; write model\(\*\*inputs\)"):
        model(words("a cat", return_tensors="pt"))


def test_what_changes_nothing_is_taken(model):
    given = dict(use_cache=False, return_dict=True, labels=None, output_attentions=False, past_key_values=None,
                 token_type_ids=torch.zeros_like(IDS), attention_mask=torch.ones_like(IDS))  # fmt: skip

    assert torch.equal(model(input_ids=IDS, **given), model(IDS))


@pytest.mark.parametrize("ids, name", [([[1, 50, 99]], "50"), ([[0, -100]], "-100")])
def test_an_id_beyond_the_vocabulary_is_named(model, ids, name):
    with pytest.raises(DataError, match=f"ids: {name} is outside the model's vocabulary of 50, 0 to 49"):
        model(torch.tensor(ids))


def test_an_index_error_of_another_kind_stays_what_it_is(model):
    def broken(*given):
        raise IndexError("something else")

    model.head.register_forward_pre_hook(broken)
    with pytest.raises(IndexError, match="something else"):
        model(IDS)


@pytest.mark.slow
def test_names_are_no_break_in_a_graph(model):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.tensor([[1, 1, 0]])

    torch.testing.assert_close(compiled(input_ids=IDS, attention_mask=mask), model(IDS, real=mask.bool()))
    torch.testing.assert_close(compiled(IDS), model(IDS))


def test_a_tokenizer_of_transformers_becomes_one_of_ours(words, tmp_path):
    _, ours = gpt2(tmp_path, len(words))
    ours.tokenizer = words

    assert isinstance(ours.tokenizer, Tokenizer)
    assert [ours.tokenizer.encode(text) for text in TEXTS] == [words(text)["input_ids"] for text in TEXTS]
    assert isinstance(ours.generate("the cat", max_new_tokens=3, seed=0), str)
    ours.tokenizer = words.backend_tokenizer
    assert isinstance(ours.tokenizer, Tokenizer)
    with pytest.raises(TypeError, match="tokenizer: 'gpt2' is none; give a regard.text.Tokenizer"):
        ours.tokenizer = "gpt2"
