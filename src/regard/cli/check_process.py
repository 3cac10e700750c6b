"""A model in a process of its own: how long it takes to open and to answer, and the most memory it holds.

    python -m regard.cli.weigh ours FOLDER FILE fp32 cpu      FILE: what it is asked, as safetensors

Beside another model, or after one, neither memory nor time would be its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from regard.config import RunError

SIDES = ("ours", "theirs")
LEAST, MOST = 5, 20  # times that a model is asked after the first; the fastest counts
ENOUGH = 1.0  # seconds


def weighed(folder: Path, asked: Any, dtype: str, device: str) -> dict[str, dict[str, float | None]]:
    """Both sides, one after the other; the files have been read before, so neither waits for the disk."""
    from regard.hub.check.questions import packed
    from regard.hub.folder import tensors_to

    told = {}
    with tempfile.TemporaryDirectory() as place:
        for side in SIDES:
            file = Path(place) / f"{side}.safetensors"
            tensors_to(file, packed(asked, side))
            words = [sys.executable, "-m", "regard.cli.weigh", side, str(folder), str(file), dtype, device]
            done = subprocess.run(words, capture_output=True, encoding="utf8", errors="replace")
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
                raise RunError(f"{folder}: {side} cannot be weighed in a process of its own ({last}); --quick leaves "
                               "time and memory out")  # fmt: skip
            told[side] = json.loads(done.stdout.splitlines()[-1])
    return told


def main(side: str, folder: str, file: str, dtype: str, device: str) -> None:
    import torch

    from regard.generate.opening import place
    from regard.hub import check
    from regard.hub.check.questions import unpacked
    from regard.hub.folder import read, tensors_from
    from regard.train.doctor.peak import watched

    kind, where = check.DTYPES[dtype], place(device)
    given, named = unpacked({name: x.to(where) for name, x in tensors_from(file).items()})
    found = read(folder)
    if side == "theirs":
        check.class_of(found)  # their code is imported before the clock starts, as ours was
    with watched(where) as held, torch.inference_mode():
        began = time.perf_counter()
        model = ours_in(folder, dtype, device) if side == "ours" else check.opened(found, kind, where)
        opened = time.perf_counter() - began
        fastest = quickest(lambda: model(*given, **named), where.type)
    print(json.dumps({"load_seconds": opened, "forward_seconds": fastest, "peak_bytes": held.bytes}))


def ours_in(folder: Path | str, dtype: str, device: str) -> Any:
    """Our model in one type of numbers."""
    from regard.generate.opening import load

    return load(folder, device=device, dtype=dtype)


def quickest(ask: Any, device: str) -> float:
    """The shortest time of a few; a GPU is waited for."""
    import torch

    ask()  # the first call makes what later ones find
    times: list[float] = []
    while len(times) < LEAST or (sum(times) < ENOUGH and len(times) < MOST):
        began = time.perf_counter()
        ask()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main(*sys.argv[1:])
