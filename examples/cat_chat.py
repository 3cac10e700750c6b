"""Cat to chat: one query over six words, in seven steps.

A decoder is about to write the French word for "cat" and asks the English sentence for it. Six words, four features,
numbers small enough to follow with a pencil. The arithmetic is the library's own.

    python examples/cat_chat.py            exact
    python examples/cat_chat.py --slide    as on paper: two decimals before each next step
"""

import argparse
from dataclasses import dataclass, replace
from textwrap import fill

import torch
from torch import Tensor

from regard.attention.additive import soft_lookup
from regard.core.kernels import AttentionArgs, AttentionSpec, attention_scores, attention_weights, make_plan, reference
from regard.core.masks import FULL
from regard.core.tokens import sequence_tokens

WORDS = ("The", "cat", "sat", "on", "the", "mat")
FEATURES = ("animal", "action", "object", "definite")


def table(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


KEYS = table([0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0])
VALUES = table([0.1, 0, 0, 0.8], [0.9, 0, 0.1, 0.7], [0, 0.9, 0, 0.3], [0, 0, 0.5, 0], [0, 0, 0, 0.9], [0, 0, 0.9, 0.6])
ANIMAL = torch.tensor([0.9, 0.1, 0.2, 0.3], dtype=torch.float64)
ACTION = torch.tensor([0.1, 0.9, 0.1, 0.1], dtype=torch.float64)

RAW = torch.tensor([2.1, 0.3, -0.5, 1.8], dtype=torch.float64)
SLIDE_ROW = torch.tensor([0.58, 0.10, 0.04, 0.28], dtype=torch.float64)
ALIGNMENT = torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64)


@dataclass(frozen=True)
class Steps:
    """What stands on the paper after each step: one number a word, and at the end one a feature."""

    query: Tensor
    scores: Tensor
    scaled: Tensor
    powers: Tensor
    total: Tensor
    weights: Tensor
    output: Tensor


def exact(query: Tensor) -> Steps:
    """softmax(qK'/sqrt(4)) V, with every step kept."""
    q, k, v = (x[None, None] for x in (query[None], KEYS, VALUES))  # one row, one head
    scale = KEYS.shape[-1] ** -0.5
    raw, scaled = (attention_scores(q, k, factor, None)[0, 0, 0] for factor in (1.0, scale))
    powers = scaled.exp()
    spec = AttentionSpec(mask=FULL, q=sequence_tokens(query[None, None]), k=sequence_tokens(KEYS[None]))
    output = reference(q, k, v, make_plan("reference", spec), AttentionArgs(scale))[0, 0, 0]  #: S169 S170
    return Steps(query, raw, scaled, powers, powers.sum(), attention_weights(scaled, None), output)


def on_paper(query: Tensor) -> Steps:
    """The same with two decimals kept before each next step, as the slide does it."""
    whole = exact(query)
    powers = whole.powers.round(decimals=2)
    weights = (powers / powers.sum()).round(decimals=2)
    return replace(whole, powers=powers, total=powers.sum(), weights=weights, output=weights @ VALUES)


def row_of_weights() -> Tensor:
    """The softmax of the four scores that a slide draws, and gets wrong."""
    return attention_weights(RAW, None)  #: S171


def temperatures(weights: Tensor) -> Tensor:
    """What the temperature must have been, judged by the first weight beside each other one.

    A softmax at temperature t has log(w_0/w_i) = (s_0 - s_i)/t, so a true one gives the same t everywhere.
    """
    return (RAW[0] - RAW[1:]) / (weights[0] / weights[1:]).log()


def aligned(target: Tensor = ALIGNMENT) -> Tensor:
    """Weights that somebody wishes for, reached by attention: scores may be any numbers, so let them be logarithms."""
    query, keys, values = torch.ones_like(target[:1]), target.log()[:, None], torch.eye(len(target)).to(target)
    mix, _ = soft_lookup(query, keys, values)
    return mix  # the values are unit vectors, so what is gathered are the weights themselves


# ---------------------------------------------------------------- telling it


