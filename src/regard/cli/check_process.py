"""One side of regard check in a process of its own: seconds to load and to answer, and peak memory.

    python -m regard.cli.check_process ours FOLDER FILE fp32 cpu      FILE: the inputs, as safetensors

In one process with another model, memory and time could not be attributed.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from regard.config.errors import RunError

CHECK_SIDES = ("ours", "theirs")
LEAST, MOST = 5, 20  # further calls after the first; the fastest counts
ENOUGH = 1.0  # seconds


def measure_both(folder: Path, probe: Any, dtype: str, device: str) -> dict[str, dict[str, float | None]]:
    """Measure both sides in turn; the files have been read before, so neither waits for the disk."""
    from regard.hub.check.reference import flatten_probe
    from regard.hub.weights import save_tensors

    told = {}
    with tempfile.TemporaryDirectory() as place:
        for side in CHECK_SIDES:
            file = Path(place) / f"{side}.safetensors"
            save_tensors(file, flatten_probe(probe, side))
            words = [sys.executable, "-m", "regard.cli.check_process", side, str(folder), str(file), dtype, device]
            done = subprocess.run(words, capture_output=True, encoding="utf8", errors="replace")
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it ended without an error message"])[-1]
                raise RunError(f"{folder}: {side} cannot be measured in a separate process ({last}); --quick leaves "
                               "time and memory out")  # fmt: skip
            told[side] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure_side(side: str, folder: str, file: str, dtype: str, device: str) -> None:
    import torch

    from regard.hub import check
    from regard.hub.check.reference import unflatten_probe
    from regard.hub.read_folder import read_model_folder
    from regard.hub.weights import load_tensors_lazy
    from regard.inference.load import resolve_device
    from regard.measure.peak_memory import track_peak_bytes

    kind, where = check.DTYPES[dtype], resolve_device(device)
    given, named = unflatten_probe({name: x.to(where) for name, x in load_tensors_lazy(file).items()})
    found = read_model_folder(folder)
    if side == "theirs":
        check.reference_class(found)  # import the reference code before the clock starts, as for ours
    with track_peak_bytes(where) as held, torch.inference_mode():
        began = time.perf_counter()
        model = load_ours(folder, dtype, device) if side == "ours" else check.load_reference(found, kind, where)
        opened = time.perf_counter() - began
        fastest = fastest_call(lambda: model(*given, **named), where.type)
    print(json.dumps({"load_seconds": opened, "forward_seconds": fastest, "peak_bytes": held.bytes}))


def load_ours(folder: Path | str, dtype: str, device: str) -> Any:
    """Our model in one dtype."""
    from regard.inference.load import load_model

    return load_model(folder, device=device, dtype=dtype)


def fastest_call(call: Any, device: str) -> float:
    """The shortest of several calls, with GPU synchronisation."""
    import torch

    call()  # warm-up
    times: list[float] = []
    while len(times) < LEAST or (sum(times) < ENOUGH and len(times) < MOST):
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    measure_side(*sys.argv[1:])
