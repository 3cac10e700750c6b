"""Thousands of small files that promise much: each is opened or refused in a sentence, soon, and in little memory."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from faults.test_mutated_files import mutants
from faults.trials import count

MOST = 1 << 20  # kB that the process may ever hold: a gibibyte
QUICK = {"templates": 30, "tokenizers": 60, "arrays": 200, "parquet": 200, "gguf": 60}


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_a_small_file_that_promises_much_is_refused_before_memory_is_taken(kind, tmp_path, figures):
    many = count(10_000, QUICK[kind])
    told = mutants(kind, tmp_path, many, "expanding_files.py")
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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is one of Linux")
def test_a_file_that_wants_the_whole_memory_ends_its_own_process_alone():
    taken = "import expanding_files\nexpanding_files.limit_memory()\nbytes(1 << 30)\nbytes(2 * expanding_files.ROOM)"
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    ended = subprocess.run([sys.executable, "-c", f"import sys\nsys.path[:0] = {places}\n{taken}"],
                           capture_output=True, text=True)  # fmt: skip

    assert ended.returncode == 1 and ended.stderr.rstrip().endswith("MemoryError")
