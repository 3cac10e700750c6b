"""A run computes as its CPU can, says so, and goes on as it began, on whatever CPU."""

import json

import pytest
import torch
from training.builders import advanced, assert_same, bits

from regard.core import layers
from regard.training.api import fit, resume_fit
from regard.training.optim.muon import Muon
from regard.training.run import Run

MIXED = "train.precision=mixed"


@pytest.fixture
def cpu(monkeypatch):
    """cpu(False) is a CPU without bf16 products of its own."""
    return lambda has_bf16: monkeypatch.setattr(layers, "CPU_BF16", has_bf16)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_on_a_cpu_without_bf16_mixed_is_fp32_to_the_last_bit(recipe, cpu, kind):
    cpu(False)
    mixed, plain = (Run.from_recipe(recipe(f"train.precision={precision}", f"train.optimizer.kind={kind}"))
                    for precision in ("mixed", "fp32"))  # fmt: skip

    assert advanced(mixed) == advanced(plain)
    assert_same(bits(mixed), bits(plain))
    assert [part.products for part in mixed.optimizer.parts if isinstance(part, Muon)] in ([], [torch.float32])


@pytest.mark.parametrize("begun", [True, False], ids=["with bf16", "without"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_run_goes_on_as_it_began_on_a_cpu_of_another_kind(recipe, cpu, tmp_path, begun, kind):
    changes = [MIXED, f"train.optimizer.kind={kind}"]
    cpu(begun)
    straight, half = (Run.from_recipe(recipe(*changes)) for _ in range(2))
    losses = advanced(straight)
    first = advanced(half, 3)
    half.save(tmp_path / "half")
    cpu(not begun)
    again = Run.from_recipe(recipe(*changes))
    again.load(tmp_path / "half")

    assert first + advanced(again) == losses
    assert_same(bits(again), bits(straight))


@pytest.mark.parametrize("has_bf16", [True, False])
def test_what_is_not_as_the_recipe_has_it_is_said_once_and_kept(recipe, cpu, desk, capfd, has_bf16):
    cpu(has_bf16)
    fit(recipe(MIXED), desk / "run")
    told, known = capfd.readouterr().err, json.loads((desk / "run/run.json").read_text())

    assert told.count("mixed, which is fp32 on this CPU") == (not has_bf16)
    assert known["precision"] == ("mixed" if has_bf16 else "fp32 (mixed, on a CPU without bf16)")
    cpu(not has_bf16)
    resume_fit(desk / "run", ["train.steps=8"])
    told = capfd.readouterr().err

    assert ("this CPU emulates it" if has_bf16 else "fp32 on this CPU, as the run began") in told


def test_bf16_weights_where_they_are_emulated_are_warned_of(recipe, cpu, desk, capfd):
    cpu(False)
    fit(recipe("train.precision=bf16", "train.steps=1"), desk / "run")

    assert "train.precision: bf16, which this CPU has no instructions for" in capfd.readouterr().err
