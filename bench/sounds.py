"""Spoken digits: a small transformer on spectrograms, raw frames and three rates, beside logistic regression.

    python bench/sounds.py --data FOLDER             train.flac + train.tsv.gz, test.flac + test.tsv.gz, or .wav, .tsv
    python bench/sounds.py --data FOLDER --pack OUT  the same as WAV, which needs no package, for another machine
    python bench/sounds.py --data FOLDER --quick     a few steps of each, to see that all runs

A JSON line for each result, and a table of all at the end. The test files are only scored.
"""

import argparse
import json
import time
import wave
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import Run
from regard.config.inputs.audio import MelSpectrogram
from regard.config.recipe import Data
from regard.data.readers.audio import open_audio, read_audio
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records
from regard.inputs.audio import log_mel_spectrogram
from regard.training.loop import train_steps
from regard.training.validation import validate

RAW = ["model.embed.augment.time_masks=0", "model.embed.augment.freq_masks=0"]  # no spectrogram, nothing of it to hide
WAYS = {"mel": [], "frames": ["model.embed.features={kind='raw', frame_size=80}", *RAW],
        "rates": ["model.embed.features={kind='multi_rate', frame_size=80}", *RAW]}  # fmt: skip
RATE = 8000


def parts(folder: Path) -> dict[str, str]:
    """Each part's sound and table, whichever way they are written."""
    found = {}
    for part in ("train", "test"):
        sound = next((path for path in (folder / f"{part}.wav", folder / f"{part}.flac") if path.exists()), None)
        table = next((path for path in (folder / f"{part}.tsv", folder / f"{part}.tsv.gz") if path.exists()), None)
        if sound is None or table is None:
            raise SystemExit(f"{folder}: no {part}.wav or {part}.flac with its {part}.tsv or {part}.tsv.gz in it")
        found[part] = f"{sound} + {table}"
    return found


def pack(named: dict[str, str], out: Path) -> None:
    """The sounds as 16-bit WAV and their tables as they are."""
    out.mkdir(parents=True, exist_ok=True)
    for part, names in named.items():
        sound, table = map(Path, names.split(" + "))
        with open_audio(sound) as file, wave.open(str(out / f"{part}.wav"), "wb") as made:
            made.setnchannels(1)
            made.setsampwidth(2)
            made.setframerate(file.rate)
            samples = (file.read(0, file.count)[:, 0] * 32768).round().clamp(-32768, 32767).to(torch.int16)
            made.writeframes(samples.numpy().tobytes())
        (out / table.name).write_bytes(table.read_bytes())
        print(out / f"{part}.wav", out / table.name)


def spectra(names: str) -> tuple[Tensor, Tensor]:
    """The mean log-mel spectrum of every sound, and its digit."""
    how, c = Data(source=names), MelSpectrogram(win_length=256, hop_length=80, n_mels=64)
    rows, digits = [], []
    for record in next(iter(find_records(how.sources, how))).records(BadRecordPolicy()):
        samples = read_audio(record["sound"], RATE, 10.0)
        rows.append(log_mel_spectrogram(samples[None], c, RATE, c.windows(len(samples)))[0].mean(0))
        digits.append(int(record["digit"]))
    return torch.stack(rows), torch.tensor(digits)


def logistic(named: dict[str, str], decay: float = 1e-3) -> dict[str, float]:
    """Multinomial logistic regression on mean spectra, standardised, to its optimum."""
    (x, y), (u, v) = spectra(named["train"]), spectra(named["test"])
    mean, std = x.mean(0), x.std(0)
    x, u = ((each - mean) / std for each in (x, u))
    map = torch.nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.LBFGS(map.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(map(x), y) + decay * map.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return {"accuracy": float((map(u).argmax(-1) == v).float().mean()), "parameters": 10 * (x.shape[1] + 1)}


def ours(named: dict[str, str], way: str, seed: int, quick: bool) -> dict[str, float]:
    steps = ["train.steps=8", "train.schedule.warmup=2"] if quick else []
    run = Run.from_recipe("spoken-digits", [f"data.source={named['train']}", f"data.validation={named['test']}",
                                            f"train.seed={seed}", *WAYS[way], *steps])  # fmt: skip
    began = time.perf_counter()
    for _ in train_steps(run):
        pass
    seconds = time.perf_counter() - began
    assert run.validation is not None
    scores = validate(run.model, run.validation.batches(), run.task, True).scores
    count = sum(weight.numel() for weight in run.model.parameters())
    return {"accuracy": scores["accuracy"], "parameters": count, "seconds": seconds, "device": run.device.type}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/spoken-digits"))
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--ways", default="mel,frames,rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    named = parts(asked.data)
    if asked.pack is not None:
        return pack(named, asked.pack)
    rows = [{"model": "logistic regression on the mean spectrum", "seed": 0, **logistic(named)}]
    print(json.dumps(rows[0]), flush=True)
    for way in asked.ways.split(","):
        for seed in range(1 if asked.quick else asked.seeds):
            rows.append({"model": f"transformer, {way}", "seed": seed, **ours(named, way, seed, asked.quick)})
            print(json.dumps(rows[-1]), flush=True)
    print(f"\n{'model':<42} {'parameters':>10} {'accuracy':>18} {'seconds':>8}")
    for name in dict.fromkeys(row["model"] for row in rows):
        some = [row for row in rows if row["model"] == name]
        scores = [100 * row["accuracy"] for row in some]
        spread = f"{sum(scores) / len(scores):.2f} ({min(scores):.2f}-{max(scores):.2f})"
        print(f"{name:<42} {some[0]['parameters']:>10,} {spread:>18} {some[0].get('seconds', 0):>8.1f}")


if __name__ == "__main__":
    main()
