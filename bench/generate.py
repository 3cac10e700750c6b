"""Asking on this CPU: ours beside transformers' generate and onnxruntime, in one run, on equal work.

    python bench/generate.py                        # all of it, a quarter of an hour
    python bench/generate.py "gpt2 batch 1" bert    # rows whose name has one of these words

What is said is compared before anything is timed: ids of fp32 must be equal, logits of the others near. A ratio is the
peer's time over ours: above 1 we are faster. onnxruntime and ctranslate2 take part where they can be imported.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import keep, show, take_turns
from torch import Tensor

import regard

KINDS = ("fp32", "bf16", "int8")
NEW = 64
Work = dict[str, Callable[[], object]]


def quick(folder: Path, kind: str):
    return regard.load(folder, device="cpu", weights=kind)


def peers(kind: str, folder: Path):
    import transformers as hf

    made = {"gpt2": hf.GPT2LMHeadModel, "marian": hf.MarianMTModel, "bert": hf.BertForMaskedLM}[kind]
    return made.from_pretrained(folder).eval()


def write(kind: str, folder: Path) -> Path:
    """A model of the published shape with random weights: what it says is nonsense, what it costs is not."""
    import transformers as hf

    torch.manual_seed(0)
    if kind == "gpt2":
        made = hf.GPT2LMHeadModel(hf.GPT2Config(eos_token_id=None, bos_token_id=None))
    elif kind == "bert":
        made = hf.BertForMaskedLM(hf.BertConfig())
    else:
        made = hf.MarianMTModel(hf.MarianConfig(
            vocab_size=58101, decoder_vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6,
            encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
            max_position_embeddings=512, activation_function="swish", scale_embedding=True, pad_token_id=58100,
            eos_token_id=0, decoder_start_token_id=58100, forced_eos_token_id=0, static_position_embeddings=True,
        ))  # fmt: skip
    made.save_pretrained(folder)
    return folder


# ---------------------------------------------------------------- decoders


def greedy(batch: int, prompt: int, new: int, folder: Path) -> tuple[Work, dict[str, object]]:
    theirs, ours = peers("gpt2", folder), {kind: quick(folder, kind) for kind in KINDS}
    ids = torch.randint(1, 50000, (batch, prompt), generator=torch.Generator().manual_seed(1))
    rest = dict(do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
    work: Work = {"transformers": lambda: theirs.generate(ids, attention_mask=torch.ones_like(ids), **rest)[:, prompt:]}
    for kind, model in ours.items():
        work[kind] = lambda model=model: model.generate(ids, max_new_tokens=new, temperature=0)
    return work, agreement(work)


def agreement(work: Work) -> dict[str, object]:
    """How many of the tokens are the peer's."""
    said = {name: call() for name, call in work.items()}
    first: Tensor = said["transformers"]  # type: ignore[assignment]
    return {f"same_{kind}": round(float((said[kind] == first).float().mean()), 3) for kind in KINDS}


def beams(folder: Path) -> tuple[Work, dict[str, object]]:
    """Sixteen sentences of 8 to 30 tokens, four beams, at most 32 tokens."""
    theirs, ours = peers("marian", folder), {kind: quick(folder, kind) for kind in KINDS}
    chance = torch.Generator().manual_seed(2)
    lengths = torch.randint(8, 31, (16,), generator=chance)
    real = torch.arange(30)[None] < lengths[:, None]
    ids = torch.randint(1, 58000, (16, 30), generator=chance).masked_fill(~real, 58100)
    rest = dict(num_beams=4, max_new_tokens=32, do_sample=False, early_stopping=False, length_penalty=1.0)

    def theirs_say() -> list[list[int]]:
        said = theirs.generate(ids, attention_mask=real.long(), **rest)[:, 1:]
        return [trimmed(row) for row in said.tolist()]

    def ours_say(model) -> list[list[int]]:
        found = model.beam_search([[58100]] * 16, num_beams=4, max_new_tokens=32, source=ids, source_real=real)
        return [trimmed(each[0].ids) for each in found]

    work: Work = {"transformers": theirs_say} | {kind: lambda m=m: ours_say(m) for kind, m in ours.items()}
    said = {name: call() for name, call in work.items()}
    same = {f"same_{kind}": sum(a == b for a, b in zip(said[kind], said["transformers"], strict=True)) / 16
            for kind in KINDS}  # fmt: skip
    return work, same


def trimmed(ids) -> list[int]:
    ids = [id for id in ids if id != 58100]
    return ids[: ids.index(0)] if 0 in ids else ids


