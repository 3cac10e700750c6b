"""The loss over a text: every token once, however it is cut, and the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from training.builders import V, model

from regard.config.errors import DataError
from regard.data.token_shards import TokenShards
from regard.data.windows import sequential_windows
from regard.training.validation import ValidationScore, validate

CONTEXT, LENGTH = 7, 111


def shards(length=LENGTH):
    return TokenShards(
        torch.randint(V, (length,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8), "text"
    )


class Uniform(torch.nn.Module):
    """Finds every token equally likely, and remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.scale, self.asked = torch.nn.Parameter(torch.zeros(())), []

    def forward(self, ids):
        self.asked.append(ids)
        return self.scale * torch.ones(*ids.shape, V)


@pytest.mark.parametrize("batch", [1, 2, 4, 999])
def test_every_token_but_the_first_is_predicted_once(batch):
    made = Uniform()
    score = validate(made, sequential_windows(shards(), CONTEXT, batch))

    assert score.count == LENGTH - 1
    assert torch.equal(torch.cat([ids.flatten() for ids in made.asked]), shards().ids(0, LENGTH - 1))
    assert score.perplexity == pytest.approx(V, rel=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama-7b"])
def test_how_many_blocks_go_together_does_not_matter(name):
    made = model(name)
    losses = [validate(made, sequential_windows(shards(), CONTEXT, batch)).loss for batch in (1, 3, 5, 999)]

    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)


def test_the_loss_is_torch_s_mean_over_the_whole_text():
    made, ids = model(), shards().ids()
    with torch.no_grad():
        logits = [made(ids[None, start : min(start + CONTEXT, LENGTH - 1)])[0] for start in range(0, 110, CONTEXT)]
        expected = F.cross_entropy(torch.cat(logits).double(), ids[1:])

    assert validate(made, sequential_windows(shards(), CONTEXT, 5)).loss == pytest.approx(expected.item(), abs=1e-6)


def test_only_as_many_tokens_as_asked_are_predicted():
    assert validate(Uniform(), sequential_windows(shards(), CONTEXT, 5, tokens=33)).count == 33


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_without_dropout_and_stays_in_its_mode(training):
    made = model(dropout=0.5).train(training)
    first, second = (validate(made, sequential_windows(shards(), CONTEXT, 5)) for _ in range(2))

    assert first == second
    assert {module.training for module in made.modules()} == {training}


def test_the_mode_comes_back_also_after_a_failure():
    made = model().train()

    with pytest.raises(DataError, match=f"{V} is outside the model's vocabulary"):
        validate(made, [torch.full((1, 4), V)])
    assert made.training


def test_parts_in_a_mode_of_their_own_keep_it():
    made = model().train()
    made.embed.eval()
    validate(made, [torch.zeros(1, 4, dtype=torch.long)])

    assert made.trunk.training and not made.embed.training


def test_nothing_is_drawn_and_no_gradient_is_kept():
    made = model(dropout=0.5).train()
    before = torch.get_rng_state()
    validate(made, sequential_windows(shards(), CONTEXT, 5))

    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in made.parameters())


def test_no_blocks_are_no_surprise():
    assert validate(Uniform(), []) == ValidationScore(0.0, 0)


def test_compiled_blocks_run_as_written():
    def refuse(graph, inputs):
        raise AssertionError("nothing is compiled for an evaluation")

    made = model()
    expected = validate(made, sequential_windows(shards(), CONTEXT, 5))
    for block in made.trunk.blocks:
        block.compile(backend=refuse)

    assert validate(made, sequential_windows(shards(), CONTEXT, 5)) == expected
