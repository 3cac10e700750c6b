"""Toy tasks have one right answer, and are the same on every machine."""

import pytest
import torch

from regard import config as C
from regard.data import builtin
from regard.data.prepare import prepare_examples
from regard.data.sources import find_records

ANSWERS = {
    "copy": lambda q: q,
    "reverse": lambda q: q[::-1],
    "sort": lambda q: "".join(sorted(q)),
    "addition": lambda q: str(sum(map(int, q.split("+")))),
    "regress": lambda q: on_the_line(q),
    "first": lambda q: q[0],
    "repeat": lambda q: "".join(q[i % len(q)] for i in range(len(q), 14)),
}


def on_the_line(question):
    """By the first two points alone."""
    *points, asked = question.split(";")
    (a, low), (b, high) = (
        (int(x), builtin.TOY_HEIGHTS.index(y)) for x, y in (point.split("=") for point in points[:2])
    )
    return builtin.TOY_HEIGHTS[low + (high - low) * (int(asked) - a) // (b - a)]


def table(name):
    [found] = find_records([name])
    return found


@pytest.mark.parametrize("task", builtin.TOY_TASKS)
def test_every_answer_is_right(task):
    toy = table(f"toy:{task}(7, 300)")
    found = [toy.record(index) for index in range(300)]

    assert all(record["target"] == ANSWERS[task](record["source"]) for record in found)
    between = "" if task == "repeat" else "="
    assert all(record["text"] == f"{record['source']}{between}{record['target']}" for record in found)


@pytest.mark.parametrize("task", builtin.TOY_TASKS)
def test_a_record_is_a_pure_function_of_the_name_and_its_number(task):
    one, other = table(f"toy:{task}(9, 40)"), table(f"toy:{task}(9, 9999)")
    backwards = [other.record(index) for index in reversed(range(40))]

    assert [one.record(index) for index in range(40)] == backwards[::-1]
    assert one.record(7) != table(f"toy:{task}(9, 40, 1)").record(7)


def test_words_are_of_all_lengths_and_letters_and_numbers_of_all_sizes():
    """Chi-square by hand."""
    words = [table("toy:copy(9)").record(index)["source"] for index in range(3600)]
    lengths = torch.bincount(torch.tensor(list(map(len, words))), minlength=10)[1:]
    letters = torch.bincount(
        torch.tensor([builtin.TOY_LETTERS.index(letter) for letter in "".join(words)]), minlength=16
    )
    sums = [table("toy:addition(3)").record(index)["source"] for index in range(900)]
    digits = torch.bincount(torch.tensor([len(number) for each in sums for number in each.split("+")]), minlength=4)[1:]

    for found, limit in ((lengths, 26.12), (letters, 37.70), (digits, 13.82)):  # a chance in a thousand: 8, 15, 2 free
        expected = found.sum() / len(found)
        assert ((found - expected) ** 2 / expected).sum() < limit


def example(record):
    return {"source": list(record["source"].encode()), "target": list(record["target"].encode())}


@pytest.mark.parametrize("name", ["toy:addition(1, 2000)", "toy:sort(3, 2000)"])
def test_no_question_to_validate_on_is_one_to_train_on(name, tmp_path):
    train, validation = prepare_examples(C.Data(source=name), example, "bytes", tmp_path)
    asked, known = ({tuple(row["source"]) for row in rows} for rows in (validation, train))

    assert asked and known and not asked & known
    assert len(known) < len(train)  # the same questions come again and again in what is trained on
    assert len(train) + len(validation) == 2000


def test_nothing_but_the_copies_foretells_a_letter_of_what_is_repeated():
    """Lengths and letters by chi-square; no letter comes twice in a word, so what follows a letter is one thing."""
    words = [table("toy:repeat(9)").record(index)["source"] for index in range(3000)]
    lengths = torch.bincount(torch.tensor(list(map(len, words))), minlength=10)[5:]
    places = [torch.tensor([builtin.REPEAT_LETTERS.index(word[at]) for word in words]) for at in (0, 2)]
    first, third = (torch.bincount(each, minlength=64) for each in places)

    assert all(len(set(word)) == len(word) for word in words)
    for found, limit in ((lengths, 18.47), (first, 103.4), (third, 103.4)):  # a chance in a thousand: 4 and 63 free
        expected = len(words) / len(found)
        assert ((found - expected) ** 2 / expected).sum() < limit


def test_a_word_longer_than_the_alphabet_has_every_letter_before_any_again():
    [word] = {table("toy:repeat(200)").record(3)["source"]}

    assert len(word) > 64 and sorted(word[:64]) == sorted(builtin.REPEAT_LETTERS)
