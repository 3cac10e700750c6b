"""What a model costs, held to published counts, to torch's own counter and to what autograd really keeps."""

import pytest
import torch
import torch.nn.functional as F
from core.made import model, translator, trunk
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import config as C
from regard import measure
from regard.core.model import Transformer
from regard.measure.explain import big, rows, size

GATED = C.MLP(hidden=19, gated=True, activation="silu")
GROUPED = C.Attention(heads=6, groups=2, width=4)
SHAPES = {
    "plain": {},
    "gated, grouped heads": {"mlp": GATED, "attention": GROUPED, "position": C.Rotary()},
    "embedding of another width": {"width": 7, "depth": 3},
    "shared layers": {"shared": True, "depth": 5},
    "Shaw's positions": {"position": C.Shaw(radius=3)},
    "learned positions, post-norm": {"position": C.Learned(length=31), "place": "post"},
    "wide values": {"attention": C.Attention(heads=3, width=5, value_width=9)},
}


def config(**said: object) -> C.Transformer:
    said["attention"] = said.get("attention", C.Attention(heads=3))
    return C.Transformer(embed=C.Embed(vocab=23), trunk=trunk(mask="causal", **said), head=C.Vocabulary(tied=False))


# ---------------------------------------------------------------- parameters


@pytest.mark.spec("S143")
@pytest.mark.parametrize(
    ("name", "published"), [("gpt2", 124_439_808), ("llama-7b", 6_738_415_616)], ids=["gpt2", "llama-7b"]
)
def test_presets_have_the_published_number_of_parameters(name, published):
    assert sum(measure.parameters(regard.preset(name)).values()) == published


@pytest.mark.spec("S143")
@pytest.mark.parametrize("name", C.PRESETS)
def test_the_parts_of_every_preset_are_those_of_the_formulas(name):
    c = regard.preset(name)
    found, dim, hidden = measure.parameters(c), c.trunk.dim, c.trunk.mlp.hidden or 4 * c.trunk.dim
    maps = 2 if not c.trunk.mlp.gated else 3
    biases = 4 * dim * bool(c.trunk.attention.bias)

    assert found["embedding"] == c.embed.vocab * dim
    assert found["attention"] == c.trunk.depth * (3 * dim * dim + dim * dim + biases)  # q, k and v: three squares
    assert found["feed-forward"] == c.trunk.depth * (maps * dim * hidden + c.trunk.mlp.bias * (hidden + dim))
    assert found["head"] == (0 if c.head.tied else c.embed.vocab * dim)
    assert found["cross-attention"] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_every_parameter_is_counted_once(shape):
    c = config(**SHAPES[shape])

    assert sum(measure.parameters(c).values()) == sum(weight.numel() for weight in Transformer(c).parameters())


def test_a_translator_has_its_cross_attention_counted_apart():
    made = translator()
    found = measure.parameters(made)

    assert found["cross-attention"] == sum(p.numel() for block in made.trunk.blocks for p in block.cross.parameters())
    assert sum(found.values()) == sum(weight.numel() for weight in made.parameters())


# ---------------------------------------------------------------- arithmetic


def counted(made: Transformer, ids: torch.Tensor, **rest: torch.Tensor) -> tuple[float, float]:
    """What torch counts, forward and with backward."""
    with FlopCounterMode(display=False) as counter:
        out = made(ids, **rest)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops()


def on_reference(c: C.Transformer) -> Transformer:
    """The same model on the kernel whose products torch's counter sees one by one."""
    return Transformer(C.make(C.Transformer, with_kernel(C.tree(c))))


def with_kernel(table: dict) -> dict:
    for name, value in table.items():
        if isinstance(value, dict):
            with_kernel(value)
            if name == "attention":
                value["kernel"] = "reference"
    return table


@pytest.mark.parametrize("shape", SHAPES)
def test_arithmetic_is_what_torch_counts(shape):
    c = config(**SHAPES[shape])
    forward, both = counted(on_reference(c), torch.randint(23, (3, 29)))
    found = measure.flops(c, 29)

    assert found.forward * 3 * 29 == pytest.approx(forward, rel=0.02)
    assert found.training * 3 * 29 == pytest.approx(both, rel=0.02)


def test_arithmetic_of_a_translator_is_what_torch_counts():
    c = translator(source={"depth": 3}).c
    forward, _ = counted(on_reference(c), torch.randint(1, 23, (3, 29)), source=torch.randint(1, 23, (3, 17)))

    assert measure.flops(c, 29, source=17).forward * 3 * 29 == pytest.approx(forward, rel=0.02)


def test_a_pooled_head_is_asked_once_for_a_sequence():
    c = model(head=C.Pooled(dense=True, out=5)).c
    forward, _ = counted(on_reference(c), torch.randint(23, (3, 29)))

    assert measure.flops(c, 29).forward * 3 * 29 == pytest.approx(forward, rel=0.02)


@pytest.mark.spec("S140")
def test_the_rule_of_thumb_gives_the_published_figures_of_gpt3():
    assert measure.rule(175 * 10**9, 300 * 10**9) == pytest.approx(3.15e23)
    assert measure.rule(175 * 10**9, 2048, training=False) == pytest.approx(716.8e12)


