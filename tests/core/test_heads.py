"""What is read from a trunk: logits over a vocabulary, one vector for a sequence, models compared by theirs."""

import pytest
import torch
import torch.nn.functional as F
from core.builders import DIM, VOCAB, B, ids_of, model, padded, parameters, trunk
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.tolerance import assert_near, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.core.tokens import sequence_tokens
from regard.models.dual_encoder import DualEncoder

N = 7
amounts = st.integers(0, 4)


# ---------------------------------------------------------------- vocabulary


@pytest.mark.spec("S047")
def test_logits_become_probabilities_whose_rows_sum_to_one():
    probabilities = model()(ids_of(B, N)).softmax(-1)

    assert probabilities.shape == (B, N, VOCAB)
    assert_near(probabilities.sum(-1), torch.ones(B, N), 1e-6)


@pytest.mark.spec("S047")
def test_a_tied_head_is_the_embedding_itself():
    one = model(head=C.LMHead(tied=True))
    before = one.head.weight.clone()
    one(ids_of(B, N)).sum().backward()
    torch.optim.SGD(one.parameters(), 0.1).step()

    assert one.head.weight is one.embed.tokens.weight
    assert not torch.equal(before, one.embed.tokens.weight)
    assert parameters(one) == parameters(model(head=C.LMHead(tied=False))) - VOCAB * DIM


def test_an_output_scale_multiplies_the_logits_and_not_their_bias():
    one = model(head=C.LMHead(tied=True, bias=True, scale=0.5))
    twin = model(head=C.LMHead(tied=True, bias=True))
    ids = ids_of(B, N)

    assert_near(one(ids) - one.head.bias, 0.5 * (twin(ids) - twin.head.bias))


def test_an_embedding_scale_multiplies_the_vectors_and_not_the_positions():
    said = dict(position=C.SinusoidalPosition(), head=C.LMHead(tied=True))
    one, twin = model(embed=C.TextEmbedding(vocab=VOCAB, scale=3.0), **said), model(**said)
    with torch.no_grad():
        tokens, positions = twin.embed(ids_of(B, N)), None
        positions = twin.trunk.stem(tokens) - tokens.x

    assert_near(one.trunk.stem(tokens.with_vectors(3 * tokens.x)), 3 * tokens.x + positions)


def test_an_embedding_of_another_width_is_mapped_to_the_width_of_the_trunk():
    one = model(embed_dim=7, head=C.LMHead(tied=True, transform=True))

    assert one.embed.tokens.weight.shape == (VOCAB, 7) and one.trunk.project.weight.shape == (DIM, 7)
    assert one(ids_of(B, N)).shape == (B, N, VOCAB)


def test_a_tied_head_over_another_width_is_refused():
    with pytest.raises(ValueError, match="head.tied: the embedding is 7 wide and the trunk 12; set head.transform"):
        model(embed_dim=7, head=C.LMHead(tied=True))


def test_segments_are_added_to_the_tokens():
    one = model(embed=C.TextEmbedding(vocab=VOCAB, segments=3))
    ids, segment = ids_of(B, N), torch.randint(3, (B, N))
    x = one.embed(ids, segment=segment).x

    assert_near(x, one.embed.tokens(ids) + one.embed.segments(segment), 0)
    assert_near(one(ids), one(ids, segment=torch.zeros_like(ids)), 0)


# ---------------------------------------------------------------- one vector for a sequence

END = 2


def pooled(place: str, **rest: object) -> Transformer:
    embed = C.TextEmbedding(vocab=VOCAB, pad_id=0, eos_id=END)
    return model(head=C.PoolingHead(pooling=place, **rest), embed=embed, position=C.SinusoidalPosition())


@pytest.mark.parametrize("place", ["cls", "mean", "last", "eos"])
@given(left=amounts, right=amounts)
@settings(max_examples=6)
@torch.no_grad()
def test_a_pooled_vector_does_not_notice_padding(place, left, right):
    torch.manual_seed(0)
    one, ids = pooled(place), ids_of(B, N, low=3)
    ids[0, 4], ids[1, 5] = END, END
    wide, _, _ = padded(ids, left, right, fill=0)

    assert_near(one(wide), one(ids))


