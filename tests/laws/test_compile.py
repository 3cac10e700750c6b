"""Every model compiles whole: one graph for all paddings, one for all blocks, one for all decode steps.

`fullgraph=True` is the proof that nothing in forward reads a tensor back to the host: whatever does, breaks the graph.
The graphs are counted, and run as they are; what a compiler makes of them is not our law.
"""

from collections.abc import Iterator

import pytest
import torch
from parity.tolerance import gradients, randomise
from torch import Tensor, nn
from torch.testing import assert_close

from regard import config as C
from regard.core.hooks import looking
from regard.core.model import Transformer
from regard.core.tokens import grid_tokens
from regard.native import library

pytestmark = [
    pytest.mark.slow,
    # torch 2.13: dynamo looks at .grad of what a compiled block is given, and is warned of its own doing
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

B, N, S, D, H, V = 2, 7, 5, 12, 3, 19  # S: tokens of a source

POSITIONS = {
    "none": C.NoPosition(),
    "sinusoidal": C.SinusoidalPosition(),
    "sinusoidal-qk": C.SinusoidalPosition(mode="qk"),
    "learned": C.LearnedPosition(length=99),
    "rotary": C.RotaryPosition(),
    "alibi": C.AlibiPosition(),
    "t5": C.T5Bias(bidirectional=False),
    "t5-layer": C.T5Bias(bidirectional=False, tables="layer"),
    "shaw": C.ShawPosition(max_distance=3),
    "relative": C.RelativeBias(max_distance=3),
}
positions = pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)


class Graphs:
    """A compiler that counts the graphs it is given, and leaves them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Tensor]):
        self.count += 1
        return graph.forward

    def compile(self, *modules: nn.Module) -> None:
        for module in modules:
            module.compile(backend=self, fullgraph=True)


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch):
    """A graph has torch's own attention; so does what it is compared with, to the bit."""
    monkeypatch.setattr(library, "LOADED", [None])


@pytest.fixture
def graphs() -> Graphs:
    return Graphs()


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trunk(**rest) -> C.Trunk:
    said = dict(dim=D, depth=2, mask="causal", attention=C.Attention(heads=H), dropout=C.NO_DROPOUT)
    return C.Trunk(**said | rest)


def ready(c: C.Transformer) -> Transformer:
    made = Transformer(c).eval()
    randomise(made)
    return made


def model(**rest) -> Transformer:
    return ready(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(**rest)))


def translator(cross: str = "last") -> Transformer:
    encoder = C.Encoder(trunk=trunk(mask="full"))
    return ready(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk(cross=cross), encoder=encoder))


def ids(*shape: int) -> Tensor:
    return torch.randint(V, shape)


def padding(count: int = N) -> Tensor:
    """True for a different number of tokens in each row, at least one."""
    return torch.arange(count) < torch.randint(1, count + 1, (B, 1))


def documents(count: int = N) -> Tensor:
    return (torch.rand(B, count) < 0.4).cumsum(1)


# ---------------------------------------------------------------- whole models


@pytest.mark.parametrize("mask", ["full", "causal", "causal & window(3)"])
def test_one_graph_serves_ten_batches_of_different_padding_and_documents(graphs, mask):
    one = model(mask=mask)
    batches = [(ids(B, N), padding(), documents()) for _ in range(10)]
    expected = [one(given, real=real, document=document) for given, real, document in batches]
    graphs.compile(one)

    for (given, real, document), logits in zip(batches, expected, strict=True):
        assert torch.equal(one(given, real=real, document=document), logits)
    assert graphs.count == 1


@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_one_graph_serves_ten_translations_of_different_padding_and_documents(graphs, cross):
    one = translator(cross)
    sources = [one.embed(ids(B, S), real=padding(S), document=documents(S)) for _ in range(10)]
    batches = [dict(ids=ids(B, N), real=padding(), document=documents(), source=source) for source in sources]
    expected = [one(**batch) for batch in batches]
    graphs.compile(one)

    for batch, logits in zip(batches, expected, strict=True):
        assert torch.equal(one(**batch), logits)
    assert graphs.count == 1


@positions
def test_every_position_compiles_whole(graphs, position):
    one, given, real = model(position=position), ids(B, N), padding()
    expected = one(given, real=real)
    graphs.compile(one)

    assert torch.equal(one(given, real=real), expected)
    assert graphs.count == 1


