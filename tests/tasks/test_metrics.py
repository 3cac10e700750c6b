"""Metrics: worked by hand, by their definitions in exact fractions, and on planted sets whose answer is known."""

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.metrics import (
    GLUE,
    accuracy,
    bits,
    bits_per_byte,
    entities,
    entity_f1,
    exact,
    f1,
    glue,
    macro_f1,
    matthews,
    normal,
    overlap,
    pearson,
    perplexity,
    ranks,
    spearman,
)  # fmt: skip

LECTURE = Path(__file__).parents[2].parent / "shared" / "seeds" / "004_41a63b0c23723d00.txt"
classes = st.integers(1, 40).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n)] * 2))
numbers = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=30)

# ---------------------------------------------------------------- classes


def table(said, meant, positive):
    """True and false positives and negatives."""
    pairs = list(zip(said, meant, strict=True))
    return [sum((a == positive, b == positive) == want for a, b in pairs)
            for want in ((True, True), (True, False), (False, True), (False, False))]  # fmt: skip


def test_accuracy_counts():
    assert accuracy([1, 2, 3, 3], [1, 2, 2, 3]) == 0.75
    assert accuracy([], []) == 0.0
    with pytest.raises(ValueError):
        accuracy([1], [1, 2])


@given(classes)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pair):
    right, wrong, missed, _ = table(*pair, 1)
    if right:
        precision, recall = Fraction(right, right + wrong), Fraction(right, right + missed)
        assert f1(*pair) == pytest.approx(float(2 * precision * recall / (precision + recall)))
    else:
        assert f1(*pair) == 0.0


@given(classes)
def test_macro_f1_is_the_mean_over_classes_that_occur(pair):
    there = sorted(set(pair[0]) | set(pair[1]))

    assert macro_f1(*pair) == pytest.approx(sum(f1(*pair, each) for each in there) / len(there))


@given(classes)
def test_matthews_of_two_classes_is_that_of_the_table(pair):
    said, meant = ([min(label, 1) for label in labels] for labels in pair)
    tp, fp, fn, tn = table(said, meant, 1)
    under = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))

    assert matthews(said, meant) == pytest.approx((tp * tn - fp * fn) / under if under else 0.0, abs=1e-12)
    assert matthews(said, meant) == pytest.approx(pearson(said, meant), abs=1e-12)  # they are the same number


def test_matthews_of_three_classes_as_gorodkin_has_it():
    said, meant = [0, 0, 1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 2, 0, 2, 2]
    x = torch.nn.functional.one_hot(torch.tensor(said)).double()
    y = torch.nn.functional.one_hot(torch.tensor(meant)).double()

    def covariance(a, b):
        return ((a - a.mean(0)) * (b - b.mean(0))).sum()

    theirs = covariance(x, y) / (covariance(x, x) * covariance(y, y)).sqrt()
    assert matthews(said, meant) == pytest.approx(theirs.item(), abs=1e-12)
    assert matthews(["a", "b"], ["b", "a"]) == -1.0 and matthews(["a", "a"], ["b", "a"]) == 0.0


# ---------------------------------------------------------------- numbers


@given(numbers)
def test_pearson_is_torch_s(pairs):
    said, meant = map(list, zip(*pairs, strict=True))
    theirs = torch.corrcoef(torch.tensor([said, meant], dtype=torch.float64))[0, 1].item()

    assert pearson(said, meant) == pytest.approx(0.0 if math.isnan(theirs) else theirs, abs=1e-12)


@given(numbers)
def test_a_rank_is_the_mean_of_the_places_that_equal_values_could_have(pairs):
    values = [a for a, _ in pairs]
    by_hand = [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]

    assert ranks(values) == by_hand


def test_spearman_worked_by_hand():
    # Spearman (1904)'s formula holds without ties: 1 - 6 sum d² / (n (n² - 1)); here d = 0 1 1 0 0
    assert spearman([1, 2, 3, 4, 5], [5, 7, 6, 8, 90]) == pytest.approx(1 - 6 * 2 / (5 * 24))
    # with ties: ranks 1 2.5 2.5 4 against 1 2 3 4; covariance 4.5, deviations sqrt(4.5), sqrt(5)
    assert spearman([0, 3, 3, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 2, 3], [3, 2, 1]) == -1.0 and spearman([1, 1, 1], [1, 2, 3]) == 0.0


@given(numbers)
def test_spearman_sees_order_alone(pairs):
    said, meant = map(list, zip(*pairs, strict=True))

    assert spearman([math.exp(a) for a in said], meant) == pytest.approx(spearman(said, meant), abs=1e-12)


def test_numbers_far_from_zero_keep_their_digits():
    assert pearson([1e9, 1e9 + 1, 1e9 + 2], [0.1, 0.2, 0.3]) == pytest.approx(1.0)


# ---------------------------------------------------------------- entities


