"""Precision "mixed": 16-bit products where a CPU has them, and the same model in fp32 where it would emulate them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard import config as C
from regard import measure
from regard.core import layers
from regard.inference.model import Model
from regard.models.segment_memory import build_segment_memory

V, N = 11, 9
CPUS = {"with bf16": True, "without": False}


@pytest.fixture(params=CPUS)
def cpu(request, monkeypatch):
    """A CPU of either kind: whether it has bf16 products of its own."""
    monkeypatch.setattr(layers, "CPU_BF16", CPUS[request.param])
    return CPUS[request.param]


def model(precision: str, trunk: C.Trunk | C.RecurrentStack | None = None) -> Model:
    torch.manual_seed(0)
    trunk = trunk or C.Trunk(
        dim=16, depth=2, mask="causal", position=C.RotaryPosition(), attention=C.Attention(heads=2)
    )
    return Model(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk, precision=precision)).eval()


IDS = torch.arange(2 * N).view(2, N) % V


def test_mixed_multiplies_in_bf16_where_a_cpu_can_and_is_fp32_where_it_cannot(cpu):
    made, plain = model("mixed")(IDS), model("fp32")(IDS)

    assert made.dtype == (torch.bfloat16 if cpu else torch.float32)
    assert torch.equal(made, plain) != cpu


def test_caches_are_of_the_type_that_products_are(cpu):
    one = model("mixed")
    cache, kind = one.cache(2, N), torch.bfloat16 if cpu else torch.float32

    assert {table.dtype for entry in cache.entries for table in entry.tables()} == {kind}
    assert {table.dtype for entry in build_segment_memory(one, 2, N).entries for table in entry.tables()} == {kind}
    one(IDS, cache=cache)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_models_need_no_exception_of_their_own(monkeypatch, kind):
    monkeypatch.setattr(layers, "CPU_BF16", False)
    cells = C.RecurrentStack(cell=kind, dim=16, depth=2)

    assert torch.equal(model("mixed", cells)(IDS), model("fp32", cells)(IDS))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_a_model_moved_to_another_type_computes_in_it(precision, dtype):
    one = model(precision).to(dtype)
    cache = one.cache(2, N)

    assert one(IDS).dtype == one(IDS, cache=cache).dtype == dtype
    assert {table.dtype for entry in cache.entries for table in entry.tables()} == {dtype}


def test_a_prediction_for_this_cpu_is_that_of_what_it_computes(monkeypatch):
    monkeypatch.setattr(layers, "CPU_BF16", False)
    here, fp32 = (measure.predict_step(model(precision).c, batch=2, context=N) for precision in ("mixed", "fp32"))
    monkeypatch.setattr(layers, "CPU_BF16", True)
    there = measure.predict_step(model("mixed").c, batch=2, context=N)

    assert here.passing == fp32.passing != there.passing


def test_an_estimate_for_another_device_does_not_depend_on_this_cpu(cpu):
    bill = measure.estimate_model(model("mixed").c, batch=2, context=N, terms=measure.CostTerms(device="v100"))

    assert bill.precision == "mixed"
    assert bill.memory.activations < measure.estimate_model(model("fp32").c, batch=2, context=N).memory.activations


ASK = "from regard.core.layers import CPU_BF16; print(CPU_BF16)"


def asked(**environment: str) -> str:
    words, clean = [sys.executable, "-c", ASK], {k: v for k, v in os.environ.items() if not k.startswith("ONEDNN_MAX")}
    return subprocess.run(words, env=clean | environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or not torch.cpu._is_avx2_supported(),
                    reason="reads the flags of an x86 processor from Linux")  # fmt: skip
def test_the_decision_is_what_the_processor_says_of_itself():
    flags = Path("/proc/cpuinfo").read_text().split()

    assert asked() == str("avx512_bf16" in flags or "amx_bf16" in flags)
    assert asked(ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2") == "False"
