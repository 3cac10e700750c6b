"""One model in two threads: a call says by its arguments what it wants, so none sees what another asked for."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, current_thread, main_thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard import config as C
from regard.models.heads import DeferredLogits
from regard.tasks.losses import cross_entropy_sum, model_outputs

V, WAIT = 23, 20.0  # ids; seconds after which a thread that waits for the other gives up

TRUNKS = {
    "blocks": C.Trunk(dim=12, depth=2, mask="causal", position=C.RotaryPosition(), attention=C.Attention(heads=3)),
    "reversible": C.Trunk(dim=12, depth=2, mask="causal", kind="reversible", attention=C.Attention(heads=3)),
    "recurrent": C.RecurrentStack(dim=12, depth=2),
}
HEADS = {
    "lm": C.LMHead(bias=True),
    "pretraining": C.PretrainingHead(pooling=C.PoolingHead(out=2)),
}


def model(head: C.Head = HEADS["lm"], trunk: str = "blocks") -> regard.Model:
    torch.manual_seed(0)
    return regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=TRUNKS[trunk], head=head)).eval()


def texts(seed: int) -> list[list[int]]:
    return torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_two_threads_generate_what_each_generates_alone(trunk, settings):
    asked = model(trunk=trunk)

    def generated(lengths: tuple[int, ...]) -> tuple[list[list[int]], list[Tensor]]:
        ids, logits = [], []
        for length in lengths:
            session = asked.session(texts(length), max_new_tokens=length, **settings)
            session.logits_hook = lambda seen: logits.append(seen.clone())
            ids += session
        return ids, logits

    each = (7, 1, 4), (1, 4, 7)  # forward passes: one reads its prompts while the other is in the midst of a text
    alone, both = list(map(generated, each)), Barrier(2)

    def meet(*_) -> None:
        both.wait(WAIT)

    hook = asked.trunk.register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(generated, each))
    hook.remove()

    for (ids, logits), (expected, seen) in zip(together, alone, strict=True):
        assert ids == expected and all(map(torch.equal, logits, seen))


@pytest.mark.parametrize("head", HEADS)
def test_a_plain_call_beside_a_deferred_one_has_its_logits_and_each_its_own_answer(head):
    asked, ids = model(HEADS[head]), torch.tensor(texts(1))
    labels = torch.tensor(texts(2))

    def words(said):
        return said[0] if head == "pretraining" else said

    def loss():
        return cross_entropy_sum(words(model_outputs(asked, {"ids": ids}, deferred=True)), labels, rows=3)

    plain, alone, inside, answered = words(asked(ids)), loss(), Event(), Event()

    def wait(*_) -> None:
        if current_thread() is not main_thread():
            inside.set()
            assert answered.wait(WAIT)

    hook = asked.trunk.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(1) as thread:
        deferred = thread.submit(loss)
        assert inside.wait(WAIT)
        try:
            beside = words(asked(ids))
        finally:
            answered.set()
        hook.remove()

        assert isinstance(beside, Tensor) and torch.equal(beside, plain)
        assert torch.equal(deferred.result(), alone)


def test_after_an_error_in_a_deferred_forward_a_model_answers_as_before():
    asked, ids = model(), torch.tensor(texts(1))
    plain = asked(ids)

    def fail(*_) -> None:
        raise ZeroDivisionError

    for part in (asked.trunk, asked.head):
        hook = part.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            asked(ids, deferred=True)
        hook.remove()

        assert torch.equal(asked(ids), plain)


def test_deferred_logits_are_the_logits_and_hooks_on_the_head_see_them():
    asked, ids, seen = model(), torch.tensor(texts(1)), []
    hook = asked.head.register_forward_hook(lambda head, given, made: seen.append(made))
    made = asked(ids, deferred=True)
    hook.remove()

    assert isinstance(made, DeferredLogits) and seen == [made]
    assert torch.equal(F.linear(made.x, made.weight, made.bias), asked(ids))