def show(title: str, names: tuple[str, ...], decimals: int, **rows: Tensor) -> None:
    print(f"\n{title}")
    print(" " * 12 + "".join(f"{name:>10}" for name in names))
    for label, numbers in rows.items():
        print(f"{label:>12}" + "".join(f"{number:>10.{decimals}f}" for number in numbers.tolist()))


def tell(steps: Steps, decimals: int) -> None:
    show("1. The query: what is asked for.", FEATURES, 1, q=steps.query)
    show("2. The keys: what each word offers to be found by.", FEATURES, 1, **dict(numbered(KEYS)))
    show("3. Scores: the query times each key, summed over features.", WORDS, 2, scores=steps.scores)
    show("4. Divided by sqrt(4) = 2: wide keys should not shout.", WORDS, 2, scaled=steps.scaled)
    softmax(steps, decimals)
    show("6. The values: what each word has to give.", FEATURES, 1, **dict(numbered(VALUES)))
    show("7. The result: values mixed by the weights.", FEATURES, max(decimals, 3), output=steps.output)


def softmax(steps: Steps, decimals: int) -> None:
    show("5. Softmax: exp, then divide by the sum.", WORDS, decimals, exp=steps.powers, weights=steps.weights)
    sums = f"exp sums to {steps.total:.{decimals}f}, the weights to {steps.weights.sum():.{decimals}f}"
    print(f"{'':12}{sums}; most is seen of {WORDS[steps.weights.argmax()]!r}")


def numbered(rows: Tensor) -> list[tuple[str, Tensor]]:
    return [(f"{number} {word}", row) for number, (word, row) in enumerate(zip(WORDS, rows, strict=True), 1)]


def numbers(x: Tensor, decimals: int = 3) -> str:
    return " ".join(f"{number:.{decimals}f}" for number in x.tolist())


def errata() -> dict[str, str]:
    """Where the slides differ from what their own numbers give."""
    steps = exact(ANIMAL)
    order = ", ".join(FEATURES[i] for i in steps.output.argsort(descending=True))
    return {
        "E13, labels": "One picture writes French words under the six weights, and .8 under the first. The weights "
        "belong to the English words, and 'cat' is the second of them.",
        "S169, rounding": f"The slide's result {numbers(on_paper(ANIMAL).output)} is made of weights rounded to two "
        f"decimals; exact is {numbers(steps.output, 4)}.",
        "S169, wording": f"'Mostly animal' says too much: the features come in the order {order}, and the greatest "
        f"weight, {steps.weights.max():.2f}, is not far from an even {1 / len(WORDS):.2f}.",
        "S171, softmax": f"The slide's weights {numbers(SLIDE_ROW, 2)} are no softmax of its scores at any "
        f"temperature; correct is {numbers(row_of_weights())}.",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention over six words, step by step.")
    parser.add_argument("--slide", action="store_true", help="keep two decimals before each next step")
    slide = parser.parse_args().slide
    work, decimals = (on_paper, 2) if slide else (exact, 4)

    print("The cat sat on the mat -> Le ...")
    tell(work(ANIMAL), decimals)

    print("\n\nAnother query over the same words: now an action is wanted.")
    other = work(ACTION)
    show("1. The query.", FEATURES, 1, q=other.query)
    softmax(other, decimals)
    show("7. The result.", FEATURES, max(decimals, 3), output=other.output)
    print("\nKeys and values stayed; only the question changed.")

    print(f"\n\nScores to weights: softmax({numbers(RAW, 1)}), and the temperature that each weight speaks of")
    for name, weights in {"correct": row_of_weights(), "the slide": SLIDE_ROW}.items():
        print(f"{name:>12}    {numbers(weights)}    temperature {numbers(temperatures(weights), 2)}")

    print(f"\n\nAn alignment to wish for: while writing 'chat', look at The, cat, sat with {numbers(ALIGNMENT, 1)}.")
    print(f"Scores may be any numbers, so also {numbers(ALIGNMENT.log(), 2)}: attention gives {numbers(aligned(), 1)}.")

    print("\n\nErrata")
    for name, text in errata().items():
        print(fill(f"{name:<16}{text}", 100, subsequent_indent=" " * 16))


if __name__ == "__main__":
    main()