@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_a_compiled_training_step_has_the_gradients_of_an_eager_one(kernel):
    one, given, real = model(attention=C.Attention(heads=H, kv_heads=1, kernel=kernel)).double(), ids(B, N), padding()
    one.train()
    one(given, real=real).square().mean().backward()
    eager = gradients(one)
    one.zero_grad()
    one.compile(backend="aot_eager", fullgraph=True)
    one(given, real=real).square().mean().backward()

    for name, gradient in gradients(one).items():
        assert_close(gradient, eager[name], atol=1e-12, rtol=0)


# ---------------------------------------------------------------- blocks


@positions
def test_one_graph_serves_twelve_blocks(graphs, position):
    one, given = model(depth=12, position=position), ids(B, N)
    expected = one(given)
    graphs.compile(*one.trunk.blocks)

    assert torch.equal(one(given), expected)
    assert graphs.count == 1


@positions
def test_one_graph_serves_twelve_blocks_and_any_padding(graphs, position):
    one, given = model(depth=12, position=position), ids(B, N)
    graphs.compile(*one.trunk.blocks)
    for _ in range(3):
        one(given, real=padding())

    assert graphs.count == 1


def test_one_graph_serves_the_blocks_of_a_decoder_that_looks_across(graphs):
    one = ready(
        C.Transformer(
            embed=C.TextEmbedding(vocab=V), trunk=trunk(cross="last", depth=12), encoder=C.Encoder(trunk=trunk())
        )
    )
    graphs.compile(*one.trunk.blocks)
    for _ in range(3):
        one(ids(B, N), source=ids(B, S), source_real=padding(S))

    assert graphs.count == 1


def test_one_graph_serves_twelve_blocks_with_masks_in_turn(graphs):
    one, given = (
        model(depth=12, mask=("causal & window(2)", "causal & window(4)", "causal & global_tokens(1)")),
        ids(B, N),
    )
    expected = one(given)
    graphs.compile(*one.trunk.blocks)

    assert torch.equal(one(given), expected)
    assert graphs.count == 1


def test_windows_of_an_image_compile_whole(graphs):
    one = model(mask=("window2d(3)", "window2d(3, 1)"), position=C.RelativeBias(max_distance=2, axes=2, scaled=False))
    image = grid_tokens(torch.randn(B, 35, D), (5, 7))
    expected = one(image)
    graphs.compile(one)

    assert torch.equal(one(image), expected)
    assert graphs.count == 1


# ---------------------------------------------------------------- generation


def decode(one: Transformer, steps: int, **first) -> Tensor:
    cache = one.cache(B, N + steps)
    parts = [one(ids(B, N), cache=cache, **first)]
    for _ in range(steps):
        parts.append(one(ids(B, 1), cache=cache))
    return torch.cat(parts, 1)


def same_twice(one: Transformer, graphs: Graphs, steps: int, **first) -> bool:
    """Whether the compiled model says what the eager one said."""
    torch.manual_seed(1)
    eager = decode(one, steps, **first)
    graphs.compile(one)
    torch.manual_seed(1)
    return torch.equal(decode(one, steps, **first), eager)


@torch.no_grad()
@positions
def test_64_decode_steps_are_one_graph_and_the_prompt_another(graphs, position):
    assert same_twice(model(position=position), graphs, 64, real=padding().flip(1))
    assert graphs.count == 2


@torch.no_grad()
@pytest.mark.parametrize("cross", ["last", "layerwise"])
def test_64_steps_of_a_translation_are_one_graph_and_the_prompt_another(graphs, cross):
    assert same_twice(translator(cross), graphs, 64, source=ids(B, S), source_real=padding(S))
    assert graphs.count == 2


@torch.no_grad()
def test_another_cache_of_the_same_size_needs_no_new_graph(graphs):
    one = model()
    graphs.compile(one)
    for _ in range(3):
        decode(one, 5)

    assert graphs.count == 2


@torch.no_grad()
def test_rewinding_and_reordering_need_no_new_graph(graphs):
    one = model()
    graphs.compile(one)
    cache = one.cache(B, 13)
    one(ids(B, N), cache=cache)
    for length in (N, N - 1, 3, 5):
        one(ids(B, 1), cache=cache)
        cache.truncate(min(length, N))
        cache.reorder(torch.tensor([1, 0]))
        one(ids(B, 1), cache=cache)

    assert graphs.count == 2


@torch.no_grad()
def test_64_decode_steps_through_twelve_compiled_blocks_are_one_graph(graphs):
    one = model(depth=12)
    graphs.compile(*one.trunk.blocks)
    decode(one, 64)

    assert graphs.count == 2


# ---------------------------------------------------------------- looking


PATTERN, RESULT = "trunk.1.attn.pattern", "trunk.1.attn.result"


