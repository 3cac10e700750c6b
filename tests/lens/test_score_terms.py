"""Four terms of a score: they sum to what the model computes, and each is what is left where the others are nothing."""

import copy

import pytest
import torch
from lens.small_models import HEADS, SHAPES, text, translator
from parity.tolerance import randomise
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.lens import decompose_scores, read_prompt

IDS = torch.tensor([[5, 3, 9, 3, 1, 7, 2]])
UNTIED = C.LMHead(tied=False)
ADDED, QK = C.LearnedPosition(length=31), C.SinusoidalPosition(mode="qk")
KINDS = {
    "added, pre-norm": text(mask="causal", position=ADDED),
    "added, post-norm": text(position=C.SinusoidalPosition(), norm_placement="post"),
    "concatenated": text(position=C.LearnedPosition(length=31, mode="concat", dim=4), head=UNTIED),
    "one-hot": text(position=C.OneHotPosition(length=7), head=UNTIED),
    "projected after a norm": text(position=ADDED, embed_dim=7, embed_norm=True, head=UNTIED),
    "root mean square": text(position=ADDED, norm=C.Norm(kind="rms", offset=1.0)),
    "normed q and k": text(position=ADDED, attention=C.Attention(
        heads=6, kv_heads=3, head_dim=4, bias=("q",), qk_norm=C.Norm(kind="rms"))),
    "cosine": text(position=ADDED, attention=C.Attention(heads=HEADS, score="cosine")),
    "one without a projection": text(position=ADDED, attention=C.Attention(heads=HEADS, projections=("q", "v", "out"))),
    "two streams": text(position=ADDED, kind="reversible"),
    "on q and k alone": text(mask="causal", position=QK),
}  # fmt: skip


def made(make, seed=0):
    torch.manual_seed(seed)
    model = make().double().eval()
    randomise(model)
    return model


def recorded(model, prompt, where):
    with torch.no_grad(), looking(model, f"{where}.scores") as seen:
        prompt.run(model)
    return seen[f"{where}.scores"][0]


# ---------------------------------------------------------------- the sum


@pytest.mark.spec("S016")
@pytest.mark.parametrize("kind", KINDS)
def test_four_terms_sum_to_the_score_of_the_model(kind):
    model = made(KINDS[kind])
    for where in ("trunk.0.attn", "trunk.1.attn") if kind == "on q and k alone" else ("trunk.0.attn",):
        found = decompose_scores(model, IDS, where)
        theirs = recorded(model, read_prompt(model, IDS), where)
        seen = found.visible.expand_as(theirs)

        assert_close(found.scores[seen], theirs[seen], atol=1e-10, rtol=0)
        assert found.error < 1e-10 and found.visible.sum() == (28 if "causal" in str(model.c.trunk.mask) else 49)
        assert_close(found.shares().sum(1), torch.ones(len(theirs)).double())
        assert found.terms.abs().amax((1, 2, 3)).min() > 1e-3  # none of the four is nothing


@pytest.mark.spec("S016")
@pytest.mark.parametrize("name", ["decoder", "encoder", "translator", "vit", "pixels"])
def test_every_shape_with_absolute_positions_has_four_terms(name):
    shape = SHAPES[name]
    model = shape.model()
    given = {key: table[1:2] for key, table in shape.named.items()}
    prompt = read_prompt(model, shape.reads()[0][1:2], **given)
    found, theirs = decompose_scores(model, prompt), recorded(model, prompt, "trunk.0.attn")

    assert found.error < 1e-5 and len(found.labels) == len(found.visible)
    assert_close(found.scores[:, found.visible], theirs[:, found.visible].double(), atol=1e-5, rtol=0)


def test_an_encoder_that_reads_a_source_has_its_own():
    model = made(translator({"position": C.SinusoidalPosition()}))
    prompt = read_prompt(model, IDS, source=IDS[:, :4])
    found = decompose_scores(model, prompt, "encoder.0.attn")
    theirs = recorded(model, prompt, "encoder.0.attn")

    assert_close(found.scores, theirs, atol=1e-10, rtol=0)
    assert found.labels == ("5", "3", "9", "3")


# ---------------------------------------------------------------- each term


def plain():
    """Nothing between the embedding and the scores but the projections, which have no biases."""
    model = made(text(position=ADDED, norm_placement="post", attention=C.Attention(heads=HEADS, bias=("v",))))
    return model, decompose_scores(model, IDS)


