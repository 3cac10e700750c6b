"""Cat to chat: the lecture's numbers, exact and as on paper."""

import pytest
import torch
from torch.testing import assert_close


def near(numbers, expected, decimals):
    """Equal to within one unit in the last decimal that the lecture or the checked table gives."""
    expected = torch.tensor(expected, dtype=torch.float64)
    assert_close(numbers, expected, rtol=0, atol=10.0**-decimals)


@pytest.mark.spec("S169")
def test_the_seven_steps_give_the_checked_numbers(example):
    steps = example.exact(example.ANIMAL)

    assert_close(steps.scores, torch.tensor([0.30, 0.96, 0.10, 0.00, 0.30, 0.20], dtype=torch.float64))
    assert_close(steps.scaled, torch.tensor([0.15, 0.48, 0.05, 0.00, 0.15, 0.10], dtype=torch.float64))
    near(steps.powers, [1.16183, 1.61607, 1.05127, 1, 1.16183, 1.10517], 5)
    near(steps.weights, [0.16373, 0.22774, 0.14815, 0.14092, 0.16373, 0.15574], 5)
    near(steps.output, [0.22134, 0.13333, 0.23340, 0.57564], 5)


@pytest.mark.spec("S169")
def test_on_paper_the_numbers_are_the_slides_own(example):
    steps = example.on_paper(example.ANIMAL)

    for numbers, slide in [
        (steps.powers, [1.16, 1.62, 1.05, 1.00, 1.16, 1.11]),
        (steps.total, 7.10),
        (steps.weights, [0.16, 0.23, 0.15, 0.14, 0.16, 0.16]),
        (steps.output, [0.223, 0.135, 0.237, 0.574]),
    ]:
        assert_close(numbers, torch.tensor(slide, dtype=torch.float64))


@pytest.mark.spec("S169")
def test_most_is_seen_of_cat_and_yet_animal_is_only_the_third_feature(example):
    steps = example.exact(example.ANIMAL)

    assert example.WORDS[steps.weights.argmax()] == "cat"
    assert [example.FEATURES[i] for i in steps.output.argsort(descending=True)][2] == "animal"


def test_the_kernel_gathers_with_the_weights_that_are_shown(example):
    steps = example.exact(example.ANIMAL)

    assert_close(steps.output, steps.weights @ example.VALUES)
    assert_close(steps.weights, steps.powers / steps.total)


@pytest.mark.spec("S170")
def test_a_query_for_an_action_sees_sat_most(example):
    steps = example.exact(example.ACTION)

    assert example.WORDS[steps.weights.argmax()] == "sat"
    near(steps.weights.max(), 0.2310, 4)
    near(steps.output, [0.1570, 0.2079, 0.2287, 0.5355], 4)


@pytest.mark.spec("S171")
def test_the_correct_row_of_weights_is_a_softmax_and_the_slides_is_none_at_any_temperature(example):
    near(example.row_of_weights(), [0.505, 0.083, 0.038, 0.374], 3)
    assert_close(example.temperatures(example.row_of_weights()), torch.ones(3, dtype=torch.float64))

    asked = example.temperatures(example.SLIDE_ROW)
    assert asked.max() > 2 * asked.min()


def test_attention_can_be_given_the_alignment_that_looks_at_cat(example):
    """Only the weights of S172; its toy translator is not built."""
    assert_close(example.aligned(), example.ALIGNMENT)
    assert ("The", "cat", "sat")[example.aligned().argmax()] == "cat"


@pytest.mark.slow
def test_the_script_prints_each_step_and_names_each_erratum(printed):
    text = printed()

    for found in [
        "0.2277",
        "0.2213    0.1333    0.2334    0.5756",
        "0.2310",
        "0.505 0.083 0.038 0.374",
        "E13",
        "S169, rounding",
        "S169, wording",
        "S171",
    ]:
        assert found in text
    assert [line[0] for line in text.splitlines() if line[1:3] == ". "][:7] == list("1234567")


@pytest.mark.slow
def test_with_slide_the_script_rounds_as_the_slide_does(printed):
    assert "0.223     0.135     0.237     0.574" in printed("--slide")
