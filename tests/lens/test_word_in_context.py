"""A word in context: where nothing of the context is in a vector the cosine is 1, and where it is it is not."""

import pytest
import torch
from lens.small_models import SHAPES
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.inference.model import Model
from regard.lens import compare_contexts, context_similarity
from regard.text import train_tokenizer

TEXTS = ["a bank by the river", "the bank has money", "he swam to the far bank of it"]
READERS = [name for name in SHAPES if name not in ("vit", "stages", "pixels", "towers", "translator", "t5",
                                                   "layerwise", "captioner")]  # fmt: skip


def reader(kind: str = "bpe", **rest) -> Model:
    c = C.CharTokenizer() if kind == "char" else C.SubwordTokenizer(vocab=300 + 300 * (kind != "bpe"), kind=kind)
    tokenizer = train_tokenizer(c, [" ".join(TEXTS) + " The Bank"] * 3)
    trunk = C.Trunk(**dict(dim=12, depth=3, mask="causal", attention=C.Attention(heads=3), dropout=C.NO_DROPOUT) | rest)
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=trunk)).eval()
    model.tokenizer = tokenizer
    return model


# ---------------------------------------------------------------- laws


@pytest.mark.spec("S077")
@pytest.mark.parametrize("name", READERS)
def test_the_same_token_at_the_same_place_begins_alike_and_its_context_moves_it(name):
    model, (rows,) = SHAPES[name].model(), SHAPES[name].reads()
    first, second = rows[0].clone(), (rows[0] * 5 + 3) % 22 + 1
    first[:] = torch.where(first == 9, 10, first)
    second[:] = torch.where(second == 9, 10, second)
    first[6] = second[6] = 9
    found = compare_contexts(model, first, second, 9)

    last = "attn" if name == "attention only" else "mlp"
    assert found.places == ("embed", *(f"{i}.{last}" for i in range(model.c.trunk.depth)))
    assert found.cosine[0] == pytest.approx(1, abs=1e-6)
    assert bool((found.cosine[1:] < 0.999).all())


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("encoder", "shared")])
def test_what_comes_after_a_word_changes_nothing_of_it_in_a_decoder(name):
    model, (rows,) = SHAPES[name].model(), SHAPES[name].reads()
    first, second = rows[0].clone(), rows[0].clone()
    first[:5], second[:5], second[6:] = 4, 4, 3
    first[5] = second[5] = 21
    first[6:] = 2

    assert_close(compare_contexts(model, first, second, 21).cosine, torch.ones(model.c.trunk.depth + 1))


@pytest.mark.parametrize("position", [C.NoPosition(), C.RotaryPosition(), C.AlibiPosition()], ids=lambda c: c.kind)
def test_where_positions_are_not_added_the_embedding_is_the_same_at_any_place(position):
    model = reader(position=position)
    found = compare_contexts(model, "a bank", "he swam to the far bank", "bank")

    assert found.cosine[0] == pytest.approx(1, abs=1e-6) and float(found.cosine[-1]) < 0.9999


@torch.no_grad()
def test_a_word_of_several_tokens_has_their_mean():
    model = reader("char")
    place = TEXTS[0].index("bank")
    vectors = []
    for text, at in ((TEXTS[0], place), (TEXTS[1], 4)):
        with looking(model, "trunk.1.residual") as seen:
            model(torch.tensor([model.tokenizer.encode(text)]))
        vectors.append(seen["trunk.1.residual"][0, at : at + 4].mean(0))

    wanted = torch.nn.functional.cosine_similarity(*vectors, dim=0)
    assert_close(compare_contexts(model, *TEXTS[:2], "bank").cosine[2], wanted)


@torch.no_grad()
def test_the_baseline_is_the_mean_cosine_of_the_other_tokens():
    model, first, second = SHAPES["decoder"].model(), torch.tensor([1, 2, 9, 4]), torch.tensor([5, 9, 7])
    found = compare_contexts(model, first, second, 9)
    vectors = []
    for ids in (first, second):
        with looking(model, "trunk.0.residual") as seen:
            model(ids[None])
        vectors.append(seen["trunk.0.residual"][0, ids != 9])
    pairs = torch.nn.functional.cosine_similarity(vectors[0][:, None], vectors[1][None], dim=-1)

    assert_close(found.baseline[1], pairs.mean())