@pytest.mark.parametrize("tags, found", [
    ("O B-PER I-PER O B-LOC", {("PER", 1, 2), ("LOC", 4, 4)}),
    ("B-PER B-PER", {("PER", 0, 0), ("PER", 1, 1)}),  # two people side by side
    ("B-PER I-LOC", {("PER", 0, 0), ("LOC", 1, 1)}),  # another kind begins an entity, whatever its letter
    ("I-PER I-PER O I-PER", {("PER", 0, 1), ("PER", 3, 3)}),  # IOB1, and as conlleval mends IOB2
    ("I-A I-B I-B B-B", {("A", 0, 0), ("B", 1, 2), ("B", 3, 3)}),
    ("O O", set()),
    ("", set()),
    ("B I O B", {("_", 0, 1), ("_", 3, 3)}),  # tags without kinds
    ("B-A-B I-A-B", {("A-B", 0, 1)}),
])  # fmt: skip
def test_entities_are_read_as_conlleval_reads_them(tags, found):
    assert entities(tags.split()) == found


def test_an_entity_counts_if_kind_and_both_ends_are_right():
    # the example in seqeval's documentation: one of two entities is found whole
    meant = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    said = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]

    assert entity_f1(said, meant) == 0.5
    assert entity_f1(meant, meant) == 1.0 and entity_f1([["O"]], [["O"]]) == 0.0


@given(st.lists(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B"]), min_size=1, max_size=9), min_size=1, max_size=5))
def test_entity_f1_is_symmetric_and_one_for_the_truth(rows):
    other = [["B-A" if tag == "O" else "O" for tag in row] for row in rows]

    assert entity_f1(rows, other) == entity_f1(other, rows)
    assert entity_f1(rows, rows) == float(any(entities(row) for row in rows))


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("text, words", [
    ("The  Cat!", ["cat"]), ("an apple a day", ["apple", "day"]), ("U.S.A.", ["usa"]), ("theatre", ["theatre"]),
    ("the-end", ["theend"]), ("", []), ("Beyoncé", ["beyoncé"]),
])  # fmt: skip
def test_answers_are_normal_as_squad_has_it(text, words):
    assert normal(text) == words


@pytest.mark.parametrize("said, meant, em, score", [
    ("the cat", ["Cat."], 1.0, 1.0),
    ("black cat", ["the cat", "a dog"], 0.0, 2 / 3),
    ("cat cat", ["cat"], 0.0, 2 / 3),  # a word counts as often as it stands on both sides
    ("dog", ["cat"], 0.0, 0.0),
    ("", [""], 1.0, 1.0), ("cat", [""], 0.0, 0.0), ("the", [""], 1.0, 1.0),
])  # fmt: skip
def test_exact_match_and_f1_worked_by_hand(said, meant, em, score):
    assert exact(said, meant) == em and overlap(said, meant) == pytest.approx(score)


# ---------------------------------------------------------------- texts, and one number for all


def test_perplexity_and_bits_of_a_fair_choice():
    assert perplexity(math.log(37)) == pytest.approx(37) and bits(math.log(8)) == pytest.approx(3)
    assert bits_per_byte(100 * math.log(2), 50) == pytest.approx(2.0) and math.isfinite(perplexity(1e6))


PUBLISHED = {  # Devlin et al. 2019, table 1: nine columns, and the average beside them
    "Pre-OpenAI SOTA": ([80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7], 74.0),
    "BiLSTM+ELMo+Attn": ([76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8], 71.0),
    "OpenAI GPT": ([82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0], 75.1),
    "BERT base": ([84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4], 79.6),
    "BERT large": ([86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1], 82.1),
}


@pytest.mark.spec("S165")
@pytest.mark.parametrize("system", PUBLISHED)
def test_the_average_of_the_published_table_is_the_published_average(system):
    columns, average = PUBLISHED[system]

    # the second row's is 70.94: printed from columns of more digits
    assert glue(dict(zip(GLUE, columns, strict=True))) == pytest.approx(average, abs=0.06)


@pytest.mark.spec("S165")
@pytest.mark.skipif(not LECTURE.exists(), reason="the lecture's own table is not on this machine")
def test_the_table_here_is_the_lecture_s():
    rows = [re.findall(r"(?<![\w.-])\d+\.\d", line) for line in LECTURE.read_text(encoding="utf8").splitlines()
            if re.match(r"(Pre-OpenAI|BiLSTM|OpenAI GPT|BERT _)", line)]  # fmt: skip

    assert [list(map(float, row)) for row in rows] == [[*columns, average] for columns, average in PUBLISHED.values()]


@pytest.mark.spec("S165")
def test_the_average_is_refused_where_a_column_is_missing_or_strange():
    scores = dict.fromkeys(GLUE, 80.0)

    assert glue(scores) == 80.0
    for wrong in ({**scores, "WNLI": 65.1}, {name: scores[name] for name in list(GLUE)[1:]}):
        with pytest.raises(ValueError, match="WNLI" if "WNLI" in wrong else "MNLI-m"):
            glue(wrong)


def test_every_column_has_a_metric_of_its_own():
    from regard.tasks import metrics

    for name, metric in GLUE.items():
        perfect = getattr(metrics, metric)([0, 1, 1, 0, 1], [0, 1, 1, 0, 1])
        assert perfect == pytest.approx(1.0), name