def without(model, table):
    cut = copy.deepcopy(model)
    with torch.no_grad():
        dict(cut.named_parameters())[table].zero_()
    return recorded(cut, read_prompt(cut, IDS), "trunk.0.attn")


@pytest.mark.spec("S016")
def test_without_positions_a_score_is_xx_and_without_content_it_is_pp():
    model, found = plain()

    assert_close(found.terms[0], without(model, "trunk.positions.0.tables.0"), atol=1e-10, rtol=0)
    assert_close(found.terms[3], without(model, "embed.tokens.weight"), atol=1e-10, rtol=0)


def test_where_queries_and_keys_change_places_xp_is_px():
    model, found = plain()
    turned = copy.deepcopy(model)
    parts = turned.trunk.blocks[0].attn.qkv.named_parts()
    with torch.no_grad():
        for mine, theirs in (("q", "k"), ("k", "q")):
            parts[mine][0].copy_(model.trunk.blocks[0].attn.qkv.named_parts()[theirs][0])
    other = decompose_scores(turned, IDS)

    assert_close(other.terms[[0, 2, 1, 3]].mT, found.terms, atol=1e-10, rtol=0)


def test_a_head_that_goes_by_place_alone_and_one_that_goes_by_content_have_all_their_share_there():
    model = made(text(position=ADDED, attention=C.Attention(heads=HEADS, bias=())))
    with torch.no_grad():
        model.embed.tokens.weight.fill_(1.0)
    by_place = decompose_scores(model, IDS)
    with torch.no_grad():
        model.embed.tokens.weight.normal_()
        model.trunk.position.tables[0].zero_()
    by_content = decompose_scores(model, IDS)

    assert_close(by_place.shares()[:, [0, 2]].sum(1), torch.zeros(HEADS).double(), atol=1e-10, rtol=0)  # keys alike
    assert_close(by_content.shares(), torch.tensor([[1.0, 0, 0, 0]] * HEADS).double(), atol=1e-10, rtol=0)


# ---------------------------------------------------------------- what is shown


def test_a_query_shows_its_keys_with_terms_scores_and_weights_that_belong_together():
    model = made(text(mask="causal", position=ADDED))
    found = decompose_scores(model, IDS)
    table = found.query_table(head=1, query=3)
    scores = torch.tensor([row[-2] for row in table.rows])

    assert table.columns == ("key", "at", "xx", "xp", "px", "pp", "score", "attention")
    assert [row[:2] for row in table.rows] == [("5", 0), ("3", 1), ("9", 2), ("3", 3)]
    assert_close(torch.tensor([row[-1] for row in table.rows]), scores.softmax(0), atol=1e-6, rtol=0)
    assert_close(torch.tensor([sum(row[2:6]) for row in table.rows]), scores)
    assert "within" in str(found) and len(found.table().rows) == HEADS
    assert found.picture().values.shape == (HEADS, 4)
    assert found.picture(head=2, term="pp").values[0, 1].isnan()
    assert found.picture(head=0).values.shape == (7, 7)


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [
        ("t5", "trunk.0.attn", "position 't5' puts no positions into the vectors"),
        ("windowed decoder", "trunk.0.attn", "position 'rotary' puts no positions"),
        ("captioner", "encoder.0.attn", "position 'none' puts no positions"),
        ("decoder", "trunk.1.attn", "only the scores of the first layer have four terms: trunk.0.attn"),
        ("decoder", "trunk.9.attn", "no attention 'trunk.9.attn'"),
        ("translator", "trunk.0.cross", "cross-attention is given no positions"),
        ("towers", "towers.0.trunk.0.attn", "no stack of blocks"),
    ],
)
def test_what_has_no_four_terms_is_refused_in_a_sentence(name, where, words):
    with pytest.raises(ConfigError, match=words) as refused:
        decompose_scores(SHAPES[name].model(), IDS, where)
    assert "\n" not in str(refused.value)


def test_a_head_a_query_or_a_term_that_is_not_there_is_refused():
    found = decompose_scores(SHAPES["decoder"].model(), IDS)

    for ask in (lambda: found.query_table(head=3), lambda: found.query_table(query=7), lambda: found.picture(head=-1),
                lambda: found.picture(0, "xxx")):  # fmt: skip
        with pytest.raises(ConfigError):
            ask()
    with pytest.raises(DataError, match="2 rows"):
        decompose_scores(SHAPES["decoder"].model(), torch.ones(2, 5, dtype=torch.long))
