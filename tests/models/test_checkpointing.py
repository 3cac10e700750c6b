"""Recomputing: the same gradients to the bit for a fraction of the memory, and nothing else changes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from sizes import in_full

import regard
from regard import measure
from regard.core.layers import Block
from regard.core.model import Trunk
from regard.models.checkpointing import CheckpointedBlock, set_checkpointing

B, N, S, V, D = 3, 17, 11, 23, 24
LONG = 97  # tokens: enough for activations to outweigh all else
SHAPES = {
    "gpt2": dict(position={"length": 33}),
    "llama-7b": dict(hidden=20, kv_heads=1),
    "bert-base": dict(position={"length": 33}),
    "albert-base": dict(position={"length": 33}),
    "t5-small": {},
    "transformer-base": {},
}


def made(name, depth=3, dropout=0.2, **changes):
    return regard.build(regard.preset(name, dim=D, depth=depth, heads=3, vocab=V, dropout=dropout,
                                      **SHAPES[name] | changes)).train()  # fmt: skip


def inputs(model, count=N):
    chance = torch.Generator().manual_seed(5)
    ids = torch.randint(V, (B, count), generator=chance)
    return ids, {"source": torch.randint(V, (B, S), generator=chance)} if model.c.encoder is not None else {}


def loss_of(model, run=None, count=N):
    ids, more = inputs(model, count)
    out = (model if run is None else run)(ids, **more)
    if model.c.head.kind != "lm":
        return out.square().sum()
    return F.cross_entropy(out.flatten(0, 1).float(), ids.flatten())


def gradients(model, run=None):
    """Of every weight, with the same random numbers for dropout."""
    model.zero_grad()
    torch.manual_seed(7)
    loss_of(model, run).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def twins(model):
    """A model, and one like it that recomputes."""
    other = copy.deepcopy(model)
    set_checkpointing(other)
    return model, other


@pytest.mark.spec("S100")
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_the_same_to_the_bit_dropout_included(name):
    plain, forgetful = twins(made(name))

    assert_same(gradients(forgetful), gradients(plain))


def test_gradients_are_the_same_in_every_precision():
    for precision in ("mixed", "bf16"):
        plain, forgetful = twins(made("llama-7b", precision=precision))

        assert_same(gradients(forgetful), gradients(plain))


@pytest.mark.slow
def test_stages_recompute_in_every_trunk():
    plain, forgetful = twins(regard.build(regard.preset("swin-tiny", trunk={"depth": 2})).train())
    image = torch.randn(1, 3, 224, 224)
    trunks = [part for part in forgetful.modules() if isinstance(part, Trunk)]

    assert len(trunks) > 1 and all(isinstance(block, CheckpointedBlock) for trunk in trunks for block in trunk.blocks)
    grads = []
    for model in (plain, forgetful):
        torch.manual_seed(7)
        model(image).square().sum().backward()
        grads.append({name: weight.grad for name, weight in model.named_parameters()})
    assert_same(*grads)


def test_parts_that_are_frozen_change_nothing():
    plain, forgetful = made("gpt2"), made("gpt2")
    forgetful.load_state_dict(plain.state_dict())
    set_checkpointing(forgetful)
    for model in (plain, forgetful):
        model.embed.requires_grad_(False)
        model.trunk.positions.requires_grad_(False)  # nothing that comes into the first block asks for a gradient
        model.trunk.blocks[1].requires_grad_(False)

    assert_same(gradients(forgetful), gradients(plain))


# ---------------------------------------------------------------- memory


def saved(model):
    """Bytes that autograd keeps between forward and backward, each storage once."""
    kept, own = {}, {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(x):
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss_of(model, count=LONG)
    return sum(storage.nbytes() for storage in kept.values())


def peak(model):
    """The most bytes alive at once while a step runs, by torch's own allocator; weights and gradients not counted."""
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss_of(model, count=LONG).backward()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.spec("S100")
def test_twelve_layers_hold_forty_percent_less():
    plain, forgetful = twins(made("gpt2", depth=12, position={"length": LONG}))

    assert saved(forgetful) < 0.6 * saved(plain)
    assert peak(forgetful) < 0.6 * peak(plain)


def test_measure_knows_what_is_held():
    plain, forgetful = twins(made("gpt2", depth=12, position={"length": LONG}))
    known = measure.activation_memory(plain.c, B, LONG)

    assert saved(plain) == pytest.approx(known.kept, rel=0.01)
    assert peak(forgetful) == pytest.approx(known.checkpointed, rel=0.2)  # and what backward makes on the way


