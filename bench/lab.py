"""The lab beside a plain loop: training speed of the nano recipe, the losses of the recipes, and how soon a word comes.

python bench/lab.py                speed and start, some minutes
python bench/lab.py losses         the recipes' losses, three seeds each: about a quarter of an hour
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, show, take_turns

from regard.data.prepare import prepare_text
from regard.training.api import fit
from regard.training.loop import StepRunner
from regard.training.run import Run
from regard.zoo.recipe import read_recipe

STEPS = 10  # a turn


def plain_loop(ids: torch.Tensor, c):
    """The loop everybody writes: transformers' GPT-2 of the same size, eager, fp32, AdamW; random windows."""
    import transformers as hf

    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=c.model.embed.vocab, n_positions=c.train.context, n_embd=c.model.trunk.dim,
            n_layer=c.model.trunk.depth, n_head=c.model.trunk.heads[0], resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)

    def turn() -> None:
        for _ in range(STEPS):
            starts = torch.randint(len(ids) - c.train.context - 1, (c.train.batch_size,))
            batch = torch.stack([ids[s : s + c.train.context + 1] for s in starts])
            loss = F.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()

    return turn


def our_loop(**changes: str):
    run = Run.from_recipe("shakespeare-nano", [f"train.{name}={value}" for name, value in changes.items()])
    advance = StepRunner(run, print)

    def turn() -> None:
        for _ in range(STEPS):
            run.optimizer.set_lr_factor(run.schedule(run.step + 1, run.progress))
            advance()[0].item()
            run.step += 1

    return turn


def speed() -> None:
    c = read_recipe("shakespeare-nano")
    text = prepare_text(c.data, c.tokenizer)
    c = Run.from_recipe(c).recipe
    work = {
        "transformers, eager fp32": plain_loop(text.train.ids(0, len(text.train)), c),
        "ours, mixed, compiled": our_loop(),
        "ours, mixed, eager": our_loop(compile="false"),
        "ours, bf16, compiled": our_loop(precision="bf16"),
        "ours, fp32, compiled": our_loop(precision="fp32"),
    }
    seconds = take_turns(work, rounds=15, warm=2)
    first, tokens = next(iter(seconds.values())), STEPS * c.train.batch_size * c.train.context
    rows = [{"loop": name, "tokens_per_second": round(tokens / took), "times": first / took}
            for name, took in seconds.items()]  # fmt: skip
    show(rows)
    keep("lab-speed", rows)


def start() -> None:
    """Whole processes, one after the other in every round."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "import torch": ["-c", "import torch"],
        "import regard": ["-c", "import regard"],
        "import torch, regard.Model": ["-c", "import torch, regard; regard.Model"],
        "regard --help": ["-m", "regard", "--help"],
        "regard --version": ["-m", "regard", "--version"],
        "regard train nothere": ["-m", "regard", "train", "nothere"],
    }
    times = {name: [] for name in commands}
    for _ in range(7):
        for name, words in commands.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words], capture_output=True)
            times[name].append(time.perf_counter() - begun)
    rows = [{"process": name, "seconds": statistics.median(took)} for name, took in times.items()]
    show(rows)
    keep("lab-start", rows)


def losses() -> None:
    """Each recipe in a process of its own, so that compiling is paid for as a user pays for it."""
    rows = []
    for recipe in ("shakespeare-nano", "shakespeare"):
        for seed in range(3):
            with tempfile.TemporaryDirectory() as folder:
                begun = time.perf_counter()
                done = subprocess.run([sys.executable, __file__, "one", recipe, str(seed), folder],
                                      capture_output=True, text=True, env=environment(folder))  # fmt: skip
                if done.returncode:
                    sys.exit(done.stderr)
                steps, loss, seconds = done.stdout.split()[-3:]
                took = {"training_seconds": float(seconds), "wall_seconds": time.perf_counter() - begun}
                rows.append({"recipe": recipe, "seed": seed, "steps": int(steps), "eval_loss": float(loss), **took})
                show(rows[-1:])
    keep("lab-losses", rows)


def environment(folder: str) -> dict[str, str]:
    """No compiled code from before."""
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}


def one(recipe: str, seed: str, folder: str) -> None:
    done = fit(read_recipe(recipe, [f"train.seed={seed}"]), Path(folder) / "run", quiet=True)
    print(done.steps, done.eval_loss, done.seconds)


def main() -> None:
    match sys.argv[1:]:
        case ["one", recipe, seed, folder]:
            one(recipe, seed, folder)
        case ["losses"]:
            losses()
        case _:
            start()
            speed()


if __name__ == "__main__":
    main()
