"""The whole bill, its words for people, and the model explained."""

from dataclasses import replace

import pytest
import torch
from core.builders import translator, trunk
from measure.small_models import SHAPES, B, N, build, config

import regard
from regard import config as C
from regard import measure
from regard.core.model import BlockRunner
from regard.measure import format_estimate
from regard.measure.estimate import attention_heads
from regard.measure.explain import format_count, model_rows
from regard.measure.fake_model import max_tokens, position_limit

# ---------------------------------------------------------------- the bill


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_bill_and_it_can_be_told(shape):
    c = SHAPES[shape]
    bill = measure.estimate_model(c, batch=B)
    text, table = format_estimate.format_estimate(bill, shape), format_estimate.estimate_table(bill, shape)

    assert bill.parameters == sum(weight.numel() for weight in build(c).parameters()) == table["parameters"]
    assert f"{bill.parameters:,}" in text and "attention products" in text
    assert bill.memory.activations == bill.activations["auto"].kept
    assert bill.step_flops == pytest.approx(B * table["flops"]["training_sequence"])


def test_a_bill_of_the_largest_model_is_a_matter_of_shapes():
    """Its weights alone would take 698 GB."""
    bill = measure.estimate_model(regard.preset("gpt3-175b"))

    assert (bill.parameters, bill.context) == (174_604_259_328, 2048)
    assert bill.memory.weights == bill.memory.gradients == 4 * bill.parameters
    assert bill.memory.optimizer == 8 * bill.parameters
    assert bill.cache.own == 2 * 96 * 2048 * 12288 * 4 + 2048 * 9 + 16  # keys, values; places; lengths


def test_the_length_that_a_model_knows_is_the_context_unless_said():
    lengths = {
        C.LearnedPosition(length=31): 31,
        C.OneHotPosition(length=7): 7,
        C.RotaryPosition(original_length=77): 77,
        C.SinusoidalPosition(): 512,
    }

    assert {p: measure.estimate_model(config(position=p)).context for p in lengths} == lengths
    assert measure.estimate_model(SHAPES["patches"]).context == 50
    assert measure.estimate_model(SHAPES["stages"]).context == 49
    assert measure.estimate_model(SHAPES["pixels"]).context == 35


def test_who_is_told_a_length_it_has_no_places_for_refuses():
    assert position_limit(config(position=C.RotaryPosition(original_length=77))) is None
    with pytest.raises(C.ConfigError, match=r"context: 32 is more than the 31 positions"):
        measure.estimate_model(config(position=C.LearnedPosition(length=31)), context=32)
    with pytest.raises(C.ConfigError, match=r"context: 32, but an image is always 50 tokens"):
        measure.estimate_model(SHAPES["patches"], context=32)


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"batch": 0}, "batch: 0"), ({"ranks": 0}, "ranks: 0"), ({"context": 0}, "context: 0"),
     ({"batch": 10**13}, "more than one step can hold"), ({"context": 10**9}, "more than one step can hold")],
    ids=str,
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_by_their_name(asked, words):
    with pytest.raises(C.ConfigError, match=words):
        measure.estimate_model(config(), **asked)


@pytest.mark.parametrize(("said", "words"), [({"depth": 10**6}, "trunk.depth"), ({"dim": 3 * 10**9}, "trunk.dim")])
def test_models_that_nobody_could_number_are_refused(said, words):
    with pytest.raises(C.ConfigError, match=words):
        measure.estimate_model(config(**said))


@pytest.mark.spec("S071")
def test_four_hundred_billion_parameters_in_sixteen_bits_are_800_gigabytes():
    bill = measure.estimate_parameters(400_000_000_000, precision="bf16")

    assert bill.memory.weights == 800e9
    assert "800 GB" in format_estimate.format_estimate(bill)
    assert bill.memory.optimizer == 12 * 400e9  # two moments and a master, in fp32


def test_a_count_costs_what_a_model_of_that_count_does():
    for precision in ("fp32", "mixed", "bf16"):
        bill = measure.estimate_model(replace(config(), precision=precision), context=N)
        alone = measure.estimate_parameters(bill.parameters, precision=precision).memory

        assert replace(bill.memory, activations=0) == alone


def test_a_tower_is_spoken_of_by_its_widest():
    bill = measure.estimate_model(SHAPES["towers"])

    assert bill.unit == "pair" and bill.context == max_tokens(SHAPES["towers"])
    assert bill.flops.forward > sum(
        measure.count_flops(tower, bill.context).sequence for tower in SHAPES["towers"].towers
    )


def test_all_layers_that_look_have_their_squares():
    """Six in the encoder, six in the decoder, six across; of many scales, each stage's."""
    assert attention_heads(regard.preset("transformer-base")) == (8,) * 18
    assert attention_heads(regard.preset("swin-tiny")) == (24,) * 2 + (3,) * 2 + (6,) * 2 + (12,) * 6


