"""Looking things up, softly: a library, a table of students, a search engine, a cookbook's index.

Each demo has a query (what is wanted), keys (what is matched) and values (what is read), and asks them through
`regard.attention.additive`.

    python examples/retrieval.py
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.additive import hard_lookup, soft_lookup


def table(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# ---------------------------------------------------------------- scores that somebody gives

BOOKS = ("Deep Learning, 2016", "Neural Networks, 2020", "Transformers, 2017")
BOOK_SCORES = torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64)
STUDENTS = ("Alice, CS, 3.9", "Bob, maths, 3.8", "Carol, CS, 3.2", "Dave, CS, 3.7")
STUDENT_SCORES = torch.tensor([0.95, 0.1, 0.3, 0.9], dtype=torch.float64)
SUBJECTS = ("language", "topology", "graphics", "learning")
HOURS = table([8, 0, 0, 2], [0, 9, 0, 1], [0, 1, 7, 2], [1, 0, 0, 9])  # what each student knows about, hours a week


def shares(scores: Tensor) -> Tensor:
    """scores / sum(scores), which is the softmax of their logarithms: so it too is a soft lookup."""
    return given(scores, torch.eye(len(scores)).to(scores))


def given(scores: Tensor, values: Tensor) -> Tensor:
    """Values mixed by scores that are known beforehand: the query is 1, and each key is the logarithm of its score."""
    mix, _ = soft_lookup(torch.ones_like(scores[:1]), scores.log()[:, None], values)  #: S019
    return mix


# ---------------------------------------------------------------- scores that come from features

ASPECTS = ("nearby", "food", "rating", "recent")
PLACES = ("Pizzeria", "Hotel", "Museum")
PLACE_KEYS = table([1, 1, 0.9, 1], [1, 0, 0.8, 0.5], [0, 0, 0.9, 0.2])
FACTS = ("price", "chairs")
PLACE_FACTS = table([12, 40], [150, 90], [8, 20])
WANTED = torch.tensor([1, 1, 0.25, 0.25], dtype=torch.float64)  # somewhere to eat, near; stars and news matter less


def search(temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Facts about the places, mixed, and the weight of each place."""
    return soft_lookup(WANTED, PLACE_KEYS, PLACE_FACTS, temperature)


# ---------------------------------------------------------------- from soft to hard


class Cooling(NamedTuple):
    temperature: float
    difference: float
    bound: float


TEMPERATURES = (1.0, 0.5, 0.1, 0.01)


def cool(query: Tensor, keys: Tensor, values: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> list[Cooling]:
    """How far a soft lookup is from the hard one, and how far it can be at most, as the temperature falls."""
    best = (query @ keys.mT).topk(2).values
    gap, most = best[0] - best[1], values.abs().max()
    rows = []
    for temperature in temperatures:
        soft, _ = soft_lookup(query, keys, values, temperature)
        difference = (soft - hard_lookup(query, keys, values)).abs().max()
        bound = 2 * (len(keys) - 1) * torch.exp(-gap / temperature) * most
        rows.append(Cooling(temperature, float(difference), float(bound)))
    return rows


# ---------------------------------------------------------------- an index and its pages

DISHES = ("apple pie", "tomato soup", "rye bread", "fruit salad")
HEADINGS = ("sweet", "hot", "baked")  # what a reader looks for: the index
PAGES = ("minutes", "grams", "serves")  # what the page then says: the content
COOKBOOK = table([1, 0.5, 1, 60, 900, 8], [0, 1, 0, 30, 700, 4], [0, 0, 1, 180, 800, 10], [1, 0, 0, 15, 600, 6])
W_KEY = torch.eye(6, dtype=torch.float64)[:3]  # a key is the first half of what is known about a dish,
W_VALUE = torch.eye(6, dtype=torch.float64)[3:]  # a value the second


def consult(
    query: Tensor, w_key: Tensor = W_KEY, w_value: Tensor = W_VALUE, book: Tensor = COOKBOOK
) -> tuple[Tensor, Tensor]:
    """Match by W_k x, read W_v x: what was read, and the weight of each dish."""
    return soft_lookup(query, book @ w_key.mT, book @ w_value.mT, temperature=0.25)  #: S178


# ---------------------------------------------------------------- telling it


def show(names: tuple[str, ...], *columns: tuple[str, Tensor]) -> None:
    print(" " * 26 + "".join(f"{title:>12}" for title, _ in columns))
    for i, name in enumerate(names):
        print(f"    {name:<22}" + "".join(f"{column[i]:>12.2f}" for _, column in columns))
    print(f"    {'sum':<22}" + "".join(f"{column.sum():>12.2f}" for _, column in columns))


def facts(names: tuple[str, ...], numbers: Tensor) -> str:
    return ", ".join(f"{name} {number:.1f}" for name, number in zip(names, numbers.tolist(), strict=True))


def library() -> None:
    print("A library. Wanted: a book on neural networks from after 2017. The catalogue card is the key, the book")
    print("the value. E16: a slide mixes the books by the scores themselves, which are no shares of anything.\n")
    show(BOOKS, ("score", BOOK_SCORES), ("weight", shares(BOOK_SCORES)))


def students() -> None:
    print("\n\nA table asked softly. Wanted: computer science, marks above 3.5. SQL returns the rows that fit and no")
    print("others; here every row answers, as loudly as it fits. E16 again: the scores sum to more than 2.\n")
    weights = shares(STUDENT_SCORES)
    show(STUDENTS, ("score", STUDENT_SCORES), ("weight", weights))
    print(f"\n    Alice and Dave hold {weights[0] + weights[3]:.0%} of the answer, hours a week:")
    print(f"    {facts(SUBJECTS, given(STUDENT_SCORES, HOURS))}")


def engine() -> None:
    print("\n\nA search engine. Wanted: restaurants near me. Nobody hands out scores now: they are the products of the")
    print(f"query with each key, over {', '.join(ASPECTS)}.\n")
    show(PLACES, ("score", PLACE_KEYS @ WANTED), ("weight", search()[1]), ("colder", search(0.25)[1]))
    print(f"\n    soft:   {facts(FACTS, search()[0])}")
    print(f"    colder: {facts(FACTS, search(0.25)[0])}")
    print(f"    hard:   {facts(FACTS, hard_lookup(WANTED, PLACE_KEYS, PLACE_FACTS))}")


def cooling() -> None:
    print("\n\nFrom soft to hard. As the temperature falls, the best key takes all. For the three places above, how")
    print("far the soft answer is from the hard one, and the most it can be, 2(K-1) exp(-gap/temperature) max|v|.\n")
    print(f"    {'temperature':>12}{'difference':>14}{'at most':>14}")
    for row in cool(WANTED, PLACE_KEYS, PLACE_FACTS):
        print(f"    {row.temperature:>12}{row.difference:>14.2e}{row.bound:>14.2e}")
    print("\n    E28: the bound needs a gap between best and second. When two keys are equally good, no cold helps.")


def cookbook() -> None:
    print("\n\nAn index and its pages. One looks under a heading and reads a recipe: what is matched (the key) need")
    print("not be what is read (the value). Wanted: something hot and baked.\n")
    wanted = torch.tensor([0, 1, 1], dtype=torch.float64)
    read, weights = consult(wanted)
    echo, _ = consult(wanted, w_value=W_KEY)
    show(DISHES, ("weight", weights))
    print(f"\n    keys and values apart:  {facts(PAGES, read)}")
    print(f"    values made like keys:  {facts(HEADINGS, echo)}: only the headings come back")


if __name__ == "__main__":
    for demo in (library, students, engine, cooling, cookbook):
        demo()