# ---------------------------------------------------------------- encoders


def encoder(batch: int, folder: Path) -> tuple[Work, dict[str, object]]:
    theirs, ours = peers("bert", folder), {kind: quick(folder, kind) for kind in KINDS}
    ids = torch.randint(1000, 30000, (batch, 128), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    work: Work = {"transformers": asking(lambda: theirs(input_ids=ids, attention_mask=mask).logits)}
    for kind, model in ours.items():
        work[kind] = asking(lambda model=model: model(ids))
    if importlib.util.find_spec("onnxruntime"):
        work["onnxruntime"] = exported(theirs, ids, mask, folder)
    said = {name: call() for name, call in work.items()}
    gaps = {f"gap_{name}": f"{float((said[name] - said['transformers']).abs().max()):.1e}" for name in said}
    return work, gaps


def asking(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def asked() -> Tensor:
        with torch.inference_mode():
            return call()

    return asked


def exported(model, ids: Tensor, mask: Tensor, folder: Path) -> Callable[[], Tensor]:
    """The same model as onnxruntime runs it, by torch's own exporter."""
    import onnxruntime as ort

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return self.model(input_ids=ids, attention_mask=mask).logits

    path = folder / f"bert-{len(ids)}.onnx"
    named = dict(input_names=["ids", "mask"], output_names=["logits"])
    torch.onnx.export(Logits().eval(), (ids, mask), path, **named, dynamo=True, verbose=False)
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {"ids": ids.numpy(), "mask": mask.numpy()}
    return lambda: torch.from_numpy(session.run(["logits"], given)[0])


# ---------------------------------------------------------------- from nothing to the first token

FLOOR = """import torch, safetensors.torch, sys
numbers = {name: each.clone() for name, each in safetensors.torch.load_file(sys.argv[1] + '/model.safetensors').items()}
"""  # cloned: a file that is only mapped has not been read
OURS = """import regard, sys; m = regard.load(sys.argv[1])
import torch; m.generate(torch.tensor([[1, 2, 3]]), new=1)
"""  # regard comes first: it lets the collector rest while it imports torch
THEIRS = """import torch, sys; from transformers import GPT2LMHeadModel
m = GPT2LMHeadModel.from_pretrained(sys.argv[1])
m.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=1, pad_token_id=0)
"""


def start(folder: Path) -> tuple[Work, dict[str, object]]:
    """Until it is there: how long a process takes to leave is not waited for."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as installed

    def run(script: str) -> Callable[[], object]:
        words = [sys.executable, "-W", "ignore", "-c", script + "\nprint('there', flush=True)", str(folder)]

        def there() -> None:
            with subprocess.Popen(words, env=compiled, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout is not None and process.stdout.readline() == b"there\n"
                process.kill()

        return there

    return {"transformers": run(THEIRS), "fp32": run(OURS), "torch and the file": run(FLOOR)}, {}


ROWS: dict[str, tuple[str, Callable[[Path], tuple[Work, dict[str, object]]]]] = {
    "gpt2 batch 1": ("gpt2", lambda folder: greedy(1, 128, NEW, folder)),
    "gpt2 batch 8": ("gpt2", lambda folder: greedy(8, 128, NEW, folder)),
    "gpt2 first token of 512": ("gpt2", lambda folder: greedy(1, 512, 1, folder)),
    "marian 16 x beam 4": ("marian", beams),
    "bert 1 x 128": ("bert", lambda folder: encoder(1, folder)),
    "bert 8 x 128": ("bert", lambda folder: encoder(8, folder)),
    "gpt2 process to first token": ("gpt2", start),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="rows whose name has one of these")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    chosen = [name for name in ROWS if not asked.words or any(word in name for word in asked.words)]
    rows = []
    with tempfile.TemporaryDirectory() as desk:
        for name in chosen:
            kind, build = ROWS[name]
            folder = Path(desk) / kind
            began = time.perf_counter()
            work, said = build(folder if folder.exists() else write(kind, folder))
            seconds = take_turns(work, asked.rounds, warm=1)
            ratios = {f"x_{peer}": round(seconds["transformers"] / spent, 2) for peer, spent in seconds.items()}
            rows.append({"work": name, "transformers_s": round(seconds["transformers"], 4), **ratios, **said})
            print(rows[-1], f"({time.perf_counter() - began:.0f} s)", flush=True)
    wide = {key: "" for row in rows for key in row}
    rows = [wide | row for row in rows]
    show(rows)
    if not asked.words:
        keep("generate-cpu", rows)


if __name__ == "__main__":
    main()
