"""Copying letters: an alignment learns to point at each in turn, and one vector holds only so many."""

from functools import cache

import pytest
import torch

from regard.training.loop import train_steps
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

pytestmark = pytest.mark.xdist_group("copying")  # what its tests share is made once

LONGEST = 9
SMALL = [f"data.source=toy:copy({LONGEST})", "train.context=11", "model.dim=32", "train.batch_size=32",
         "train.device=cpu",
         "train.eval_every=none", "model.embed.scale=6.0"]  # fmt: skip


@cache
def learnt(name, steps):
    run = Run.from_recipe(read_recipe(name, [*SMALL, f"train.steps={steps}"]))
    for _ in train_steps(run):
        pass
    return run


def right(run, length):
    """The part of letters that are told right, each after the right ones, in words of one length."""
    task, chance = run.task, torch.Generator().manual_seed(length)
    words = ["".join("abcdefghijklmnop"[i] for i in torch.randint(16, (length,), generator=chance)) for _ in range(60)]
    ids = [run.tokenizer.encode(word) for word in words]
    batch = task.batch(ids, ids)
    with torch.no_grad():
        said = run.model.eval()(batch["ids"], source=batch["source"], source_real=batch["source_real"],
                                real=batch["real"]).argmax(-1)  # fmt: skip
    asked = batch["labels"] != -100
    return float((said == batch["labels"])[asked].float().mean())


@pytest.mark.slow
@pytest.mark.spec("S069", "S127")
def test_an_alignment_copies_words_of_every_length():
    run = learnt("bahdanau", 600)

    assert min(right(run, length) for length in (2, 5, LONGEST)) >= 0.99


@pytest.mark.slow
@pytest.mark.spec("S157")
def test_the_alignment_of_a_copy_is_the_diagonal():
    seen = learnt("bahdanau", 600).model.align("hgfedcba", "hgfedcba")

    near = (seen.weights.argmax(-1) - torch.arange(len(seen.target))).abs()
    assert seen.source == seen.target and seen.layer == 0
    assert (near <= 1).all() and (near == 0).float().mean() > 0.6  # a letter's neighbours know it too


@pytest.mark.slow
@pytest.mark.spec("S069", "S126")
def test_one_vector_holds_short_words_and_loses_long_ones():
    run = learnt("fixed-vector", 600)
    short, middle, long = (right(run, length) for length in (2, 5, LONGEST))

    assert short > middle + 0.1 > long + 0.2
    assert right(learnt("bahdanau", 600), LONGEST) > long + 0.3
