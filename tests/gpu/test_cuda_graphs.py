"""A recorded step says what the step as written says, in every kind of decoder, and texts grow the same through it."""

from unittest import SkipTest

import torch

import regard
from cases import cases
from regard import config as C
from regard.generation import cuda_graphs
from regard.generation.cuda_graphs import DecodeGraph, can_capture
from regard.gpu import decode_step

GATED = C.MLP(gated=True, activation="silu", bias=False, hidden=192)
MODELS = {
    "gpt2": dict(position=C.LearnedPosition(length=2000), mlp=C.MLP(activation="gelu_tanh")),
    "llama": dict(position=C.RotaryPosition(), attention=C.Attention(heads=8, kv_heads=2, bias=()), mlp=GATED,
                  norm=C.Norm(kind="rms", bias=False)),
    "neighbours": dict(position=C.RotaryPosition(layout="interleaved", fraction=0.5), attention=C.Attention(heads=2)),
    "window": dict(position=C.RotaryPosition(), mask="causal & window(40)"),
    "post": dict(position=C.SinusoidalPosition(), norm_placement="post", mlp=C.MLP(activation="relu")),
    "attention only": dict(position=C.RotaryPosition(), mlp=C.MLP(kind="none")),
    "attention only, post": dict(position=C.RotaryPosition(), mlp=C.MLP(kind="none"), norm_placement="post"),
    "slopes": dict(position=C.AlibiPosition()),
    "turns": dict(position=C.RotaryPosition(), mask=("causal & window(9)", "causal")),
    "narrow": dict(position=C.RotaryPosition(), dim=120, attention=C.Attention(heads=3), mlp=C.MLP(activation="relu2")),
    "normed": dict(position=C.RotaryPosition(), attention=C.Attention(heads=4, qk_norm=C.Norm(kind="rms", bias=False))),
}  # fmt: skip


def made(name, dtype=torch.bfloat16):
    torch.manual_seed(0)
    said = {"dim": 128, "depth": 3, "mask": "causal", "dropout": C.NO_DROPOUT, "attention": C.Attention(heads=4)}
    trunk = C.Trunk(**(said | MODELS[name]))
    model = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=211), trunk=trunk)).eval()
    for each in model.parameters():
        each.data = torch.randn_like(each) * 0.1 if each.dim() > 1 else each.data + torch.randn_like(each) * 0.1
    return model.to("cuda", dtype)


def given(rows, count):
    ids = torch.randint(211, (rows, count), device="cuda")
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1::2, : count // 3] = False
    return ids, real