def test_many_contexts_give_each_pair_what_it_has_alone():
    model = reader()
    found = context_similarity(model, TEXTS, "bank")

    assert found.cosine.shape == (4, 3, 3)
    for i in range(3):
        for j in range(i):
            assert_close(found.cosine[:, i, j], compare_contexts(model, TEXTS[j], TEXTS[i], "bank").cosine)
    assert_close(found.cosine, found.cosine.mT)
    assert torch.equal(found.at("1.mlp"), found.cosine[2])
    assert len(found.table().rows) == 4 and found.picture().values.shape == (3, 3)


def test_halves_are_places_too():
    found = compare_contexts(reader(), *TEXTS[:2], "bank", halves=True)

    assert found.places[:3] == ("embed", "0.attn", "0.mlp") and len(found.cosine) == 7
    assert found.picture().columns == found.places and "'bank'" in str(found)


# ---------------------------------------------------------------- kinds of models


@pytest.mark.parametrize("name", ["translator", "t5", "layerwise"])
def test_of_an_encoder_decoder_the_encoder_is_read(name):
    model = SHAPES[name].model()
    found = compare_contexts(model, torch.tensor([3, 4, 9, 5]), torch.tensor([6, 7, 9, 8]), 9)

    assert len(found.cosine) == 3 and found.cosine[0] == pytest.approx(1, abs=1e-6) and float(found.cosine[2]) < 0.999


@pytest.mark.spec("S077")
def test_the_bank_of_a_river_and_that_of_money_have_a_cosine_for_each_layer_of_a_trained_model():
    import regard

    found = compare_contexts(regard.load("en-fr"), "The bank of the river.", "The bank has money.", "bank")

    assert found.places[0] == "embed" and len(found.table().rows) == 1 + 5  # the layers of the encoder
    assert float(found.cosine[0]) == pytest.approx(1) and float(found.cosine[-1]) < 0.95


def test_an_encoder_reads_texts_between_its_special_tokens():
    model = reader("wordpiece", mask="full")
    model.task = C.Classification(classes=("a", "b"))  # trained here, so its special tokens stand around a text
    framed, own = model.encode_inputs(TEXTS[0])["ids"][0], model.tokenizer.encode(TEXTS[0])
    found = compare_contexts(model, TEXTS[0], framed.clone(), "bank", index=0)

    assert len(framed) == len(own) + 2 and framed[0] != own[0]
    assert_close(found.cosine, torch.ones(4))


# ---------------------------------------------------------------- which word


def test_a_word_is_a_whole_word_in_capitals_or_not_and_one_of_several_is_chosen():
    model = reader("char")
    text = "The Bank by the bank of the banks"

    with pytest.raises(DataError, match=r"'bank': it occurs 2 times in .*; say which one with index=0 to 1$"):
        compare_contexts(model, text, "a bank", "bank")
    both = compare_contexts(model, text, text, "bank", index=(0, 1)).cosine
    assert not torch.allclose(both, torch.ones(4))
    assert_close(compare_contexts(model, text, text, "bank", index=1).cosine, torch.ones(4))


@pytest.mark.parametrize(
    ("first", "word", "rest", "words"),
    [
        ("a river", "bank", {}, "'bank': it does not occur in 'a river'"),
        ("banks", "bank", {}, "does not occur"),
        ("a bank", "bank", {"index": 1}, "index 1: 'bank' occurs 1 times"),
        (torch.tensor([1, 2]), 3, {}, "'3': it does not occur in the ids"),
        (torch.tensor([[1, 2], [2, 1]]), 1, {}, "2 rows of ids"),
    ],
)
def test_a_word_that_is_not_there_is_refused_in_a_sentence(first, word, rest, words):
    with pytest.raises(DataError, match=words):
        compare_contexts(reader("char"), first, "a bank" if isinstance(word, str) else torch.tensor([1]), word, **rest)


def test_models_and_lists_that_do_not_fit_are_refused_in_a_sentence():
    model = reader()
    with pytest.raises(DataError, match="at least two"):
        context_similarity(model, TEXTS[:1], "bank")
    with pytest.raises(ConfigError, match="index: 1 for 3 texts"):
        context_similarity(model, TEXTS, "bank", index=[0])
    with pytest.raises(ConfigError, match="no tokenizer"):
        compare_contexts(SHAPES["decoder"].model(), torch.tensor([1]), torch.tensor([1]), "bank")
    with pytest.raises(ConfigError, match="place '9.mlp'"):
        context_similarity(model, TEXTS, "bank").at("9.mlp")
    with pytest.raises(ConfigError, match="given an image or a sound"):
        compare_contexts(SHAPES["vit"].model(), torch.randn(1, 3, 6, 6), torch.randn(1, 3, 6, 6), 3)
