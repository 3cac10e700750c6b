"""Memory held to what autograd, the optimizers and the cache really keep."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from core.builders import model
from measure.small_models import SHAPES, B, N, build, config, run, together
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import regard
from regard import config as C
from regard import measure
from regard.core.layers import Block
from regard.core.model import Transformer
from regard.measure.activations import map_trunks, saved_tensors
from regard.measure.fake_model import max_tokens
from regard.measure.memory import largest_block_bytes, memory_from_count, parameter_memory

# ---------------------------------------------------------------- what backward needs


def kept(c, batch: int = B, context: int = N) -> int:
    """The bytes that autograd really holds between forward and backward."""
    made, storages = build(c), {}
    own = {weight.untyped_storage().data_ptr() for weight in made.parameters()}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        judged(run(made, batch, context))
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


def judged(out) -> None:
    logits = out[0] if isinstance(out, tuple) else out
    if logits.dim() == 3:
        F.cross_entropy(logits.flatten(0, 1).float(), torch.zeros(logits[..., 0].numel(), dtype=torch.long))


def length(c) -> int:
    return 35 if max_tokens(c) == 35 else N


@pytest.mark.parametrize("shape", SHAPES)
def test_activations_are_what_autograd_keeps(shape):
    c = SHAPES[shape]

    assert measure.activation_bytes(c, B, length(c)) == kept(c)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["mixed", "bf16"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_activations_are_what_autograd_keeps_in_sixteen_bits(precision, place):
    c = config(
        position=C.RotaryPosition(), dim=24, mlp=C.MLP(gated=True), precision=precision, norm_placement=place, depth=3
    )

    assert measure.activation_bytes(c, B, N) == kept(c)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["reference", "fused"])
def test_short_models_say_what_all_layers_keep(shape, kernel):
    """Layers repeat, so counting two of a kind is counting all: equal to the last byte."""
    c = SHAPES[shape]
    whole = map_trunks(c, lambda t: replace(
        t, attention=replace(t.attention, kernel=kernel),
        cross_attention=t.cross_attention and replace(t.cross_attention, kernel=kernel)))  # fmt: skip

    assert measure.activation_memory(c, B, length(c), kernel).kept == saved_tensors(whole, B, length(c)).kept


def test_activations_grow_with_the_batch_and_faster_with_the_context():
    c = config(attention=C.Attention(heads=3, kernel="reference"))
    one, twice, longer = (measure.activation_bytes(c, *size) for size in ((2, 32), (4, 32), (2, 64)))

    assert twice == pytest.approx(2 * one, rel=0.02)
    assert longer > 2.2 * one


def test_the_fused_kernel_keeps_no_table_of_pairs():
    c = config()
    square = {
        name: [measure.activation_memory(c, B, n, name).kept for n in (64, 128, 256)] for name in ("reference", "fused")
    }
    bends = {name: (z - y) / (y - x) for name, (x, y, z) in square.items()}

    assert bends["fused"] == pytest.approx(2, rel=0.01)  # a line: twice the tokens, twice the bytes
    assert bends["reference"] > 2.5


# ---------------------------------------------------------------- checkpointing


class Alive(TorchDispatchMode):
    """Knows every storage that was made and is still there, besides a model's weights and their gradients."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.made = model, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def bytes(self) -> int:
        own = [t for weight in self.model.parameters() for t in (weight, weight.grad) if t is not None]
        places = {t.untyped_storage()._cdata for t in own}
        return sum(size for place, (ref, size) in self.made.items() if not ref.expired() and place not in places)


def recomputing(made: torch.nn.Module) -> None:
    """Every block as torch.utils.checkpoint runs it."""
    for block in made.modules():
        if isinstance(block, Block):
            block.forward = lambda *given, inner=block.forward: checkpoint(inner, *given, use_reentrant=False)


def peak(made: torch.nn.Module, batch: int, context: int) -> int:
    """The most that a real step holds, besides weights and their gradients, until its first block is recomputed."""
    alive, calls, found = Alive(made), [0], [0]

    def ended(block, given, out) -> None:
        calls[0] += 1
        if calls[0] == blocks + 1:  # the first one run again: now its insides are there once more
            found.append(alive.bytes())

    inner = [block for block in made.modules() if isinstance(block, Block)]
    blocks = len(inner)
    for block in inner:
        block.mlp.register_forward_hook(ended)  # the last thing in a block
    ids = torch.randint(VOCAB, (batch, context))
    with alive, set_checkpoint_early_stop(False):
        loss = F.cross_entropy(made(ids).flatten(0, 1), ids.flatten())
        found.append(alive.bytes())
        loss.backward()
    return max(found)


VOCAB = 23


@pytest.mark.parametrize("depth", [3, 7])
@pytest.mark.parametrize("vocab", [23, 4001], ids=["few words", "many words"])
def test_checkpointed_activations_are_what_a_real_step_holds_at_its_peak(depth, vocab):
    c = config(dim=48, mlp=C.MLP(hidden=192), depth=depth, attention=C.Attention(heads=3, kernel="reference"))
    c = replace(c, embed=C.TextEmbedding(vocab=vocab))
    made = build(c)
    recomputing(made)
    real, told = peak(made, 5, 67), measure.activation_memory(c, 5, 67).checkpointed

    x = 5 * 67 * 48 * 4  # one tensor of vectors: there is a gradient of what the block made, and what it made again
    assert 0 <= real - told < 2.2 * x


