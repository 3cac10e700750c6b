"""Arithmetic held to torch's own counter, which sees the products one by one."""

from dataclasses import replace

import pytest
import torch
from core.builders import translator
from measure.small_models import SHAPES, B, N, build, config, run, together
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import config as C
from regard import measure
from regard.attention.cost import charged_pairs
from regard.core.positions import POSITIONS
from regard.measure.activations import map_trunks
from regard.measure.fake_model import max_tokens
from regard.measure.flops import BIASED_POSITIONS, attention_field
from regard.models.checkpointing import set_checkpointing

LARGE = ("gpt3-175b", "swin-tiny", "clip-vit-b32", "t5-v1.1-base", "vit-h14", "imagegpt-large", "qwen3-0.6b")


def counted(forward) -> tuple[float, float]:
    """What torch counts, forward and with backward; fused attention is split into its products, which it then sees."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        out = together(forward())
        first = counter.get_total_flops()
        out.backward()
    return first, counter.get_total_flops()


def on_ghost(c) -> tuple[float, float]:
    """The same for shapes alone: a model of any size."""
    made = measure.build_fake_model(c)
    with made.mode:
        return counted(lambda: made.run(1, max_tokens(c)))


@pytest.mark.spec("S146")
@pytest.mark.parametrize("shape", SHAPES)
def test_arithmetic_is_what_torch_counts(shape):
    made = build(SHAPES[shape])
    forward, both = counted(lambda: run(made))
    found = measure.count_flops(
        made.c, max_tokens(made.c) if max_tokens(made.c) == getattr(made.c.embed, "count", 0) else N
    )

    assert B * found.sequence == pytest.approx(forward, rel=0.02)
    assert B * found.training_sequence == pytest.approx(both, rel=0.02)


KERNELS = {
    "linear": "causal", "linear, both ways": "full", "performer(26)": "causal",
    "performer(26), both ways": "full", "linformer(7, 131)": "full", "lsh(16, 3)": "causal",
    "additive(5)": "causal", "topk(9)": "causal", "local": "causal & window(17)", "local, two ways": "window(17)",
    "local, dilated": "window(34) & strided(2)", "local, global tokens": "causal & (window(17) | global_tokens(3))",
}  # fmt: skip
MV = {torch.ops.aten.mv: lambda table, vector, *_, **__: 2 * table[0] * table[1]}  # which torch leaves out


@pytest.mark.spec("S146")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_costs_what_torch_counts_of_it(name):
    """Forward alone: some make their scores again in backward."""
    own = {"projections": ("q", "v", "out")} if name.startswith("lsh") else {"kv_heads": 1}
    said = C.Attention(heads=3, kernel=name.partition(", ")[0] if "(" not in name else name.rpartition(")")[0] + ")",
                       **own)  # fmt: skip
    made = build(config(mask=KERNELS[name], attention=said, depth=3))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=MV) as counter:
        run(made, 1, 131)

    assert measure.count_flops(made.c, 131).sequence == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.parametrize("last", [True, False], ids=["to the end", "but for the last product"])
def test_recomputed_blocks_multiply_once_more(last):
    """To the end where something after a block's last product is asked for again, such as who was dropped."""
    made = build(config(depth=5, dropout=C.Dropout(residual=0.1) if last else C.NO_DROPOUT)).train()
    set_checkpointing(made)
    _, both = counted(lambda: run(made))
    found = measure.count_flops(made.c, N, recompute=True).training_sequence
    left = 0 if last else sum(2 * N * block.mlp.down.weight.numel() for block in made.trunk.blocks)

    assert B * (found - left) == both


@pytest.mark.spec("S146")
@pytest.mark.parametrize("name", C.PRESETS)
def test_arithmetic_of_every_preset_is_what_torch_counts(name):
    """At full width, and at most two layers for each mask: layers repeat."""
    c = map_trunks(regard.preset(name), lambda t: replace(t, depth=min(t.depth, 2 * len(t.masks))))
    forward, both = on_ghost(c)
    found = measure.count_flops(c, max_tokens(c))

    assert found.sequence == pytest.approx(forward, rel=0.02)
    assert found.training_sequence == pytest.approx(both, rel=0.02)


