"""Heads that begin at a neighbour: they are a convolution, know their rows and columns, and need no more of a cache."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import regard
from regard import config as C
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.core.kernels import KERNELS, AttentionArgs, Plan
from regard.core.model import Transformer, Trunk
from regard.core.tokens import TokenIndex, sequence_tokens
from regard.inference.images import sample_images
from regard.inputs import palette
from regard.models.positions import NEIGHBOUR_OFFSETS
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

ROWS, COLUMNS, LEVELS = 5, 7, 11
PIXELS = C.PixelEmbedding(palette=LEVELS, grid=(ROWS, COLUMNS), channels=1, values="levels")


def config(mask="causal", heads=4, **trunk):
    near = C.ConvLikePosition(grid=(ROWS, COLUMNS))
    trunk = C.Trunk(dim=8 * heads, depth=2, mask=mask, position=near, attention=C.Attention(heads=heads),
                    dropout=C.NO_DROPOUT, **trunk)  # fmt: skip
    return C.Transformer(embed=PIXELS, trunk=trunk, head=C.LMHead(tied=False, vocab=LEVELS), init="gpt2")


def pattern(model, layer=0, seed=0):
    ids = torch.randint(LEVELS, (1, ROWS, COLUMNS), generator=torch.Generator().manual_seed(seed))
    with looking(model, f"trunk.{layer}.attn.pattern") as seen:
        model(ids)
    return seen[f"trunk.{layer}.attn.pattern"][0]  # (H, N, N)


@pytest.mark.spec("S061")
@pytest.mark.parametrize("head", range(8))
def test_a_head_begins_by_looking_at_its_own_neighbour(head):
    model = regard.build(config(heads=8)).eval()
    down, across = NEIGHBOUR_OFFSETS[head]
    place = 3 * COLUMNS + 3  # has them all

    assert int(pattern(model)[head, place].argmax()) == place + down * COLUMNS + across


@pytest.mark.spec("S061")
def test_sharp_heads_are_a_masked_convolution():
    """Attention whose heads each see one neighbour is a sum of maps of the neighbours (Cordonnier et al. 2020)."""
    torch.manual_seed(0)
    trunk = Trunk(config().trunk).double().eval()
    attn, x = trunk.blocks[0].attn, torch.randn(1, ROWS * COLUMNS, 32, dtype=torch.double)
    with torch.no_grad():
        trunk.position.looks.copy_(torch.tensor([0.0, 0.0, 9.0]))  # e^9: no other place is left
        tokens = sequence_tokens(x)
        bias = trunk.position.prepare(tokens, tokens).bias
        place = trunk.position.prepare(tokens, tokens)
        ask = trunk.runner.plan(trunk, x, trunk.masks[0], tokens, tokens, place).spec
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in attn.qkv(x).chunk(3, -1))
        heads = Plan(KERNELS["reference"], "", ask).run(
            q, k, v, AttentionArgs(scale=8**-0.5, bias=bias)
        )  # (1, H, N, d)
    images = v.transpose(-1, -2).unflatten(-1, (ROWS, COLUMNS))  # (1, H, d, rows, columns)
    for head, (down, across) in enumerate(NEIGHBOUR_OFFSETS[:4]):
        kernel = torch.zeros(8, 8, 5, 9, dtype=torch.double)
        kernel[range(8), range(8), 2 + down, 4 + across] = 1.0
        moved = F.conv2d(images[:, head], kernel, padding=(2, 4))
        ours = heads[:, head].mT.unflatten(-1, (ROWS, COLUMNS))
        assert_close(ours[..., 1:, 1:-2], moved[..., 1:, 1:-2])  # where the neighbour is in the image


def test_the_score_falls_with_the_squared_distance_from_the_neighbour():
    model = Trunk(config().trunk)
    tokens = sequence_tokens(torch.randn(1, ROWS * COLUMNS, 32))
    bias = model.position.prepare(tokens, tokens).bias
    i, j = torch.arange(ROWS * COLUMNS)[:, None], torch.arange(ROWS * COLUMNS)
    zero = torch.zeros((), dtype=torch.long)
    ours = bias.at(zero, zero + 1, TokenIndex(tokens, zero, i), TokenIndex(tokens, zero, j))
    (down, across), (r, c, log) = NEIGHBOUR_OFFSETS[1], model.position.looks[1].tolist()
    for q, k in [(0, 0), (9, 3), (20, 20), (34, 1), (17, 30)]:
        row, column = k // COLUMNS - q // COLUMNS - down - r, k % COLUMNS - q % COLUMNS - across - c
        want = -torch.tensor(log).exp() * (row**2 + column**2)
        assert_close(ours[q, k], want, atol=1e-4, rtol=1e-5)


def test_tokens_of_one_row_or_column_share_its_vector():
    position = Trunk(config().trunk).position
    table = position.table(sequence_tokens(torch.empty(3, ROWS * COLUMNS, 32)))[0].unflatten(0, (ROWS, COLUMNS))

    assert_close(table[1:] - table[:-1], (table[1:] - table[:-1])[:, :1].expand(-1, COLUMNS, -1))
    assert_close(table[2, 5], position.rows[2] + position.columns[5])


@pytest.mark.parametrize("mask", ["causal", "causal & window(14)"])
def test_a_cache_gives_what_the_whole_image_gives(mask):
    model = regard.build(config(mask)).eval()
    ids = torch.cat([torch.tensor([[LEVELS]]), torch.randint(LEVELS, (1, ROWS * COLUMNS - 1))], 1)
    cache = model.cache(1, ROWS * COLUMNS)
    with torch.no_grad():
        steps = torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])], 1)

        assert_close(steps, model(ids), atol=1e-5, rtol=1e-4)


def test_the_likeliest_picture_is_what_the_model_says_when_it_reads_it():
    model = regard.build(config()).eval()
    ids = palette.quantize_colors(sample_images(model, 1, temperature=0.0), PIXELS)

    assert torch.equal(model(ids).argmax(-1), ids.flatten(1))


def test_every_look_learns():
    model = Transformer(config())
    model(torch.randint(LEVELS, (2, ROWS, COLUMNS))).square().mean().backward()

    for weight in model.trunk.position.parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0


@pytest.mark.slow
def test_it_compiles_whole():
    model = Transformer(config("causal & window(14)")).eval()
    ids = torch.randint(LEVELS, (2, ROWS, COLUMNS))

    assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(ids), model(ids), atol=1e-5, rtol=1e-4)


def test_a_saved_model_looks_at_the_same_places(tmp_path):
    model = regard.build(config()).eval()
    model.save(tmp_path / "conv-like")
    again, ids = regard.load(tmp_path / "conv-like").eval(), torch.randint(LEVELS, (1, ROWS, COLUMNS))

    assert torch.equal(again(ids), model(ids))


def test_more_tokens_than_the_grid_has_are_refused():
    with pytest.raises(ValueError, match=r"36 tokens are more than position.grid \[5, 7\] has places for"):
        Trunk(config().trunk)(sequence_tokens(torch.empty(1, 36, 32)))
    with pytest.raises(ValueError, match=r"grid: \[3\] is not rows and tokens in a row"):
        C.ConvLikePosition(grid=(3,))


@pytest.mark.parametrize(("grid", "channels", "wanted"), [([9, 8], 1, "[8, 8]"), ([8, 8], 3, "[8, 24]")])
def test_a_grid_that_is_not_the_images_is_refused(grid, channels, wanted):
    recipe = read_recipe("pixels", [f'model.trunk.position={{kind="conv_like", grid={grid}}}',
                                    f"model.embed.channels={channels}"])  # fmt: skip
    with pytest.raises(ConfigError, match=r"model.trunk.position.grid: .* set it to") as problem:
        Run.from_recipe(recipe)
    assert str(problem.value).endswith(wanted)


@pytest.mark.slow
@pytest.mark.spec("S061")
def test_after_some_steps_it_needs_fewer_bits_than_pixels_that_are_told_alone():
    """The packaged digits: how often each grey is at each place needs 2.44 bits a pixel."""
    changes = ["train.steps=80", "train.minutes=none", "train.eval_every=none", "train.compile=false"]
    run = Run.from_recipe(read_recipe("pixels", [*changes, "model.trunk.mask=causal & window(24)"]))
    for _ in train_steps(run):
        pass
    ids, asked = (run.objective.sense.collate(rows[:], None)["ids"].flatten(1)
                  for rows in (run.data.rows, run.validation.rows))  # fmt: skip
    counts = 1 + torch.stack([(ids == level).sum(0) for level in range(17)], -1).double()  # (N, V), one more of each
    alone = -(counts / counts.sum(-1, keepdim=True)).gather(1, asked.mT).log2().mean()
    score = validate(run.model, run.validation.batches(), run.objective, scores=True)

    assert 2.4 < alone < 2.5
    assert score.scores["bits per dimension"] < alone - 0.2