@pytest.mark.spec("S054")
@pytest.mark.parametrize("place", ["cls", "mean", "last", "eos"])
@torch.no_grad()
def test_a_pooled_vector_is_read_from_its_place(place):
    one, ids = pooled(place), ids_of(B, N, low=3)
    ids[0, 4], ids[1, 5], ids[1, 6] = END, END, END  # the first end counts
    vectors = one.trunk(one.embed(ids)).x
    want = {"cls": vectors[:, 0], "mean": vectors.mean(1), "last": vectors[:, -1], "eos": vectors[[0, 1], [4, 5]]}

    assert_near(one(ids), want[place])


@pytest.mark.spec("S054")
@torch.no_grad()
def test_a_pooled_vector_may_pass_berts_dense_layer_and_a_last_map():
    one, ids = pooled("cls", dense=True, out=5), ids_of(B, N)
    first = one.trunk(one.embed(ids)).x[:, 0]

    assert_near(one(ids), one.head.out(one.head.dense(first).tanh()), 0)


def test_tokens_that_do_not_say_where_they_end_cannot_be_pooled_there():
    with pytest.raises(ValueError, match="head.pooling 'eos': these tokens do not carry the end of the text"):
        pooled("eos")(sequence_tokens(torch.randn(B, N, DIM)))


# ---------------------------------------------------------------- towers


def towers(count: int = 2, out: int = 5) -> DualEncoder:
    tower = C.Transformer(
        embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk(), head=C.PoolingHead(pooling="mean", out=out)
    )
    made = DualEncoder(C.DualEncoder(towers=(tower,) * count, initial_scale=7.0)).eval()
    randomise(made.towers)
    return made


@torch.no_grad()
def test_towers_give_cosines_times_their_scale():
    pair, left, right = towers(), ids_of(3, N), ids_of(4, 5)
    first, second = pair.towers[0](left), pair.towers[1](right)
    cosines = F.cosine_similarity(first[:, None], second[None], dim=-1)

    assert pair(left, right).shape == (3, 4)
    assert_near(pair(left, right), 7.0 * cosines)
    assert pair(left, right).abs().max() <= 7.0 + 1e-5


@torch.no_grad()
def test_a_tower_set_beside_itself_agrees_with_itself_most():
    pair, ids = towers(), ids_of(5, N)
    pair.towers[1].load_state_dict(pair.towers[0].state_dict())

    assert_near(pair(ids, ids).diagonal(), torch.full((5,), 7.0))
    assert pair(ids, ids).argmax(-1).tolist() == [0, 1, 2, 3, 4]


def test_the_scale_of_towers_learns():
    pair, ids = towers(), ids_of(3, N)
    pair(ids, ids).square().sum().backward()

    assert pair.scale.grad != 0 and float(pair.scale.detach().exp()) == pytest.approx(7)


def test_towers_want_as_many_inputs_as_they_are():
    with pytest.raises(ValueError, match="shorter"):
        towers(3)(ids_of(2, N), ids_of(2, N))


@pytest.mark.parametrize(
    "heads, sentence",
    [
        ((), "at least two"),
        ((C.PoolingHead(),), "at least two"),
        ((C.NoHead(), C.NoHead()), "each with a head of kind 'pooling'"),
        ((C.PoolingHead(), C.LMHead()), "each with a head of kind 'pooling'"),
        ((C.PoolingHead(out=3), C.PoolingHead(out=4)), r"\[3, 4\] wide; set head.out to one width for all"),
        ((C.PoolingHead(out=3), C.PoolingHead()), rf"\[3, {DIM}\] wide; set head.out to one width for all"),
    ],
)
def test_towers_that_cannot_be_compared_are_refused(heads, sentence):
    each = [C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk(), head=head) for head in heads]

    with pytest.raises(ValueError, match=f"^towers: .*{sentence}"):
        DualEncoder(C.DualEncoder(towers=tuple(each)))
