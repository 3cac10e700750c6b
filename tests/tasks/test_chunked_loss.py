"""The loss in chunks: the same numbers as with all logits at once, and never all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from tasks.builders import chance, model, task
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from regard import config as C
from regard.models.heads import DeferredLogits, defer_logits
from regard.tasks.losses import chunked_cross_entropy

B, N, D, V = 3, 37, 16, 101
SAME = dict(atol=1e-6, rtol=1e-6)


def made(bias=True, asked=0.8):
    x, weight, each = (torch.randn(shape, requires_grad=True) for shape in ((B, N, D), (V, D), (V,)))
    labels = torch.randint(V, (B, N)).where(torch.rand(B, N) < asked, -100)
    return DeferredLogits(x, weight, each if bias else None), labels


def plain(given, labels, smoothing=0.0):
    logits = F.linear(*given).flatten(0, 1)
    return F.cross_entropy(logits.float(), labels.flatten(), label_smoothing=smoothing, reduction="sum")


def learned(loss, given):
    return torch.autograd.grad(loss / N, [tensor for tensor in given if tensor is not None])


@pytest.mark.parametrize("rows", [1, 10, 37, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_are_those_of_the_whole(rows, smoothing, bias):
    given, labels = made(bias)
    whole, parts = plain(given, labels, smoothing), chunked_cross_entropy(given, labels, smoothing, rows)

    assert_close(parts, whole, **SAME)
    for ours, theirs in zip(learned(parts, given), learned(whole, given), strict=True):
        assert_close(ours, theirs, **SAME)


def test_a_batch_in_which_nothing_is_asked_costs_nothing():
    given, labels = made(asked=0.0)
    loss = chunked_cross_entropy(given, labels, 0.1, 10)

    assert loss == 0 and all(not grad.any() for grad in learned(loss, given))


def test_hopeless_logits_stay_finite():
    given, labels = made()
    far = given._replace(x=given.x * 1e4)

    assert_close(chunked_cross_entropy(far, labels), plain(far, labels))
    assert all(grad.isfinite().all() for grad in learned(chunked_cross_entropy(far, labels), given))


def test_without_gradients_only_the_loss_is_made():
    given, labels = made()
    with torch.no_grad():
        loss = chunked_cross_entropy(given, labels)

    assert not loss.requires_grad
    assert_close(loss, plain(given, labels), **SAME)


def test_second_derivatives_are_refused_and_not_wrong():
    given, labels = made()
    slope = torch.autograd.grad(chunked_cross_entropy(given, labels), given.x, create_graph=True)[0]

    with pytest.raises(RuntimeError, match="no second derivatives"):
        slope.sum().backward()


def test_a_checkpointed_loss_is_the_same():
    given, labels = made()
    again = checkpoint(
        lambda x: chunked_cross_entropy(given._replace(x=x), labels, 0.1, 10), given.x, use_reentrant=False
    )

    for ours, theirs in zip(learned(again, given), learned(plain(given, labels, 0.1), given), strict=True):
        assert_close(ours, theirs, **SAME)


# ---------------------------------------------------------------- in a model

HEADS = {
    "tied": C.LMHead(), "tied, with bias and scale": C.LMHead(bias=True, scale=0.3),
    "transform": C.LMHead(bias=True, transform=True), "its own": C.LMHead(tied=False),
}  # fmt: skip


def asked(c, head, chunk, precision="fp32", **said):
    """The loss of a batch, and every gradient, as a step of training has it."""
    objective, known = task(c, chunk=chunk)
    asked = model(head, vocab=len(known), **said)
    asked.c = type(asked.c)(**{**vars(asked.c), "precision": precision})
    text = "The cat sat on the mat. A dog met an owl, and neither said why!"
    batch = objective.collate([objective.example({"text": text[at:]}, known) for at in (0, 4, 24)], chance())
    loss = sum(objective.loss_sums(asked, batch).values())
    (loss / 30).backward()
    return loss.detach(), {name: weight.grad for name, weight in asked.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("c", [C.NextToken(), C.MaskedLM(rate=0.5)], ids=["next_token", "masked_lm"])
def test_an_objective_learns_the_same_in_chunks(c, head):
    said = dict(mask="causal") if c.kind == "next_token" else {}
    whole, expected = asked(c, head, None, **said)
    parts, found = asked(c, head, 7, **said)

    assert_close(parts, whole, **SAME)
    assert found.keys() == expected.keys() and "embed.tokens.weight" in found
    for name, grad in expected.items():
        assert_close(found[name], grad, **SAME, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.usefixtures("bf16_products")
def test_under_autocast_the_loss_is_the_same_and_gradients_are_as_near_the_exact_ones():
    exact, slopes = asked(C.MaskedLM(rate=0.5), HEADS["transform"], None)
    whole, plainly = asked(C.MaskedLM(rate=0.5), HEADS["transform"], None, "mixed")
    parts, found = asked(C.MaskedLM(rate=0.5), HEADS["transform"], 7, "mixed")

    def off(grads):
        return max(((grads[name] - slope).norm() / slope.norm()).item() for name, slope in slopes.items())

    assert_close(parts, whole, atol=1e-6, rtol=1e-6)
    assert whole != exact  # it really ran in bf16
    assert off(found) < 1.1 * off(plainly) + 1e-3


@pytest.mark.slow
def test_a_compiled_objective_stays_one_graph():
    graphs = []

    def count(graph, examples):
        graphs.append(graph)
        return graph.forward

    objective, known = task(C.NextToken(), chunk=7)
    asked = model(C.LMHead(), vocab=len(known), mask="causal")
    batch = {"ids": torch.randint(5, 600, (2, 23)), "labels": torch.randint(5, 600, (2, 23))}
    compiled = torch.compile(objective.loss_sums, backend=count, fullgraph=True)
    losses = [compiled(asked, batch)["loss"] for _ in range(2)]

    assert len(graphs) == 1
    assert_close(losses[1], objective.loss_sums(asked, batch)["loss"])
    assert asked(batch["ids"]).shape == (2, 23, len(known))


def test_a_model_without_words_cannot_hold_them_back():
    with pytest.raises(ValueError, match="head.kind"):
        defer_logits(model(C.NoHead()), torch.tensor([[5, 6]]))


def test_a_wrapped_model_defers_its_logits_too():
    class Wrapper(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, ids, **given):
            return self.inner(ids, **given)

    assert isinstance(defer_logits(Wrapper(model()), torch.tensor([[5, 6]])), DeferredLogits)
    with pytest.raises(ValueError, match="head.kind"):
        defer_logits(Wrapper(model(C.NoHead())), torch.tensor([[5, 6]]))


def test_no_tensor_is_as_large_as_the_logits():
    rows, words, width = 512, 3001, 8
    x, weight = torch.randn(4, rows // 4, width, requires_grad=True), torch.randn(words, width, requires_grad=True)
    labels = torch.randint(words, (4, rows // 4))

    def largest(loss):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            loss().backward()
        return max(event.self_cpu_memory_usage for event in profile.events()) / 4

    assert largest(lambda: plain(DeferredLogits(x, weight, None), labels)) >= rows * words
    assert largest(lambda: chunked_cross_entropy(DeferredLogits(x, weight, None), labels, rows=32)) <= 32 * words + 100
