"""Free memory is the smaller of what the system has and what a container leaves."""

import math

import pytest

from regard.native import free_memory


@pytest.mark.parametrize(("most", "free"), [("max", 3000 * 1024.0), ("1_000_000", 400_000.0), (None, 3000 * 1024.0)])
def test_free_memory_is_what_system_and_container_both_leave(tmp_path, monkeypatch, most, free):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 3000 kB\n")
    if most is not None:
        (tmp_path / "memory.max").write_text(most)
        (tmp_path / "memory.current").write_text("600000")
    monkeypatch.setattr(free_memory, "SYSTEM", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "CONTAINER", tmp_path)

    assert free_memory.free_memory_bytes() == free


def test_a_system_that_tells_nothing_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "SYSTEM", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "CONTAINER", tmp_path)

    assert math.isinf(free_memory.free_memory_bytes())
