"""The journeys of docs/architecture.md, taken for real: which files of regard run between a call and its result.

`python tests/journeys.py FOLDER` takes all of them on tiny models, each in a fresh process, and writes what ran to
FOLDER/NAME.json as {file: [functions, in the order of their first call]}; then it prints, for every journey, what ran
and is neither listed in docs/journeys.toml nor covered there by a reason. tests/test_architecture.py compares both.
"""

import json
import os
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "regard"
PROMPT = "ROMEO:"


class Trace:
    """Records the functions of a package that are called inside of `with`, in every thread that started after it.

    What a module does while it is imported (decorators, tables, config defaults) does not count: it is no part of a
    call, and happens or not by what was imported before. `until` ends the record when that code first returns or
    yields.
    """

    def __init__(self, package: Path = PACKAGE, until: CodeType | None = None) -> None:
        self.root, self.until = f"{package}{os.sep}", until
        self.files: dict[str, list[str]] = {}
        self.recording = False
        self.importing = threading.local()
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    def __enter__(self) -> "Trace":
        self.recording = True
        return self

    def __exit__(self, *_: object) -> None:
        self.recording = False

    def close(self) -> None:
        self.recording = False
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is what ends it

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call":
            if code.co_name == "<module>":
                self.importing.depth = self.depth + 1
            elif self.recording and not self.depth and code.co_filename.startswith(self.root):
                self.record(code)
        elif event == "return":
            if code.co_name == "<module>":
                self.importing.depth = self.depth - 1
            elif code is self.until:
                self.recording = False

    @property
    def depth(self) -> int:
        """How many modules the thread is importing just now, one inside the other."""
        return getattr(self.importing, "depth", 0)

    def record(self, code: CodeType) -> None:
        functions = self.files.setdefault(Path(code.co_filename[len(self.root) :]).as_posix(), [])
        if code.co_qualname not in functions:
            functions.append(code.co_qualname)


def train(folder: Path) -> Trace:
    """`regard train shakespeare`, as small as it gets and not compiled, until the first step is done."""
    from regard.cli import main
    from regard.training.loop import train_steps

    sizes = ["model.dim=16", "model.depth=1", "model.heads=2", "train.steps=1", "train.minutes=none",
             "train.batch_size=2", "train.context=32", "train.compile=false"]  # fmt: skip
    with Trace(until=train_steps.__code__) as trace:
        succeed(main(["train", "shakespeare", *sizes, "--out", str(folder / "lab")]))
    return trace


def generate(folder: Path) -> Trace:
    """`regard generate runs/lab "ROMEO:"`."""
    from regard.cli import main

    with Trace() as trace:
        succeed(main(["generate", str(folder / "lab"), PROMPT, "--max-new-tokens", "5"]))
    return trace


def load(folder: Path) -> Trace:
    """`regard.load("gpt2/")`: a folder in the form of `transformers`, without a word of ours in it."""
    from regard import config, load, text, zoo
    from regard.inference.model import build_model

    model = build_model(zoo.preset("gpt2", dim=12, depth=1, heads=3, vocab=30, position={"length": 64}))
    model.tokenizer = text.train_tokenizer(
        config.CharTokenizer(byte_fallback=False), ["abcdefghijklmnopqrstuvwxyz .,\n"]
    )
    model.save(folder / "gpt2")
    published = json.loads((folder / "gpt2" / "config.json").read_text(encoding="utf8"))
    del published["regard"]
    (folder / "gpt2" / "config.json").write_text(json.dumps(published), encoding="utf8")
    (folder / "gpt2" / "MANIFEST.json").unlink()
    with Trace() as trace:
        load(folder / "gpt2")
    return trace


def serve(folder: Path) -> Trace:
    """`POST /v1/completions`, to a server that is up."""
    from fastapi.testclient import TestClient

    from regard import load
    from regard.serve.app import create_app

    model, trace = load(folder / "lab"), Trace()  # before the server starts the threads it has to see
    with TestClient(create_app({"lab": model}), base_url="http://127.0.0.1:8000") as client, trace:
        reply = client.post("/v1/completions", json={"model": "lab", "prompt": PROMPT, "max_tokens": 5})
    assert reply.status_code == 200, reply.text
    return trace


def classify(folder: Path) -> Trace:
    """`regard.load("runs/digits").classify(["three.png"])`, after loading."""
    from PIL import Image

    from regard import load
    from regard.cli import main

    succeed(main(["train", "digits", "model.depth=1", "train.steps=1", "--quiet", "--out", str(folder / "digits")]))
    Image.new("L", (8, 8), 128).save(folder / "three.png")
    model = load(folder / "digits")
    with Trace() as trace:
        [answer] = model.classify([str(folder / "three.png")])
    assert len(answer) == 10
    return trace


JOURNEYS: dict[str, Callable[[Path], Trace]] = {
    "train": train, "generate": generate, "load": load, "serve": serve, "classify": classify,
}  # fmt: skip


def succeed(code: int) -> None:
    if code:
        sys.exit(code)


def unexplained(journey: dict[str, Any], ran: dict[str, list[str]]) -> dict[str, list[str]]:
    """What ran and is neither listed nor covered by a reason."""
    listed = {file for file, _ in journey["files"]}
    return {file: ran[file] for file in ran if file not in listed and not covering(journey["unlisted"], file)}


def covering(patterns: dict[str, str], file: str) -> list[str]:
    return [pattern for pattern in patterns if covers(pattern, file)]


def covers(pattern: str, file: str) -> bool:
    """`a/b.py` is a file, `a/*` are the files of a folder, `a/**` those of its folders too."""
    folder, _, last = pattern.rpartition("/")
    if last == "**":
        return file.startswith(f"{folder}/")
    return file == pattern or (last == "*" and file.rpartition("/")[0] == folder)


def read_journeys() -> dict[str, dict[str, Any]]:
    return tomllib.loads((ROOT / "docs" / "journeys.toml").read_text(encoding="utf8"))


def main(folder: Path) -> int:
    """Each journey in a fork: what one of them has cached, the next one would not run."""
    os.environ.update(REGARD_CACHE=str(folder / "cache"), HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    import torch

    import regard.cli.app
    import regard.inference.model  # noqa: F401  once for all

    torch.set_num_threads(1)
    for name, take in JOURNEYS.items():
        if not (child := os.fork()):
            trace = take(folder)
            trace.close()
            (folder / f"{name}.json").write_text(json.dumps(trace.files, indent=1), encoding="utf8")
            sys.stdout.flush()
            os._exit(0)  # the child has nothing to clean up that is not the parent's
        if os.waitpid(child, 0)[1]:
            print(f"the journey {name!r} failed", file=sys.stderr)
            return 1
    for name, journey in read_journeys().items():
        ran = json.loads((folder / f"{name}.json").read_text(encoding="utf8"))
        print(f"\n{name}: {len(ran)} files ran")
        for file, functions in unexplained(journey, ran).items():
            print(f"  {file}: {', '.join(functions[:4])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