@pytest.mark.slow
@pytest.mark.spec("S146")
@pytest.mark.parametrize("name", LARGE)
def test_arithmetic_of_whole_large_models_is_what_torch_counts(name):
    c = regard.preset(name)
    forward, both = on_ghost(c)
    found = measure.count_flops(c, max_tokens(c))

    assert found.sequence == pytest.approx(forward, rel=0.02)
    assert found.training_sequence == pytest.approx(both, rel=0.02)


def test_arithmetic_of_a_translator_knows_the_length_of_its_source():
    made = translator(source={"depth": 3})
    ids, source = torch.randint(1, 23, (B, N)), torch.randint(1, 23, (B, 17))
    forward, _ = counted(lambda: made(ids, source=source))

    assert measure.count_flops(made.c, N, source=17).forward * B * N == pytest.approx(forward, rel=0.02)


@pytest.mark.parametrize("mask", ["window(17)", "causal & window(17)"])
@pytest.mark.parametrize("tokens", [67, 68, 103])
def test_windows_are_charged_in_chunks_from_the_length_on_at_which_they_run_in_them(mask, tokens):
    made = build(config(mask=mask))
    forward, _ = counted(lambda: run(made, 1, tokens))

    assert measure.count_flops(made.c, tokens).sequence == pytest.approx(forward, rel=0.02)


def test_windows_of_an_image_cost_their_cells():
    """Swin's first stage has 56 x 56 tokens: without windows each would look at 64 times as many."""
    first = regard.preset("swin-tiny").embed.trunks[0]

    grid, dense = (56, 56), replace(first, mask="full")

    assert charged_pairs(attention_field(first, 0, 56 * 56, grid), "auto") == 56 * 56 * 49
    assert 64 * charged_pairs(attention_field(first, 0, 56 * 56, grid), "auto") == charged_pairs(
        attention_field(dense, 0, 56 * 56, grid), "auto"
    )
    assert (
        charged_pairs(attention_field(first, 1, 56 * 56, grid), "auto") == 9 * 9 * 49 * 49
    )  # nine windows a side hang over the edges


def test_an_image_and_a_pair_are_counted_whole_and_text_by_the_token():
    found = {name: measure.count_flops(SHAPES[name], N).tokens for name in ("plain", "patches", "stages", "towers")}

    assert found == {"plain": N, "patches": 1, "stages": 1, "towers": 1}


@pytest.mark.spec("S140")
def test_the_rule_of_thumb_gives_the_published_figures_of_gpt3():
    assert measure.rule_of_thumb(175e9, 300e9) == pytest.approx(3.15e23)
    assert measure.rule_of_thumb(175e9, 2048, training=False) == pytest.approx(716.8e12)


@pytest.mark.spec("S140")
@pytest.mark.parametrize("name", ["gpt3-175b", "gpt3-13b", "llama-7b"])
def test_the_rule_of_thumb_is_near_the_count_where_the_model_is_large_and_the_context_short(name):
    c = regard.preset(name)
    parts = measure.count_parameters(c)
    weights = sum(parts.values()) - parts["positions"] - (0 if c.head.tied else parts["embedding"])

    assert measure.rule_of_thumb(weights, 1) == pytest.approx(measure.count_flops(c, 64).training, rel=0.01)


def test_the_positions_that_are_said_to_add_to_scores_are_those_that_do():
    here = replace(regard.sequence_tokens(torch.zeros(1, 5, 24)), edges=torch.eye(5, dtype=torch.bool)[None])
    made = {kind().kind: build(kind(), 24, 3, 8).prepare(here, here) for kind, build in POSITIONS.items()}

    assert {name for name, place in made.items() if place.biased} == set(BIASED_POSITIONS)
