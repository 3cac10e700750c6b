"""What docs/checkpoints.md states about families and tolerances, held to the code."""

import families
import pytest
import torch

from regard.hub.check.parity import ALLOWED_ROUNDINGS, DTYPES, allowed_difference
from regard.hub.families.registry import FAMILIES

TEXT = families.PAGE.read_text(encoding="utf8")


def test_the_table_of_families_is_the_one_there_is():
    assert families.main(["--check"]) == 0, "python tools/families.py writes it anew"
    assert all(f"`{name}`" in TEXT for name in FAMILIES)


def test_a_page_that_lacks_a_class_is_stale():
    assert families.page(TEXT.replace("`GPT2Model`, ", "")) == TEXT != TEXT.replace("`GPT2Model`, ", "")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_allowance_is_the_one_that_the_page_states(dtype):
    eps = torch.finfo(torch.float32 if dtype == "fp64" else DTYPES[dtype]).eps

    assert f"{ALLOWED_ROUNDINGS} units in the\n  last place" in TEXT
    assert allowed_difference(dtype, 1000.0) == ALLOWED_ROUNDINGS * eps * 1000.0
    assert allowed_difference(dtype, 0.5) == max(ALLOWED_ROUNDINGS * eps, 1e-4 * (dtype == "fp32"))
    assert allowed_difference("bf16", 1.0) == 0.25
