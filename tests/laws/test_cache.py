"""Cached equals uncached: whatever the position, the mask, the padding, the heads and the pieces it is read in."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parity.tolerance import randomise
from sizes import in_full
from torch import Tensor
from torch.testing import assert_close

from regard import config as C
from regard.core.cache import KVCache
from regard.core.model import Transformer
from regard.core.tokens import sequence_tokens

B, N, S, D, V = 2, 11, 7, 12, 19  # S: tokens of a source
ROOM = 13  # slots of a cache
H = 6
LONG = 300

POSITIONS = {
    "none": C.NoPosition(),
    "sinusoidal": C.SinusoidalPosition(),
    "sinusoidal-concat": C.SinusoidalPosition(mode="concat", dim=4),
    "sinusoidal-qk": C.SinusoidalPosition(mode="qk"),
    "learned": C.LearnedPosition(length=LONG, offset=2),
    "learned-qk": C.LearnedPosition(length=LONG, mode="qk"),
    "onehot": C.OneHotPosition(length=LONG),
    "rotary": C.RotaryPosition(),
    "rotary-fraction": C.RotaryPosition(fraction=0.5, layout="interleaved"),
    "rotary-yarn": C.RotaryPosition(scaling="yarn", original_length=5, factor=3.0),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(num_buckets=7, max_distance=9, bidirectional=False, tables="layer"),
    "shaw": C.ShawPosition(max_distance=3),
    "relative": C.RelativeBias(max_distance=3),
    "relative-outside": C.RelativeBias(max_distance=3, scaled=False),
}
MASKS = ["causal", "causal & window(3)", "causal & global_tokens(2)", "prefix(2)"]

positions = pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
masks = pytest.mark.parametrize("mask", MASKS)


@pytest.fixture(autouse=True)
def forward_only() -> Iterator[None]:
    with torch.no_grad():
        yield


def trunk(**rest) -> C.Trunk:
    said = dict(
        dim=D,
        depth=2,
        mask="causal",
        attention=C.Attention(heads=H, head_dim=4, value_head_dim=5),
        dropout=C.NO_DROPOUT,
    )
    return C.Trunk(**said | rest)


def model(position: C.Position = POSITIONS["sinusoidal"], **rest) -> Transformer:
    """A small decoder; what is set beside the vectors makes them wider, and a map brings them back to dim."""
    width = 8 if getattr(position, "mode", "") == "concat" else None
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=trunk(position=position, embed_dim=width, **rest),
        head=C.LMHead(transform=True),
    )
    return ready(c)


def translator(cross: str = "last", place: str = "pre", **rest) -> Transformer:
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=trunk(cross=cross, norm_placement=place, **rest),
        encoder=C.Encoder(trunk=trunk(mask="full", norm_placement=place)),
    )
    return ready(c)


def ready(c: C.Transformer) -> Transformer:
    made = Transformer(c).double().eval()
    randomise(made)
    return made


def ids(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def fed(one: Transformer, given: Tensor, pieces: list[int], cache: KVCache | None = None, real=None, **first) -> Tensor:
    """The logits of all tokens, given to a cache piece by piece; `first` goes with the first piece alone."""
    cache = one.cache(len(given), ROOM) if cache is None else cache
    parts, begin = [], 0
    for size in pieces:
        piece = slice(begin, begin + size)
        parts.append(one(given[:, piece], real=None if real is None else real[:, piece], cache=cache, **first))
        begin, first = begin + size, {}
    return torch.cat(parts, 1)


def assert_same(cached: Tensor, uncached: Tensor) -> None:
    assert_close(cached, uncached, atol=1e-10, rtol=0)


# ---------------------------------------------------------------- the law

LEFT = torch.arange(N) >= torch.tensor([[2], [0]])  # two tokens of padding before the first row
PIECES = {"whole": [N], "chunks": [4, 1, 6], "token by token": [1] * N}


@pytest.mark.parametrize("kv_heads", [None, 3, 1], ids=["heads", "grouped", "multi-query"])
@pytest.mark.parametrize("real", [None, LEFT], ids=["plain", "padded"])
@masks
@positions
def test_cached_is_uncached(position, mask, real, kv_heads):
    one = model(position, mask=mask, attention=C.Attention(heads=H, head_dim=4, value_head_dim=5, kv_heads=kv_heads))
    given, keep = ids(B, N), torch.ones_like(LEFT) if real is None else real
    uncached = one(given, real=real)

    for pieces in PIECES.values():
        if mask == "prefix(2)" and pieces[0] == 1:
            pieces = [4] + [1] * (N - 4)  # the prefix reads itself both ways, so it comes in one piece
        assert_same(fed(one, given, pieces, real=real)[keep], uncached[keep])


@given(data=st.data(), left=st.lists(st.integers(0, N - 1), min_size=3, max_size=3))
def test_cached_is_uncached_however_the_text_is_cut(data, left):
    one, given = model(C.RotaryPosition(), mask="causal & window(3)"), ids(3, N)
    cuts = sorted(data.draw(st.sets(st.integers(1, N - 1))))
    pieces = [end - begin for begin, end in zip([0, *cuts], [*cuts, N], strict=True)]
    real = torch.arange(N) >= torch.tensor(left)[:, None]

    assert_same(fed(one, given, pieces, real=real)[real], one(given, real=real)[real])


@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_cached_is_uncached_in_every_kernel_that_takes_a_cache(kernel):
    one, given = (
        model(C.AlibiPosition(), attention=C.Attention(heads=H, head_dim=4, kv_heads=3, kernel=kernel)),
        ids(B, N),
    )

    assert_same(fed(one, given, [4, 1, 6]), one(given))


UNLIKE = {
    "shared layers": dict(share_layers=True),
    "masks in turn": dict(mask=("causal", "causal & window(2)"), depth=3),
    "pruned heads": dict(attention=C.Attention(heads=(3, 2), head_dim=4)),
    "post-norm": dict(norm_placement="post"),
}


@pytest.mark.parametrize("rest", UNLIKE.values(), ids=UNLIKE)
def test_cached_is_uncached_however_the_layers_are_stacked(rest):
    one, given = model(**rest), ids(B, N)

    assert_same(fed(one, given, [4, 1, 6]), one(given))


@pytest.mark.spec("S112")
@positions
def test_cached_is_uncached_to_five_digits_in_single_precision(position):
    one, given = model(position).float(), ids(B, N)

    assert_close(fed(one, given, [4, 1, 6], real=LEFT)[LEFT], one(given, real=LEFT)[LEFT], atol=1e-5, rtol=0)


def test_a_cache_works_while_gradients_are_on():
    one, given = model(), ids(B, N)

    with torch.enable_grad():
        assert_same(fed(one, given, [4, 1, 6]), one(given))


def test_what_a_cache_holds_carries_no_gradient():
    one = translator()
    cache = one.cache(B, ROOM)
    with torch.enable_grad():
        fed(one, ids(B, N), [4, 7], cache, source=ids(B, S))

    assert not any(table.requires_grad for table in cache.tables())


# ---------------------------------------------------------------- generation


def greedy(one: Transformer, given: Tensor, new: int, real: Tensor, cache: KVCache | None) -> Tensor:
    """The likeliest token again and again, but none of the last three: so small a model would say one for ever."""
    step, seen = given, real
    for _ in range(new):
        logits = one(given, real=real) if cache is None else one(step, real=seen, cache=cache)
        step = logits[:, -1].scatter(1, given[:, -3:], -torch.inf).argmax(-1, keepdim=True)
        seen = torch.ones_like(step, dtype=torch.bool)
        given, real = torch.cat([given, step], 1), torch.cat([real, seen], 1)
    return given


IN_CI = ("sinusoidal", "learned-qk", "rotary-yarn", "alibi", "t5", "shaw")  # a way of saying positions each


@pytest.mark.slow
@pytest.mark.spec("S112")
@pytest.mark.parametrize(
    "position",
    [pytest.param(x, marks=() if name in IN_CI else in_full, id=name) for name, x in POSITIONS.items()],
)
def test_greedy_ids_are_the_same_with_and_without_a_cache_over_256_tokens(position):
    one, given = model(position), ids(B, N)
    for weight in one.parameters():  # a livelier model repeats itself less
        weight.mul_(2)
    cached = greedy(one, given, 256, LEFT, one.cache(B, N + 256))

    assert torch.equal(cached, greedy(one, given, 256, LEFT, None))
    assert len(cached[:, N:].unique()) > 3


def beams(one: Transformer, start: Tensor, new: int, width: int, cache: KVCache | None) -> Tensor:
    """The `width` best texts, by total log-probability; rows of the cache follow the texts they belong to."""
    texts, totals = start.expand(width, -1), torch.tensor([0.0] + [-torch.inf] * (width - 1)).double()
    step = texts
    for _ in range(new):
        logits = one(texts) if cache is None else one(step, cache=cache)
        totals, flat = (totals[:, None] + logits[:, -1].log_softmax(-1)).flatten().topk(width)
        rows, step = flat // V, (flat % V)[:, None]
        texts = torch.cat([texts[rows], step], 1)
        if cache is not None:
            cache.reorder(rows)
    return texts


@pytest.mark.slow
@pytest.mark.spec("S112")
@pytest.mark.parametrize("kind", ["rotary", "shaw", *(pytest.param(x, marks=in_full) for x in ("sinusoidal", "alibi"))])
def test_beams_are_the_same_with_and_without_a_cache_over_256_tokens(kind):
    one, start = model(POSITIONS[kind]), ids(1, 5)

    assert torch.equal(beams(one, start, 256, 3, one.cache(3, 261)), beams(one, start, 256, 3, None))


# ---------------------------------------------------------------- encoder-decoders


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_a_cached_translation_is_the_uncached_one(cross, place, left, pieces):
    one, given, source = translator(cross, place), ids(B, N), ids(B, S)
    real = torch.arange(S) < torch.tensor([[4], [S]])
    real = real.flip(1) if left else real
    told = dict(source=source, source_real=real)

    assert_same(fed(one, given, PIECES[pieces], **told), one(given, **told))


@pytest.mark.spec("S011")
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_cross_attention_makes_its_keys_and_values_once_for_a_source(cross):
    one, calls = translator(cross), []
    for block in one.trunk.blocks:
        block.cross.kv.register_forward_hook(lambda kv, *_: calls.append(kv))
    fed(one, ids(B, N), [1] * N, source=ids(B, S))

    assert calls == [block.cross.kv for block in one.trunk.blocks]


def test_the_encoder_reads_a_source_once():
    one, calls = translator(), []
    one.encoder.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    fed(one, ids(B, N), [1] * N, source=ids(B, S))

    assert len(calls) == 1


def test_a_translation_follows_its_beams():
    one, given, source, rows = translator(), ids(3, N), ids(3, S), torch.tensor([2, 0, 0])
    real = torch.arange(S) < torch.tensor([[3], [S], [5]])
    cache = one.cache(3, ROOM)
    fed(one, given[:, :4], [4], cache, source=source, source_real=real)
    cache.reorder(rows)
    mixed = torch.cat([given[rows, :4], given[:, 4:]], 1)

    assert_same(fed(one, given[:, 4:], [7], cache), one(mixed, source=source[rows], source_real=real[rows])[:, 4:])


def test_reordering_leaves_the_caller_s_tensors_alone():
    one, source = translator(), ids(B, S)
    real = torch.arange(S) < torch.tensor([[3], [S]])
    cache, before = one.cache(B, ROOM), real.clone()
    fed(one, ids(B, 4), [4], cache, source=source, source_real=real)
    cache.reorder(torch.tensor([1, 0]))

    assert torch.equal(real, before)


def test_a_translation_without_maps_for_keys_and_values_follows_its_beams():
    bare = C.Attention(heads=3, projections=("q", "out"))
    one, given, source, rows = translator(attention=bare), ids(3, N), ids(3, S), torch.tensor([2, 0, 0])
    cache = one.cache(3, ROOM)
    fed(one, given[:, :4], [4], cache, source=source)
    cache.reorder(rows)
    mixed = torch.cat([given[rows, :4], given[:, 4:]], 1)

    assert_same(fed(one, given[:, 4:], [7], cache), one(mixed, source=source[rows])[:, 4:])


def test_a_second_source_is_read_in_place_of_the_first():
    one, given, first, second = translator(), ids(B, N), ids(B, S), ids(B, S)
    cache = one.cache(B, ROOM)
    fed(one, given, [N], cache, source=first)
    cache.truncate(0)

    assert_same(fed(one, given, [N], cache, source=second), one(given, source=second))


def test_a_translator_without_a_source_says_so():
    one = translator()

    with pytest.raises(ValueError, match="^source: an encoder-decoder needs"):
        one(ids(B, N), cache=one.cache(B, ROOM))


# ---------------------------------------------------------------- rows


@positions
def test_after_reordering_each_row_goes_on_from_the_text_it_was_given(position):
    one, given, rows = model(position), ids(3, N), torch.tensor([2, 0, 0])
    real = torch.arange(N) >= torch.tensor([[2], [0], [1]])
    cache = one.cache(3, ROOM)
    fed(one, given[:, :4], [4], cache, real=real)
    cache.reorder(rows)
    mixed = torch.cat([given[rows, :4], given[:, 4:]], 1)

    assert_same(fed(one, given[:, 4:], [1, 6], cache), one(mixed, real=real[rows])[:, 4:])


@positions
def test_rewinding_is_as_if_the_rest_had_never_been_written(position):
    one, given = model(position), ids(B, N)
    rewound, never = one.cache(B, ROOM), one.cache(B, ROOM)
    fed(one, given[:, :5], [5], never, real=LEFT)
    fed(one, torch.cat([given[:, :5], ids(B, 4)], 1), [5, 4], rewound, real=LEFT)
    rewound.truncate(5)

    assert torch.equal(fed(one, given[:, 5:], [1, 5], rewound), fed(one, given[:, 5:], [1, 5], never))


def test_rewinding_to_nothing_is_a_new_cache():
    one, given = model(), ids(B, N)
    cache = one.cache(B, ROOM)
    fed(one, ids(B, 9), [9], cache)
    cache.truncate(0)

    assert torch.equal(fed(one, given, [4, 7], cache), fed(one, given, [4, 7]))


@given(st.lists(st.integers(0, 7), min_size=3, max_size=3))
def test_each_row_can_be_rewound_to_a_length_of_its_own(lengths):
    one, given, more = model(C.RotaryPosition()), ids(3, 7), ids(3, 4)
    cache = one.cache(3, ROOM)
    fed(one, given, [7], cache)
    cache.truncate(torch.tensor(lengths))
    cached = fed(one, more, [1, 3], cache)

    for row, length in enumerate(lengths):
        whole = torch.cat([given[row, :length], more[row]])[None]
        assert_same(cached[row], one(whole)[0, length:])


def test_a_copied_row_goes_on_as_its_original_would_and_the_others_as_they_were():
    one, given = model(C.AlibiPosition()), ids(3, N)
    real = torch.arange(N) >= torch.tensor([[2], [0], [1]])
    cache = one.cache(3, ROOM)
    fed(one, given[:, :4], [4], cache, real=real)
    cache.copy_row(0, to=2)
    rows = torch.tensor([0, 1, 0])
    mixed = torch.cat([given[rows, :4], given[:, 4:]], 1)

    assert_same(fed(one, given[:, 4:], [7], cache), one(mixed, real=real[rows])[:, 4:])


def test_a_copied_row_of_a_translation_takes_its_source_along():
    one, given, source = translator("layerwise"), ids(3, N), ids(3, S)
    cache = one.cache(3, ROOM)
    fed(one, given[:, :4], [4], cache, source=source)
    cache.copy_row(1, to=0)
    rows = torch.tensor([1, 1, 2])
    mixed = torch.cat([given[rows, :4], given[:, 4:]], 1)

    assert_same(fed(one, given[:, 4:], [7], cache), one(mixed, source=source[rows])[:, 4:])


def test_a_row_s_bits_do_not_depend_on_its_neighbours():
    one, given = model(), ids(B, N)
    other = torch.cat([given[:1], ids(1, N)])

    assert torch.equal(fed(one, given, [4, 1, 6])[0], fed(one, other, [4, 1, 6])[0])


# ---------------------------------------------------------------- refusals


def test_a_full_cache_says_how_much_it_holds():
    one = model()
    cache = one.cache(B, 5)
    fed(one, ids(B, 5), [4, 1], cache)

    with pytest.raises(ValueError, match="^the cache holds 5 tokens and more were given; make it larger$"):
        one(ids(B, 1), cache=cache)


def test_a_cache_that_refused_tokens_still_takes_fewer():
    one, given = model(), ids(B, 5)
    cache = one.cache(B, 5)
    with pytest.raises(ValueError, match="make it larger"):
        one(ids(B, 6), cache=cache)

    assert_same(one(given, cache=cache), one(given))


def test_a_cache_longer_than_learned_positions_is_refused():
    with pytest.raises(ValueError, match="^14 tokens are more than position.length 13"):
        model(C.LearnedPosition(length=13)).cache(B, 14)


def test_documents_do_not_go_into_a_cache():
    one, given = model(), ids(B, N)

    with pytest.raises(ValueError, match="documents and edges cannot"):
        one(given, document=torch.zeros_like(given), cache=one.cache(B, ROOM))


def test_edges_do_not_go_into_a_cache():
    one, tokens = model(), sequence_tokens(torch.randn(B, N, D).double())
    tokens.edges = torch.ones(B, N, N, dtype=torch.bool)

    with pytest.raises(ValueError, match="documents and edges cannot"):
        one(tokens, cache=one.cache(B, ROOM))


UNCACHED = {
    "turns old keys anew": C.RotaryPosition(scaling="dynamic", original_length=5, factor=2.0),
    "reads several axes": C.RelativeBias(max_distance=2, axes=2),
}


@pytest.mark.parametrize("position", UNCACHED.values(), ids=UNCACHED)
def test_a_position_that_a_cache_could_not_continue_refuses_one(position):
    with pytest.raises(ValueError, match=f"^trunk.position '{position.kind}' .* has no cache$"):
        model(position).cache(B, ROOM)


@pytest.mark.parametrize("mask", ["full", "window(3)", "causal | global_tokens(1)", ("causal", "~causal")])
def test_a_mask_that_looks_ahead_refuses_a_cache(mask):
    with pytest.raises(ValueError, match="^trunk.mask .* needs a causal mask"):
        model(mask=mask).cache(B, ROOM)


def test_a_prefix_that_comes_in_two_pieces_is_refused():
    one = model(mask="prefix(5)")

    with pytest.raises(ValueError, match=r"^the first 5 tokens .* \(prefix\): pass them in one call$"):
        fed(one, ids(B, N), [4, 7])


def test_padding_does_not_make_a_prefix_whole():
    one, given = model(mask="prefix(3)"), ids(B, N)  # the first four slots hold two tokens of the first row

    with pytest.raises(ValueError, match=r"\(prefix\): pass them in one call"):
        fed(one, given, [4, 7], real=LEFT)


def test_a_prefix_is_not_rewound_in_part():
    one = model(mask="prefix(5)")
    cache = one.cache(B, ROOM)
    fed(one, ids(B, N), [N], cache)

    with pytest.raises(ValueError, match="prefix"):
        cache.truncate(3)


def test_rewinding_ahead_is_refused():
    one = model()
    cache = one.cache(B, ROOM)
    fed(one, ids(B, 4), [4], cache)

    with pytest.raises(ValueError, match=r"^rewind: 7 is not between 0 and the cached length, \[4, 4\]$"):
        cache.truncate(7)


@pytest.mark.parametrize("rows", [B - 1, B + 1])
def test_a_batch_of_another_size_than_the_cache_s_is_refused(rows):
    one = model()

    with pytest.raises(ValueError, match=f"^the cache has {B} rows and {rows} were given$"):
        one(ids(rows, N), cache=one.cache(B, ROOM))