def test_a_compiled_model_that_has_run_can_be_watched(graphs):
    one, given = model(), ids(B, N)
    with looking(one, PATTERN) as eager:
        one(given)
    graphs.compile(one)
    one(given)
    with looking(one, PATTERN) as seen:
        one(given)

    assert_close(seen[PATTERN], eager[PATTERN], atol=1e-6, rtol=0)


def test_a_compiled_model_that_has_run_can_be_edited(graphs):
    one, given = model(), ids(B, N)
    with looking(one, RESULT, edit=lambda name, x: 0 * x):
        expected = one(given)
    graphs.compile(one)
    one(given)
    with looking(one, RESULT, edit=lambda name, x: 0 * x):
        edited = one(given)

    assert_close(edited, expected, atol=1e-6, rtol=0)


def test_another_edit_is_not_mistaken_for_the_first(graphs):
    one, given = model(), ids(B, N)
    graphs.compile(one)
    for factor in (0.0, 2.0):
        with looking(one, "logits", edit=lambda name, x, factor=factor: factor * x):
            assert_close(one(given), factor * one.head(one.trunk(one.embed(given))), atol=1e-5, rtol=0)


def test_a_wrapped_compiled_model_can_be_watched(graphs):
    one, given = torch.compile(model(), backend=graphs, fullgraph=True), ids(B, N)
    expected = one(given)
    with looking(one, PATTERN, "logits") as seen:
        one(given)

    assert torch.equal(seen["logits"], expected)


def test_after_looking_the_unwatched_graph_runs_again(graphs):
    one, given = model(), ids(B, N)
    graphs.compile(one)
    before = one(given)
    with looking(one, PATTERN):
        one(given)
    watched = graphs.count
    after = one(given)

    assert (watched, graphs.count) == (2, 2)
    assert torch.equal(before, after)


def test_looking_at_the_same_again_needs_no_new_graph(graphs):
    one, given = model(), ids(B, N)
    graphs.compile(one)
    for _ in range(3):
        with looking(one, PATTERN) as seen:
            one(given)
        assert len(seen.all_calls(PATTERN)) == 1

    assert graphs.count == 1  # the first call was already watched


@torch.no_grad()
def test_ten_watched_calls_are_one_graph(graphs):
    one, given = model(), ids(B, N)
    graphs.compile(one)
    with looking(one, PATTERN) as seen:
        for _ in range(10):
            one(given)

    assert len(seen.all_calls(PATTERN)) == 10
    assert graphs.count == 1


def test_watching_one_of_twelve_compiled_blocks_needs_no_new_graph(graphs):
    one, given = model(depth=12), ids(B, N)
    graphs.compile(*one.trunk.blocks)
    one(given)
    with looking(one, PATTERN):
        one(given)

    assert graphs.count == 1


def test_twelve_compiled_blocks_can_all_be_watched_at_once(graphs):
    one, given = model(depth=12), ids(B, N)
    graphs.compile(*one.trunk.blocks)
    before = one(given)
    with looking(one, "trunk.*.attn.pattern") as seen:
        after = one(given)

    assert len(list(seen)) == 12
    assert torch.equal(before, after)


# ---------------------------------------------------------------- images


def scales() -> C.Transformer:
    """Windows on a grid of 6 x 6, merged to 3 x 3."""
    place = C.RelativeBias(max_distance=2, axes=2, scaled=False, tables="layer")
    first = trunk(mask=("window2d(3)", "window2d(3, 1)"), position=place, final_norm=False)
    return C.Transformer(
        embed=C.StageEmbedding(
            patches=C.PatchEmbedding(patch_size=2, image_size=12, cls_tokens=False, norm=True), trunks=(first,)
        ),
        trunk=trunk(dim=2 * D, mask="window2d(3)", position=place),
        head=C.PoolingHead(pooling="mean", out=5),
    )


IMAGES = {
    "patches": C.Transformer(
        embed=C.PatchEmbedding(patch_size=3, image_size=12),
        trunk=trunk(position=C.LearnedPosition(length=17)),
        head=C.PoolingHead(out=5),
    ),
    "pixels": C.Transformer(
        embed=C.PixelEmbedding(palette=V, grid=(3, 4)),
        trunk=trunk(mask="causal", position=C.LearnedPosition(length=12)),
        head=C.LMHead(tied=False, vocab=V),
    ),
    "stages": scales(),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_model_is_one_graph(name, graphs):
    model = Transformer(IMAGES[name]).eval()
    randomise(model)
    images = torch.randint(V, (B, 3, 4)) if name == "pixels" else torch.randn(B, 3, 12, 12)
    want = model(images)
    graphs.compile(model)

    assert_close(model(images), want)
    assert graphs.count == 1
