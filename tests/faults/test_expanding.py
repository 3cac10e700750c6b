"""Thousands of small files that promise much: each is opened or refused in a sentence, soon, and in little memory."""

import json
from collections import Counter

import pytest
from faults.made import count
from faults.test_mutated import mutants

MOST = 1 << 20  # kB that the process may ever hold: a gibibyte
QUICK = {"templates": 30, "tokenizers": 60, "arrays": 200, "parquet": 200, "gguf": 60}


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_a_small_file_that_promises_much_is_refused_before_memory_is_taken(kind, tmp_path, figures):
    many = count(10_000, QUICK[kind])
    told = mutants(kind, tmp_path, many, "expanding.py")
    faults = [each for each in told if each["what"] == "fault"]
    came = Counter(each["what"] for each in told)

    assert not faults, json.dumps(faults[:5], indent=1).replace("\\n", "\n")
    assert came["refused"] > many / 10 and came["opened"] > many / 100, came
    slow = max(told, key=lambda each: each["seconds"])
    assert slow["seconds"] < 2, slow
    most = max(each["memory"] for each in told)
    assert most < MOST, f"{most:,} kB"
    figures(**{kind: many}, opened=came["opened"], refused=came["refused"], slowest_ms=round(1000 * slow["seconds"]),
            most_mb=most >> 10)  # fmt: skip