# ---------------------------------------------------------------- words


def test_numbers_are_written_for_people():
    assert [format_count(n) for n in (999, 1e6, 3.96e9, 2e21)] == ["999 ", "1 M", "3.96 G", "2 Z"]
    assert [format_estimate.format_si(n, "B") for n in (12, 33_554_432, 999.99e6, 800e9)] == [
        "12 B",
        "33.55 MB",
        "1 GB",
        "800 GB",
    ]
    assert [format_estimate.format_plain(n) for n in (0.2471, 17_320.4)] == ["0.247", "17,320"]
    assert [format_estimate.format_power(n) for n in (3.15e23, 1.75e11, 3e11)] == ["3.15e23", "1.75e11", "3e11"]
    assert [format_estimate.format_duration(s) for s in (0.004, 59, 7200, 86400 * 40, 3.6e9)] == [
        "4 ms",
        "59 s",
        "2 hours",
        "40 days",
        "114 years",
    ]


def test_sections_stand_under_each_other():
    text = format_estimate.format_section("title", [("a", "1"), ("a remark that is long",), ("bb", "22")])

    assert text == "title\n  a    1\n  a remark that is long\n  bb  22"


# ---------------------------------------------------------------- the model explained


def test_an_explanation_names_every_part_and_the_whole():
    text = measure.explain_model(regard.preset("gpt2"))

    assert "124,439,808" in text.split("total")[1].splitlines()[0]
    assert "12 heads of 64" in text and "768 -> 3072 -> 768, gelu_tanh" in text and "tied to embed" in text
    assert "fused: causal over 1024 x 1024, one fused pass" in text
    assert "FLOP a token" in text and "activations" in text


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rows_of_an_explanation_add_up(shape):
    made = build(SHAPES[shape])

    assert sum(many for _, _, many in model_rows(made)) == sum(weight.numel() for weight in made.parameters())
    assert measure.explain_model(made)


def test_norms_on_q_and_k_are_in_the_rows():
    normed = C.Attention(heads=3, qk_norm=C.Norm())
    made = translator(source={"depth": 3, "position": C.LearnedPosition(length=31)}, attention=normed)

    assert sum(many for _, _, many in model_rows(made)) == sum(weight.numel() for weight in made.parameters())


def test_every_distinct_mask_has_its_plan():
    c = C.Transformer(embed=C.TextEmbedding(vocab=23), trunk=trunk(depth=4, mask=("causal & window(2)", "causal")))
    found = measure.kernel_plans(c, 29)

    assert [where for where, _ in found] == ["trunk.0,2", "trunk.1,3"]
    assert found[0][1].startswith("fused: causal & window(2) over 29 x 29") and "table" in found[0][1]


def test_every_stage_and_every_tower_has_its_plans():
    assert [where for where, _ in measure.kernel_plans(SHAPES["stages"], 49)] == [
        "embed.0.0,2",
        "embed.0.1,3",
        "trunk.*",
    ]
    assert [where for where, _ in measure.kernel_plans(SHAPES["towers"], N)] == ["towers.0.trunk.*", "towers.1.trunk.*"]


def test_plans_are_those_of_a_real_forward():
    class Recorder(BlockRunner):
        def plan(self, *given):
            seen.append(str(chosen := super().plan(*given)))
            return chosen

    made, seen = translator(), []
    for part in (made.encoder, made.trunk):
        part.runner = Recorder()
    ids = torch.randint(1, 23, (2, 29))
    made(ids, source=ids)

    assert [plan for _, plan in measure.kernel_plans(made.c, 29, batch=2)] == seen


def test_a_model_is_asked_like_its_config_and_a_name_is_neither():
    c = config()
    assert regard.estimate(regard.build(c)).parts == regard.estimate(c).parts
    with pytest.raises(TypeError, match="takes a config or a model, got 'gpt2'"):
        regard.estimate("gpt2")


def test_dropout_on_attention_costs_an_accelerator_no_square():
    wet, dry = (regard.preset("gpt2", depth=2, dim=64, heads=2, dropout=rate) for rate in (0.1, 0.0))
    there = measure.CostTerms(device="h100-sxm")
    kept = [regard.estimate(c, context=512, terms=there).activations["fused"].kept for c in (wet, dry)]
    here = [regard.estimate(c, context=512).activations["fused"].kept for c in (wet, dry)]

    assert here[0] - here[1] > 2 * 512 * 512 * 4 > kept[0] - kept[1]


def test_ranks_keep_no_copy_of_all_weights():
    c = regard.preset("gpt2", depth=2, precision="mixed")
    one, many = (regard.estimate(c, context=16, ranks=ranks) for ranks in (1, 8))
    copied = 2 * (one.parameters - one.parts["norms"] - one.parts["positions"])

    assert 0 < one.activations["auto"].kept - many.activations["auto"].kept <= copied