@pytest.mark.spec("S140")
def test_the_rule_of_thumb_is_near_the_count_where_the_model_is_large_and_the_context_short():
    c = regard.preset("llama-7b")
    parts = measure.parameters(c)
    ruled = measure.rule(sum(parts.values()) - parts["embedding"], 1)

    assert ruled == pytest.approx(measure.flops(c, 64).training, rel=0.01)


# ---------------------------------------------------------------- memory


def kept(c: C.Transformer, batch: int, context: int) -> int:
    """The bytes that autograd really holds between forward and backward."""
    made, storages = Transformer(c), {}
    own = {weight.untyped_storage().data_ptr() for weight in made.parameters()}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    ids = torch.randint(23, (batch, context))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        F.cross_entropy(made(ids).flatten(0, 1).float(), ids.flatten())
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16"])
def test_activations_are_what_autograd_keeps(precision):
    said = C.tree(config(position=C.Rotary(), dim=24, mlp=C.MLP(gated=True)))
    c = C.make(C.Transformer, said | {"precision": precision})

    assert measure.activations(c, 3, 29) == kept(c, 3, 29)


def test_activations_grow_with_the_batch_and_faster_with_the_context():
    c = config(attention=C.Attention(heads=3, kernel="reference"))
    one, twice, longer = (measure.activations(c, *size) for size in ((2, 32), (4, 32), (2, 64)))

    assert twice == pytest.approx(2 * one, rel=0.02)
    assert longer > 2.2 * one


def test_the_optimizer_keeps_what_adamw_keeps():
    made = model()
    optimizer = torch.optim.AdamW(made.parameters())
    made(torch.randint(23, (2, 5))).sum().backward()
    optimizer.step()
    held = sum(t.nbytes for each in optimizer.state.values() for name, t in each.items() if name != "step")

    assert measure.memory(made.c, 2, 5).optimizer == held


def test_muon_keeps_one_moment_of_the_blocks_matrices():
    c = config()
    matrices = sum(w.numel() for name, w in Transformer(c).trunk.blocks.named_parameters() if w.dim() == 2)
    adam, muon = (measure.memory(c, 1, 5, optimizer).optimizer for optimizer in (C.AdamW(), C.Muon()))

    assert adam - muon == 4 * matrices


# ---------------------------------------------------------------- the whole bill


@pytest.mark.slow
def test_an_estimate_of_a_large_model_makes_none():
    """Making it would take 27 GB for the weights alone."""
    bill = measure.estimate(regard.preset("llama-7b"), batch=2, context=128)

    assert bill.memory.weights == 4 * 6_738_415_616
    assert bill.memory.total > 100 * 2**30


def test_a_prediction_is_the_arithmetic_at_the_measured_rate():
    c = config()
    found = measure.predict(c, batch=3, context=29, seconds=0.01)

    assert found.step_flops == measure.estimate(c, batch=3, context=29).step_flops
    assert found.step_seconds * found.flops_per_second == pytest.approx(found.step_flops)
    assert found.memory == measure.memory(c, 3, 29).total


def test_the_length_that_positions_know_is_the_context_unless_said():
    assert measure.estimate(config(position=C.Learned(length=31))).context == 31
    assert measure.estimate(config(position=C.Rotary(length=77))).context == 512


def test_an_explanation_names_every_part_and_the_whole():
    told = measure.explain(regard.preset("gpt2"))

    assert "124,439,808" in told.split("total")[1].splitlines()[0]
    assert "12 heads of 64" in told and "768 -> 3072 -> 768, gelu_tanh" in told and "tied to embed" in told
    assert "fused: causal over 1024 x 1024, one fused pass" in told
    assert "FLOP a token" in told and "activations" in told


def test_the_rows_of_an_explanation_add_up():
    normed = C.Attention(heads=3, qk_norm=C.Norm())
    made = translator(source={"depth": 3, "position": C.Learned(length=31)}, attention=normed)

    assert sum(many for _, _, many in rows(made)) == sum(weight.numel() for weight in made.parameters())


def test_every_distinct_mask_has_its_plan():
    c = C.Transformer(embed=C.Embed(vocab=23), trunk=trunk(depth=4, mask=("causal & window(2)", "causal")))
    found = measure.plans(c, 29)

    assert [where for where, _ in found] == ["trunk.0,2", "trunk.1,3"]
    assert found[0][1].startswith("fused: causal & window(2) over 29 x 29") and "table" in found[0][1]


def test_plans_are_those_of_a_real_forward():
    made, seen = translator(), []
    for part in (made.encoder, made.trunk):
        asked = part.plan
        part.plan = lambda *args, asked=asked: seen.append(str(asked(*args))) or asked(*args)
    ids = torch.randint(1, 23, (2, 29))
    made(ids, source=ids)

    assert [plan for _, plan in measure.plans(made.c, 29, batch=2)] == seen


def test_numbers_are_written_for_people():
    assert [big(n) for n in (999, 1e6, 3.96e9, 2e21)] == ["999 ", "1 M", "3.96 G", "2 Z"]
    assert [size(n) for n in (12, 2048, 3 * 2**30)] == ["12 B", "2 KiB", "3 GiB"]
