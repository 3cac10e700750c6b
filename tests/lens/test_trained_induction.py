"""Two layers of attention learn to copy what came before: the loss falls at once, and with two heads in a row.

The packaged recipe, shortened: words of 8 to 16 letters for 16 to 32, and 300 steps at a higher rate.
"""

import json
import math
from statistics import mean
from types import SimpleNamespace

import pytest
from sizes import in_full

import regard
from regard import lens, zoo

SHORTER = ["data.source=toy:repeat(16, 20000)", "data.validation=0.01", "train.context=32", "train.steps=300",
           "train.optimizer.lr=6e-3", "train.optimizer.weight_decay=2.0", "train.snapshots=[75]",
           "train.eval_every=none", "train.compile=false", "train.device=cpu", "report.max_new_tokens=4"]  # fmt: skip
pytestmark = [pytest.mark.slow(seconds=6), pytest.mark.xdist_group("trained induction")]
WINDOW, LENGTH = 25, 16  # steps that a loss is averaged over, tokens that are said again


@pytest.fixture(scope="module", params=[0, *(pytest.param(seed, marks=in_full) for seed in (1, 2))])
def learned(request, tmp_path_factory):
    """The losses of a run, what is found at step 75 and in the end, and the model."""
    run = tmp_path_factory.mktemp("induction") / "run"
    regard.fit(zoo.read_recipe("induction", [*SHORTER, f"train.seed={request.param}"]), run, quiet=True)
    lines = map(json.loads, (run / "log.jsonl").read_text(encoding="utf8").splitlines())
    losses = [line["loss"] for line in lines if "lr" in line]
    before, model = regard.load(f"{run}@75"), regard.load(run)
    found, early = (lens.find_induction_circuit(each, length=LENGTH) for each in (model, before))
    return SimpleNamespace(losses=losses, early=early, found=found, model=model)


@pytest.mark.spec("S155")
def test_the_loss_rests_near_a_guess_and_then_falls_at_once(learned):
    """Of every 25 steps. Half of the letters are new, so the loss cannot fall far below 1.6."""
    losses = [mean(learned.losses[at : at + WINDOW]) for at in range(0, 300, WINDOW)]
    falls = [before - after for before, after in zip(losses, losses[2:], strict=False)]

    assert len(learned.losses) == 300 and losses[2] > 0.9 * math.log(64)
    assert max(falls) > 1 and max(falls) > 5 * max(falls[0], falls[-1])


@pytest.mark.spec("S155")
def test_the_previous_token_head_and_the_induction_head_appear_with_the_fall(learned):
    first, second = learned.found.previous, learned.found.induction

    assert not learned.early.stands_out and learned.found.stands_out
    assert (first.layer, second.layer) == (0, 1)
    assert first.previous.value > 0.4 and second.induction.value > 0.8
    assert first.previous.value > max(head.previous.value for head in learned.found.heads if head is not first)


@pytest.mark.spec("S155")
def test_keys_read_the_previous_token_head_and_not_the_other_one(learned):
    """In the weights alone: both heads of the second layer have more of this one in their keys than of the other."""
    scores = lens.composition_scores(learned.model, "trunk.0.attn", "trunk.1.attn", "K").scores
    own, other = scores[learned.found.previous.head], scores[1 - learned.found.previous.head]

    assert learned.found.composition == float(own[learned.found.induction.head])
    assert own.min() > other.max()


@pytest.mark.spec("S155")
def test_the_loss_needs_both_heads_and_the_path_from_one_into_the_keys_of_the_other(learned):
    found = learned.found
    first, second, idle = found.previous.name, found.induction.name, f"0.{1 - found.previous.head}"

    assert found.loss < 0.2 < 4 < found.first_loss
    needed = [found.ablated[first], found.ablated[second], found.paths["k"], found.layer_paths["k"]]
    others = [found.ablated[idle], found.paths["q"], found.layer_paths["q"], found.layer_paths["v"]]
    assert min(needed) > found.loss + 1 and found.layer_paths["k"] > found.loss + 3
    assert max(others) < found.loss + 0.3


@pytest.mark.spec("S155")
def test_a_path_into_the_values_of_one_head_matters_only_since_the_other_one_writes_against_it(learned):
    """Both heads of the second layer copy; what they write of the previous token beside that cancels."""
    assert learned.found.paths["v"] > learned.found.layer_paths["v"] + 0.1