# ---------------------------------------------------------------- nothing else changes


def test_it_comes_and_goes_and_the_weights_keep_their_names():
    model = made("gpt2")
    before = list(model.state_dict())
    set_checkpointing(model)
    assert [type(block) for block in model.trunk.blocks] == [CheckpointedBlock] * 3 and list(
        model.state_dict()
    ) == before
    set_checkpointing(model)  # twice is once
    set_checkpointing(model, on=False)

    assert [type(block) for block in model.trunk.blocks] == [Block] * 3


def test_live_blocks_stay_what_they_are_and_others_take_their_places():
    model, seen = made("gpt2", dropout=0.0), []
    block, weights = model.trunk.blocks[1], list(model.parameters())
    model.trunk.twice = block  # the same block, in a second place
    block.register_forward_hook(lambda part, given, out: seen.append(type(part)))
    set_checkpointing(model)

    assert type(block) is Block and model.trunk.twice is model.trunk.blocks[1] is not block
    assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
    loss_of(model)
    assert seen == [CheckpointedBlock]


def test_a_copy_recomputes_with_its_own_weights():
    model = made("gpt2", dropout=0.0)
    set_checkpointing(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    mine, theirs = gradients(model), gradients(other)
    set_checkpointing(other, on=False)

    assert_same(gradients(other), theirs)
    assert not torch.equal(mine["embed.tokens.weight"], theirs["embed.tokens.weight"])


def test_what_is_watched_is_seen_once_and_is_the_same():
    plain, forgetful = twins(made("gpt2", dropout=0.0))
    records = []
    for model in (plain, forgetful):
        with regard.looking(model, "trunk.1.attn.pattern", "trunk.2.mlp.out") as seen:
            loss_of(model).backward()
        records.append([seen.all_calls(name) for name in seen])

    assert [len(calls) for calls in records[1]] == [1, 1]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(*records, strict=True))


def test_edits_happen_once():
    _, forgetful = twins(made("gpt2", dropout=0.0))
    calls = []
    with regard.looking(forgetful, "trunk.1.attn.result", edit=lambda name, x: calls.append(name) or 0 * x):
        loss_of(forgetful).backward()

    assert calls == ["trunk.1.attn.result"]


def test_a_cache_is_written_once_even_while_training():
    plain, forgetful = twins(made("gpt2", dropout=0.0))
    ids, _ = inputs(plain)
    out = []
    for model in (plain, forgetful):
        cache = model.cache(B, 33)
        out.append(torch.cat([model(ids[:, :9], cache=cache), model(ids[:, 9:], cache=cache)], 1))
        assert cache.length.tolist() == [N] * B

    assert torch.equal(*out)


def test_nothing_is_computed_twice_in_evaluation(monkeypatch):
    _, forgetful = twins(made("gpt2"))
    calls = []
    monkeypatch.setattr("regard.models.checkpointing.checkpoint", lambda *given, **how: calls.append(given) or given[1])
    loss_of(forgetful.eval())
    with torch.no_grad():
        loss_of(forgetful.train())

    assert calls == []
    loss_of(forgetful)
    assert len(calls) == 3


# ---------------------------------------------------------------- compiled

# torch looks at the .grad of what comes into a block when it compiles it alone, and warns itself
COMPILED = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def compiled(model, whole, **how):
    """The model as the loop compiles it: its forward, or one block for all. Gives what to call."""
    torch.compiler.reset()
    if whole:
        return torch.compile(model, dynamic=False, fullgraph=True, **how)
    for block in model.trunk.blocks:
        block.compile(dynamic=False, fullgraph=True, **how)
    return model


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["the whole forward", "block by block"])
@pytest.mark.parametrize("backend", [
    "aot_eager",  # the same graphs and the same partition, without a C++ compiler
    pytest.param("inductor", marks=in_full),
])  # fmt: skip
def test_compiled_gradients_are_the_same_to_the_bit(whole, backend):
    plain, forgetful = twins(made("gpt2", depth=2))

    assert_same(*(gradients(model, compiled(model, whole, backend=backend)) for model in (plain, forgetful)))


@COMPILED
@pytest.mark.slow
def test_compiled_blocks_keep_less_too():
    sizes = []
    for model in twins(made("gpt2", depth=2, dropout=0.0, position={"length": LONG})):
        compiled(model, whole=False, backend="aot_eager")
        loss_of(model, count=LONG)  # compiled outside of the hooks
        sizes.append(saved(model))

    assert sizes[1] < 0.6 * sizes[0]
