"""Decoders that read an encoder: one vector for all, or an alignment made by the state before each step."""

import pytest
import torch
from models.recurrent_models import ROOM, B, D, S, V, pair
from torch.testing import assert_close

import regard
from regard import config as C

T = 5  # tokens of a target
CELLS = ["rnn", "gru", "lstm"]
WAYS = [(cross, cell, depth) for cross in ("fixed", "additive") for cell in CELLS for depth in (1, 2)]
PATTERN = "trunk.0.cross.pattern"


def given():
    real = torch.arange(S) < torch.tensor([S, 4, 1])[:, None]
    return torch.randint(V, (B, T)), {"source": torch.randint(V, (B, S)), "source_real": real}


@pytest.mark.spec("S010")
@pytest.mark.spec("S127")
@pytest.mark.parametrize("cell", CELLS)
def test_the_score_is_asked_by_the_state_before_the_step(cell):
    """v · tanh(W s_t-1 + U h_j), its softmax, the context into the cell: Bahdanau et al. 2015, written out."""
    made, (ids, source) = pair(cell, depth=1), given()
    block, x = made.trunk.blocks[0], made.embed(ids).x
    memory, real = made.encoder(made.embed(source["source"], real=source["source_real"])).x, source["source_real"]
    mean = (memory * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    state = torch.tanh(mean @ block.begin.weight.T + block.begin.bias)
    kept, looks, out = torch.zeros(B, D), [], []

    for t in range(T):
        asked = state @ block.ask.weight.T + block.ask.bias
        score = torch.tanh(asked[:, None] + memory @ block.offer.weight.T) @ block.score.weight[0]
        look = score.masked_fill(~real, -torch.inf).softmax(-1)
        context = (look[..., None] * memory).sum(1)
        into = torch.cat([x[:, t], context], -1)
        state, kept = block.cell(into, (state, kept)) if cell == "lstm" else (block.cell(into, state), kept)
        looks.append(look)
        out.append(torch.tanh(torch.cat([state, context, x[:, t]], -1) @ block.out.weight.T + block.out.bias))
    with regard.looking(made, PATTERN, "trunk.final") as seen:
        made(ids, **source)

    assert_close(seen[PATTERN][:, 0], torch.stack(looks, 1))
    assert_close(seen["trunk.final"], torch.stack(out, 1))


@pytest.mark.spec("S010")
@pytest.mark.parametrize("cell", CELLS)
def test_weights_over_the_source_sum_to_one_and_padding_gets_none(cell):
    made, (ids, source) = pair(cell), given()

    with regard.looking(made, PATTERN) as seen:
        made(ids, **source)

    look = seen[PATTERN]
    assert look.shape == (B, 1, T, S)
    assert_close(look.sum(-1), torch.ones(B, 1, T))
    assert not look[~source["source_real"][:, None, None].expand_as(look)].any()


@pytest.mark.parametrize("cross, cell, depth", WAYS)
def test_a_source_is_read_as_it_is_alone(cross, cell, depth):
    made, (ids, source) = pair(cell, cross, depth), given()

    together = made(ids, **source)

    for row in range(B):
        alone = source["source"][row, source["source_real"][row]][None]
        assert_close(together[row : row + 1], made(ids[row : row + 1], source=alone))


@pytest.mark.parametrize("cross, cell, depth", WAYS)
def test_telling_word_by_word_is_telling_at_once(cross, cell, depth):
    made, (ids, source) = pair(cell, cross, depth), given()
    cache = made.cache(B, ROOM)

    parts = [made(ids[:, :2], **source, cache=cache), *(made(ids[:, t : t + 1], cache=cache) for t in range(2, T))]

    assert_close(torch.cat(parts, 1), made(ids, **source))


@pytest.mark.parametrize("cross", ["fixed", "additive"])
def test_beams_score_what_the_model_says(cross):
    made, (_, source) = pair("gru", cross), given()

    found = made.beam_search([[1], [1], [1]], max_new_tokens=4, num_beams=3, length_penalty=0.0, **source)

    for row, best in enumerate(found):
        whole, one = torch.tensor([[1, *best[0].ids]]), {name: table[row : row + 1] for name, table in source.items()}
        logs = made(whole[:, :-1], **one).detach().log_softmax(-1)[0].gather(-1, whole[0, 1:, None])
        assert best[0].score == pytest.approx(float(logs.sum()), abs=1e-4)


def test_a_fixed_vector_is_all_that_a_decoder_knows():
    """Two sources whose last vectors agree are one to it, whatever else they say."""
    made, (ids, source) = pair("gru", "fixed"), given()
    memory = made.encoder(made.embed(source["source"])).x
    other = torch.cat([torch.randn_like(memory[:, :-1]), memory[:, -1:]], 1)

    told = [made.trunk(made.embed(ids), memory=regard.core.tokens.sequence_tokens(each)).x for each in (memory, other)]

    assert_close(*told, rtol=0, atol=0)


def test_who_edits_the_alignment_says_where_to_look():
    made, (ids, source) = pair("gru"), given()

    def first(name, look):
        return torch.nn.functional.one_hot(torch.zeros_like(look[..., 0], dtype=torch.long), S).to(look)

    with regard.looking(made, PATTERN, edit=first):
        edited = made(ids, **source)

    alone = made(ids, source=source["source"][:, :1])  # of which the encoder's other way would know nothing
    assert (edited - made(ids, **source)).abs().amax() > 1e-3
    assert edited.shape == alone.shape
    with regard.looking(made, PATTERN, edit=lambda name, look: look):
        assert_close(made(ids, **source), made(ids, **source), rtol=0, atol=0)


def test_watching_the_alignment_changes_no_bit():
    made, (ids, source) = pair("lstm"), given()

    with regard.looking(made, PATTERN):
        watched = made(ids, **source)

    assert_close(watched, made(ids, **source), rtol=0, atol=0)


@pytest.mark.parametrize("cross", ["fixed", "additive"])
def test_a_saved_pair_says_the_same(cross, tmp_path):
    made, (ids, source) = pair("lstm", cross), given()
    made.save(tmp_path / "kept")

    assert_close(regard.load(tmp_path / "kept", device="cpu")(ids, **source), made(ids, **source), rtol=0, atol=0)


def test_a_transformer_may_read_what_an_lstm_wrote():
    encoder = C.Encoder(trunk=C.RecurrentStack(cell="lstm", dim=D, depth=1, mask="full", dropout=0.0))
    trunk = C.Trunk(dim=D, depth=1, mask="causal", cross="last", attention=C.Attention(heads=3))
    made = regard.build(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk, encoder=encoder)).eval()
    ids, source = given()

    assert made(ids, **source).shape == (B, T, V)


@pytest.mark.parametrize("changes, says", [
    ({"cross": "additive", "cell": "cnn"}, "cross: a recurrent decoder is causal"),
    ({"cross": "fixed", "mask": "full"}, "cross: a recurrent decoder is causal"),
    ({"cell": "gru", "dilation": 2}, "kernel_size, dilation: they are for cell 'cnn'"),
    ({"mask": "full", "dim": 15}, "dim: 15 is odd"),
    ({"mask": "full", "cell": "cnn", "kernel_size": 4}, "kernel_size: 4 is even"),
    ({"dropout": 1.0}, "dropout: 1.0 is not a rate"),
    ({"depth": 0}, "depth: 0 is less than 1"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        C.RecurrentStack(**changes)


def test_a_fixed_vector_needs_an_encoder_that_reads_to_the_end():
    both = C.Encoder(trunk=C.RecurrentStack(dim=D, mask="full"))

    with pytest.raises(ValueError, match=r"encoder\.trunk\.mask: a fixed vector"):
        C.Transformer(trunk=C.RecurrentStack(dim=D, cross="fixed"), encoder=both)
