"""A block runner is an argument of one call: it runs the blocks of that call's trunk, and of nothing else."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import config as C
from regard.core.kernels import repeat_kv
from regard.core.layers import ACTIVATIONS
from regard.core.model import BlockRunner, Trunk
from regard.generation import cuda_graphs
from regard.generation.cuda_graphs import DecodeGraph
from regard.gpu import decode_step
from regard.gpu.decode_step import FusedDecodeRunner
from regard.models.segment_memory import build_segment_memory

V = 50
GATED = C.MLP(gated=True, activation="silu", bias=False)
MODELS = {
    "gpt2": dict(position=C.LearnedPosition(length=99)),
    "llama": dict(position=C.RotaryPosition(), attention=C.Attention(heads=4, kv_heads=2, bias=()), mlp=GATED,
                  norm=C.Norm(kind="rms", bias=False)),
    "window": dict(position=C.RotaryPosition(), mask=("causal & window(4)", "causal")),
    "post": dict(position=C.SinusoidalPosition(), norm_placement="post", mlp=C.MLP(activation="relu")),
    "bias": dict(position=C.AlibiPosition()),
    "normed": dict(position=C.RotaryPosition(), attention=C.Attention(heads=4, qk_norm=C.Norm(kind="rms", bias=False))),
    "reversible": dict(kind="reversible"),
}  # fmt: skip


def made(name="llama", encoder=None, **rest):
    torch.manual_seed(0)
    trunk = C.Trunk(**dict(dim=32, depth=3, mask="causal", attention=C.Attention(heads=4)) | MODELS[name] | rest)
    model = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk, encoder=encoder)).double().eval()
    for each in model.parameters():
        each.data = torch.randn_like(each) * 0.3
    return model


def read(model, count=6):
    """A cache that holds two prompts, the second of them padded."""
    ids, real = torch.arange(2 * count).view(2, count), torch.ones(2, count, dtype=torch.bool)
    real[1, :2] = False
    cache = model.cache(2, 20)
    model(ids, real=real, cache=cache)
    return cache


class Counter(BlockRunner):
    """Runs as a trunk does by itself, and counts the calls of each method."""

    def __init__(self):
        self.calls = []

    def begin(self, *given):
        self.calls.append("begin")
        return super().begin(*given)

    def plan(self, *given):
        self.calls.append("plan")
        return super().plan(*given)

    def run(self, *given):
        self.calls.append("run")
        return super().run(*given)


@torch.no_grad()
def test_a_runner_takes_the_slots_makes_the_plans_and_runs_the_blocks_of_its_own_call():
    model, runner = made("window"), Counter()
    plain, cache, ids = read(model), read(model), torch.tensor([[7], [8]])
    answers = [model(ids, cache=cache, runner=runner), model(ids, cache=cache)]

    assert runner.calls == ["begin", "plan", "plan", "run"]
    assert all(map(torch.equal, answers, [model(ids, cache=plain), model(ids, cache=plain)]))
    assert all(map(torch.equal, cache.tables(), plain.tables()))


@torch.no_grad()
def test_a_runner_does_not_reach_the_encoder():
    runner, seen = Counter(), []
    model = made(
        "gpt2", encoder=C.Encoder(trunk=C.Trunk(dim=32, depth=2, attention=C.Attention(heads=4))), cross="last"
    )
    model.encoder.register_forward_pre_hook(lambda part, args, named: seen.append(named), with_kwargs=True)
    ids = torch.tensor([[1, 2, 3]])
    model(ids, source=ids, runner=runner)

    assert runner.calls == ["plan", "plan", "run"]  # attention and cross-attention
    assert [named.get("runner") for named in seen] == [None]


@torch.no_grad()
def test_a_cache_with_a_way_of_its_own_to_begin_keeps_it():
    model, ids = made(), torch.arange(8).view(2, 4)
    memories = [build_segment_memory(model, 2, 5) for _ in range(3)]
    first, second, third = (
        [model(ids + step, cache=memory, **given) for step in range(3)]
        for memory, given in zip(memories, ({}, {"runner": Counter()}, {"runner": FusedDecodeRunner()}), strict=True)
    )

    assert all(map(torch.equal, first, second)) and all(map(torch.equal, first, third))


def test_a_stack_without_blocks_refuses_a_runner():
    c = C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=C.RecurrentStack(dim=8, depth=1))
    with pytest.raises(TypeError, match="runner"):
        regard.Model(c)(torch.tensor([[1]]), runner=Counter())


# ---------------------------------------------------------------- the fused one


def fused_linear(x, part, norm, act="none", gated=False):
    made = F.linear(x if norm is None else norm(x), part.weight, part.full_bias())
    gate, made = made.chunk(2, -1) if gated else (made, made)
    return made if act == "none" else ACTIVATIONS[act](gate) * (made if gated else 1)


def linear_residual(x, part, add, then):
    made = F.linear(x, part.weight, part.full_bias()) + add
    return made, None if then is None else then(made)


def attend_cache(attn, qkv, scope, past):
    assert scope.plan.reason == "the kernels of a decode step"
    sizes, counts = list(attn.qkv.sizes.values()), (attn.heads, attn.kv_heads, attn.kv_heads)
    q, k, v = (attn.split(x, count) for x, count in zip(qkv.split(sizes, -1), counts, strict=True))
    k, v = past.append(scope.position.rotate(k), v, scope.cache_slots, False)
    table = scope.plan.spec.mask.table(scope.plan.spec.q, scope.plan.spec.k)[:, None]
    q, k, v = scope.position.rotate(q), repeat_kv(k, q), repeat_kv(v, q)
    return F.scaled_dot_product_attention(q, k, v, table, scale=attn.scale).transpose(1, 2).flatten(-2)


@pytest.fixture
def kernels(monkeypatch):
    """The kernels of a GPU, written in torch; the list of those that were called."""
    called = []
    for one in (fused_linear, linear_residual, attend_cache):
        monkeypatch.setattr(
            decode_step, one.__name__, lambda *args, one=one, **rest: called.append(one.__name__) or one(*args, **rest)
        )
    monkeypatch.setattr(decode_step, "has_kernels", lambda x: True)
    return called


@pytest.mark.parametrize("name", [name for name in MODELS if name != "reversible"])
@torch.no_grad()
def test_a_step_through_the_fused_runner_is_the_step_as_written(name, kernels):
    model = made(name)
    plain, fused = read(model), read(model)
    for ids in (torch.tensor([[i], [i + 1]]) for i in range(9)):
        torch.testing.assert_close(model(ids, cache=fused, runner=FusedDecodeRunner()), model(ids, cache=plain))
    attends = 0 if name in ("bias", "normed") else 3  # these attend as written

    assert [kernels.count(each) for each in ("attend_cache", "fused_linear")] == [9 * attends, 9 * (attends + 3)]
    assert all(map(torch.equal, (fused.real, fused.length), (plain.real, plain.length)))


@torch.no_grad()
def test_a_prompt_through_the_fused_runner_runs_as_written(kernels):
    model, ids = made(), torch.arange(6).view(2, 3)

    assert torch.equal(model(ids, cache=model.cache(2, 9), runner=FusedDecodeRunner()), model(ids))
    assert not kernels


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_captured_step_is_given_the_fused_runner_where_the_trunk_is_a_plain_one(name):
    model = made(name)
    given = []
    model.trunk.register_forward_pre_hook(lambda part, args, named: given.append(named.get("runner")), with_kwargs=True)
    plain, cache, ids = read(model), read(model), torch.tensor([[7], [8]])
    given.clear()
    step = DecodeGraph(model, cache).replay(ids)

    assert given == [cuda_graphs.FUSED if type(model.trunk) is Trunk else None]
    assert torch.equal(step, model(ids, cache=plain)[:, -1])


@torch.no_grad()
def test_captured_and_eager_steps_of_one_model_in_several_threads_are_those_of_each_alone():
    """They meet before every block: none may see the way in which another runs them."""
    model, both = made("window"), Barrier(3)

    @torch.no_grad()
    def logits(captured):
        cache = read(model)
        step = DecodeGraph(model, cache).replay if captured else lambda ids: model(ids, cache=cache)[:, -1]
        return [step(torch.tensor([[i], [i + 1]])).clone() for i in range(5)]

    def meet(*_):
        both.wait(20)

    kinds = (True, True, False)
    alone = list(map(logits, kinds))
    hooks = [block.register_forward_pre_hook(meet) for block in model.trunk.blocks]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(logits, kinds))
    for hook in hooks:
        hook.remove()

    for mine, theirs in zip(together, alone, strict=True):
        assert all(map(torch.equal, mine, theirs))
