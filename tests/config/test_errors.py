"""Errors: the nearest name there is, without comparing what cannot be mistyped; and a few names for many."""

import pytest

from regard.config.errors import did_you_mean, name_some


def test_the_nearest_name_is_meant():
    assert did_you_mean("Casual", ["causal", "window"]) == "; did you mean 'causal'?"
    assert did_you_mean("thing", ["causal", "window"]) == ";"


def test_a_name_that_nobody_types_is_not_compared():
    """Somebody's file may name a kind with millions of letters: to compare them took seconds."""

    class Uncompared(str):
        def lower(self):
            raise AssertionError("compared")

    assert did_you_mean(Uncompared("a" * 65), ["causal"]) == ";"


@pytest.mark.parametrize(("count", "said"), [(0, ""), (2, "0, 1"), (3, "0, 1, 2"), (5, "0, 1, 2 and 2 more")])
def test_a_few_of_many_names_stand_for_all(count, said):
    assert name_some(map(str, range(count))) == said
    assert len(name_some(["x" * 10_000])) < 100