def off(ours, theirs):
    return ((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).item()


@cases(name=list(MODELS), rows=[1, 3, 64])
def test_a_recorded_step_is_the_step_as_written(name, rows):
    """Not farther from the answer in double precision than twice what the plain step is."""
    model, capacity = made(name), 1100 if rows == 1 else 300
    ids, real = given(rows, 50)
    with torch.inference_mode():
        exact = made(name, torch.float64)
        plain, ours, sure = (one.cache(rows, capacity) for one in (model, model, exact))
        for one, cache in ((model, plain), (model, ours), (exact, sure)):
            one(ids, real=real, cache=cache)
        step = DecodeGraph(model, ours)
        for _ in range(20):
            new = torch.randint(211, (rows, 1), device="cuda")
            truth = exact(new, cache=sure)[:, -1]
            theirs, mine = model(new, cache=plain)[:, -1], step.replay(new)
            assert off(mine, truth) < 2 * off(theirs, truth) + 0.01
            assert torch.equal(plain.length, ours.length) and torch.equal(plain.real, ours.real)


@cases(name=list(MODELS), rows=[1, 3])
def test_texts_grow_the_same_through_a_recorded_step(name, rows):
    """In double precision, where no token is a matter of rounding."""
    model = made(name, torch.float64)
    texts = [ids.tolist() for ids in torch.randint(211, (rows, 30))]
    assert can_capture(model)
    told = list(model.session(texts, temperature=0, max_new_tokens=300))
    kept = model.session(texts, temperature=0, max_new_tokens=300)
    first = [one for _, one in zip(range(40), kept, strict=False)]
    rest = list(kept.copy())
    cuda_graphs.GRAPH_DEVICES.clear()
    try:
        plain = list(model.session(texts, temperature=0, max_new_tokens=300))
    finally:
        cuda_graphs.GRAPH_DEVICES.append("cuda")
    assert told == plain
    assert first + rest == plain


@cases(name=list(MODELS), lengths=[(30, 30, 30), (30, 7, 19)])
def test_texts_grow_the_same_after_a_recorded_prompt(name, lengths):
    """Of a shape that came before, in double precision; other texts each time."""
    model = made(name, torch.float64)
    asked = [[torch.randint(211, (length,)).tolist() for length in lengths] for _ in range(4)]
    told, last = [], None
    for texts in asked:
        one = model.session(texts, temperature=0, max_new_tokens=40)
        told.append(list(one))
        last = one.decode_graph
        del one
    assert all(last.readings.known.values()) and last.readings.able
    cuda_graphs.GRAPH_DEVICES.clear()
    try:
        assert told == [list(model.session(texts, temperature=0, max_new_tokens=40)) for texts in asked]
    finally:
        cuda_graphs.GRAPH_DEVICES.append("cuda")


def test_a_row_says_the_same_bits_beside_any_others():
    if not decode_step.HAS_TRITON:
        raise SkipTest("Triton is not installed")
    model = made("llama")
    with torch.inference_mode():
        answers = []
        for other in range(3):
            torch.manual_seed(other)
            ids, cache = torch.randint(211, (16, 20), device="cuda"), model.cache(16, 256)
            ids[5] = 7
            model(ids, cache=cache)
            for entry in cache.entries:  # what was read of a prompt is not at issue here
                for table in entry.tables():
                    table[5] = torch.linspace(-1, 1, table[5].numel(), device="cuda").view_as(table[5])
            answers.append(DecodeGraph(model, cache).replay(ids[:, -1:])[5].clone())
    assert torch.equal(answers[0], answers[1]) and torch.equal(answers[0], answers[2])


def test_weights_that_move_are_recorded_anew():
    model = made("gpt2", torch.float64)
    list(model.session([[1, 2, 3]], temperature=0, max_new_tokens=40))
    for each in model.parameters():
        each.data = each.data * 1.5
    told = list(model.session([[1, 2, 3]], temperature=0, max_new_tokens=40))
    cuda_graphs.GRAPH_DEVICES.clear()
    try:
        assert told == list(model.session([[1, 2, 3]], temperature=0, max_new_tokens=40))
    finally:
        cuda_graphs.GRAPH_DEVICES.append("cuda")


def test_an_engine_says_the_same_alone_and_in_a_crowd():
    """In bf16, by the loops: the same ids and the same log-probabilities, to the bit."""
    from regard.engine.engine import Engine
    from regard.engine.request_queue import GenerationRequest

    model, told = made("llama"), []
    for others in (0, 3):
        heard = []
        with Engine(model, slots=4, max_context=256) as engine:
            assert engine.slots.captured is not None
            tickets = [
                engine.submit(
                    GenerationRequest(ids=(1, 2, 3, 4), c=C.SamplingParams(temperature=0, max_new_tokens=60)),
                    heard.append,
                )
            ]
            for seed in range(others):
                asked = GenerationRequest(
                    ids=(5, 6, 7 + seed), c=C.SamplingParams(temperature=1.0, max_new_tokens=50, seed=seed)
                )
                tickets.append(engine.submit(asked, lambda one: None))
            for ticket in tickets:
                ticket.wait()
        told.append([(one.id, one.logprob) for one in heard])
    assert len(told[0]) >= 60 and told[0] == told[1]