@pytest.mark.spec("S100")
def test_checkpointing_gives_the_same_gradients_with_much_less_memory():
    c = config(dim=48, mlp=C.MLP(hidden=192), depth=12, dropout=C.Dropout(embed=0.1, residual=0.1))
    plain = build(c)
    lean = build(c)
    lean.load_state_dict(plain.state_dict())
    recomputing(lean)
    for made in (plain, lean):
        torch.manual_seed(1)
        together(made(torch.arange(2 * 17).view(2, 17) % 23)).backward()

    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6, rtol=1e-6)
    held = measure.activation_memory(c, 5, 67)
    assert held.checkpointed < 0.6 * held.kept
    assert peak(lean, 5, 67) < 0.6 * peak_of_a_plain_step(c)


def peak_of_a_plain_step(c) -> int:
    made = build(c)
    alive = Alive(made)
    ids = torch.randint(VOCAB, (5, 67))
    with alive:
        loss = F.cross_entropy(made(ids).flatten(0, 1), ids.flatten())
        assert loss.requires_grad
        return alive.bytes()


def test_checkpointing_never_costs_memory():
    for name, c in SHAPES.items():
        held = measure.activation_memory(c, B, length(c))
        assert 0 < held.checkpointed <= held.kept, name


# ---------------------------------------------------------------- optimizer and ranks


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_optimizer_keeps_what_the_real_one_keeps(precision):
    from regard.training.optim.optimizer import OptimizerGroup

    for setting in (C.AdamW(), C.Muon(), C.Adafactor()):
        made = model(precision=precision)
        optimizer = OptimizerGroup(made, setting)
        made(torch.randint(23, (2, 5))).sum().backward()
        optimizer.step(None)
        held = sum(t.nbytes for name, t in optimizer.state().items() if not name.endswith("/step"))

        assert parameter_memory(made, setting).optimizer == held


@pytest.mark.parametrize("setting", [C.Muon(), C.Adafactor()], ids=lambda c: c.kind)
def test_a_count_alone_does_not_say_what_depends_on_shapes(setting):
    with pytest.raises(C.ConfigError, match=f"optimizer: the state of {setting.kind} depends on the model"):
        memory_from_count(1000, "fp32", setting)


def test_ranks_share_what_can_be_shared_and_hold_one_block_whole():
    made = build(config(dim=48))
    alone = measure.training_memory(made.c, B, N)
    block = largest_block_bytes(made)
    each = alone.per_rank(7, block)

    assert block == 4 * sum(weight.numel() for weight in made.trunk.blocks[0].parameters())
    for name in ("weights", "gradients", "optimizer"):
        assert 0 <= 7 * getattr(each, name) - getattr(alone, name) < 7
    assert each.activations == alone.activations and each.gathered == 2 * block
    assert alone.per_rank(1, block) == alone


# ---------------------------------------------------------------- writing

WRITERS = {
    "plain": config(),
    "grouped": config(attention=C.Attention(heads=6, kv_heads=2, head_dim=4)),
    "wide values": config(attention=C.Attention(heads=3, head_dim=5, value_head_dim=9)),
    "other heads in every layer": SHAPES["other heads in every layer"],
    "a window": config(mask="causal & window(3)"),  # remembers all the same: the cache does not forget
    "translator": SHAPES["translator"],
    "translator, layer by layer": SHAPES["translator, layer by layer"],
    "translator with other heads across": SHAPES["translator with other heads across"],
}


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("name", WRITERS)
def test_the_cache_is_what_a_model_really_allocates(name, precision):
    c = replace(WRITERS[name], precision=precision)
    made = build(c)
    cache = made.cache(B, N)
    source = {} if c.encoder is None else {"source": torch.randint(1, 23, (B, N))}
    with torch.no_grad():
        made(torch.randint(1, 23, (B, 5)), cache=cache, **source)
    kept = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in cache.tables()}
    for x in [*([] if cache.memory is None else [cache.memory.x]), *(cache.layers or [])]:
        kept[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()

    found = measure.cache_memory(made, B, N)

    assert found is not None and found.total == sum(kept.values())


@pytest.mark.parametrize("name", ["both heads of BERT", "one vector", "patches", "stages", "towers"])
def test_who_does_not_write_has_no_cache(name):
    assert measure.cache_memory(build(SHAPES[name]), B, N) is None


def test_grouped_heads_remember_less():
    one, other = (regard.preset("llama3-8b", kv_heads=groups) for groups in (32, 8))
    first, second = (measure.cache_memory(measure.build_fake_model(c).model, 1, 100).own for c in (one, other))

    assert first == pytest.approx(4 * second, rel=0.001)
    assert isinstance(measure.build_fake_model(other).model, Transformer)
