"""Metrics: worked by hand, by their definitions in exact fractions, and as scikit-learn and scipy have them."""

import math
import random
import warnings
from fractions import Fraction

import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.metrics import (
    accuracy,
    bits_per_byte,
    bits_per_token,
    confusion_matrix,
    entity_f1,
    entity_spans,
    exact_match,
    f1,
    macro_f1,
    matthews_correlation,
    normalize_answer,
    pearson,
    perplexity,
    ranks,
    spearman,
    token_f1,
)

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

    assert matthews_correlation(said, meant) == pytest.approx((tp * tn - fp * fn) / under if under else 0.0, abs=1e-12)
    assert matthews_correlation(said, meant) == pytest.approx(
        pearson(said, meant), abs=1e-12
    )  # they are the same number


def test_matthews_of_three_classes_as_gorodkin_has_it():
    said, meant = [0, 0, 1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 2, 0, 2, 2]
    x = torch.nn.functional.one_hot(torch.tensor(said)).double()
    y = torch.nn.functional.one_hot(torch.tensor(meant)).double()

    def covariance(a, b):
        return ((a - a.mean(0)) * (b - b.mean(0))).sum()

    theirs = covariance(x, y) / (covariance(x, x) * covariance(y, y)).sqrt()
    assert matthews_correlation(said, meant) == pytest.approx(theirs.item(), abs=1e-12)
    assert matthews_correlation(["a", "b"], ["b", "a"]) == -1.0 and matthews_correlation(["a", "a"], ["b", "a"]) == 0.0


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


@given(st.floats(-9, 9), st.floats(-9, 9), st.integers(1, 40))
def test_two_constants_lie_on_no_line(one, other, count):
    assert pearson([one] * count, [other] * count) == spearman([one] * count, [other] * count) == 0.0


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
    assert entity_spans(tags.split()) == found


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
    assert entity_f1(rows, rows) == float(any(entity_spans(row) for row in rows))


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("text, words", [
    ("The  Cat!", ["cat"]), ("an apple a day", ["apple", "day"]), ("U.S.A.", ["usa"]), ("theatre", ["theatre"]),
    ("the-end", ["theend"]), ("", []), ("Beyoncé", ["beyoncé"]),
])  # fmt: skip
def test_answers_are_normal_as_squad_has_it(text, words):
    assert normalize_answer(text) == words


@pytest.mark.parametrize("said, meant, em, score", [
    ("the cat", ["Cat."], 1.0, 1.0),
    ("black cat", ["the cat", "a dog"], 0.0, 2 / 3),
    ("cat cat", ["cat"], 0.0, 2 / 3),  # a word counts as often as it stands on both sides
    ("dog", ["cat"], 0.0, 0.0),
    ("", [""], 1.0, 1.0), ("cat", [""], 0.0, 0.0), ("the", [""], 1.0, 1.0),
])  # fmt: skip
def test_exact_match_and_f1_worked_by_hand(said, meant, em, score):
    assert exact_match(said, meant) == em and token_f1(said, meant) == pytest.approx(score)


# ---------------------------------------------------------------- texts


def test_perplexity_and_bits_of_a_fair_choice():
    assert perplexity(math.log(37)) == pytest.approx(37) and bits_per_token(math.log(8)) == pytest.approx(3)
    assert bits_per_byte(100 * math.log(2), 50) == pytest.approx(2.0) and math.isfinite(perplexity(1e6))


# ---------------------------------------------------------------- as others have them


def drawn(seed):
    """Said and meant: up to five classes, sometimes one alone, sometimes all right, sometimes none ever said."""
    luck = random.Random(seed)
    count, kinds = luck.randint(1, 60), luck.randint(1, 5)
    meant = [luck.randrange(kinds) for _ in range(count)]
    said = [[luck.randrange(kinds) for _ in meant], list(meant), [0] * count, [kinds - 1] * count][luck.randrange(4)]
    return said, [meant, [0] * count][luck.randrange(8) == 0]


@pytest.mark.parametrize("seed", range(150))
def test_classes_are_scored_as_scikit_learn_scores_them(seed):
    said, meant = drawn(seed)
    skl = sklearn.metrics

    assert accuracy(said, meant) == pytest.approx(skl.accuracy_score(meant, said))
    assert macro_f1(said, meant) == pytest.approx(skl.f1_score(meant, said, average="macro", zero_division=0))
    one = skl.f1_score(meant, said, labels=[1], average="macro", zero_division=0)  # of class 1, were there five
    assert f1(said, meant) == pytest.approx(one)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn says so where there is one class alone
        assert matthews_correlation(said, meant) == pytest.approx(skl.matthews_corrcoef(meant, said), abs=1e-12)
        theirs = skl.confusion_matrix(meant, said, labels=range(5)).tolist()
    assert [list(row.values()) for row in confusion_matrix(said, meant, "abcde").values()] == theirs


def spread(seed):
    """Two lists of numbers: often with ties, sometimes one constant, far from zero, or the same."""
    luck = random.Random(seed)
    count, far = luck.randint(2, 50), luck.choice([0.0, 1e6])
    draw = luck.choice([lambda: float(luck.randrange(4)), luck.random, lambda: luck.gauss(0, 1e-3)])
    meant = [far + draw() for _ in range(count)]
    said = [[draw() for _ in meant], list(meant), [3.25] * count, [-value for value in meant]][luck.randrange(4)]
    return said, meant


@pytest.mark.parametrize("seed", range(150))
def test_numbers_are_scored_as_scipy_scores_them(seed):
    said, meant = spread(seed)
    flat = len(set(said)) == 1 or len(set(meant)) == 1
    line, order = scipy.stats.pearsonr, scipy.stats.spearmanr

    assert ranks(said) == scipy.stats.rankdata(said).tolist()
    if flat:  # scipy has no number there and warns; scikit-learn's word for no spread is 0
        assert pearson(said, meant) == spearman(said, meant) == 0.0
    else:
        assert pearson(said, meant) == pytest.approx(line(said, meant).statistic, abs=1e-7)  # far from zero theirs errs
        assert spearman(said, meant) == pytest.approx(order(said, meant).statistic, abs=1e-12)
