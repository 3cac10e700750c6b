"""Tokens a second with guesses and without, in one run and in turns: who repeats himself is looked up, a draft guesses.

    python bench/speculative.py                        three tasks on this machine, about a minute on two cores
    python bench/speculative.py --model FOLDER --draft-model FOLDER --prompt "..."

A random model says nothing that could be guessed, so two stand-ins are made from one: a deep model whose upper blocks
change little, and a draft that is its lower blocks alone. The greedy ids are compared before any figure counts.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch

import regard

DIM, DEPTH, LOWER, VOCAB = 512, 12, 2, 4096
LITTLE = 0.005  # how much an upper block adds, of what it would
ROUNDS = 3


def stand_ins() -> tuple[regard.Model, regard.Model]:
    """A model, and a draft of its lower blocks that nearly always agrees with it."""
    torch.manual_seed(0)
    c = regard.preset("llama-7b", dim=DIM, depth=DEPTH, heads=8, vocab=VOCAB)
    big = regard.build(c).eval()
    small = regard.build(replace(c, trunk=replace(c.trunk, depth=LOWER))).eval()
    with torch.no_grad():
        for block in big.trunk.blocks[LOWER:]:
            block.attn.out.weight.mul_(LITTLE)
            block.mlp.down.weight.mul_(LITTLE)
    own = big.state_dict()
    small.load_state_dict({name: own[name] for name in small.state_dict()})
    return big, small


def timed(model: regard.Model, prompt: torch.Tensor, new: int, **ahead) -> tuple[float, list[int], float | None]:
    """Tokens a second, the ids, and the part of the guesses that stayed."""
    session = model.session([prompt.tolist()], max_new_tokens=new, temperature=0, **ahead)
    began = time.perf_counter()
    ids = [row[0] for row in session if row[0] is not None]
    seconds = time.perf_counter() - began
    guessed = sum(getattr(session, "guessed", [0]))
    return len(ids) / seconds, ids, sum(session.kept) / guessed if guessed else None


def compared(model: regard.Model, prompt: torch.Tensor, new: int, ways: dict[str, dict]) -> None:
    plain = timed(model, prompt, new)[1]
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    kept: dict[str, float | None] = {}
    for _ in range(ROUNDS):  # in turns: what else the machine does meets all alike
        for name, ahead in ways.items():
            speed, ids, kept[name] = timed(model, prompt, new, **ahead)
            speeds[name].append(speed)
            same = sum(a == b for a, b in zip(ids, plain, strict=True))
            assert same == len(plain), f"{name}: {same} of {len(plain)} ids are those of plain decoding"
    base = statistics.median(speeds["plain"])
    for name, found in speeds.items():
        speed, stayed = statistics.median(found), "" if kept[name] is None else f"{100 * kept[name]:.0f}% stayed"
        print(f"  {name:<18} {speed:8.1f} tokens/s   {speed / base:5.2f}x   {stayed}".rstrip())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--model")
    asked.add_argument("--draft-model")
    asked.add_argument("--prompt", default="Once upon a time")
    asked.add_argument("--max-new-tokens", type=int, default=128)
    given = asked.parse_args()
    if given.model is None:
        model, draft = stand_ins()
        prompt = torch.randint(VOCAB, (64,))
    else:
        model, draft = regard.load(given.model), None if given.draft is None else regard.load(given.draft)
        prompt = torch.tensor(model.encode_prompts([given.prompt])[1][0])
    ways = {"plain": {}, "lookup=3": {"lookup": 3}}
    ways |= {f"draft, guess={guess}": {"draft": draft, "guess": guess} for guess in (2, 4, 6)} if draft else {}
    machine = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"{machine}: {given.new} tokens after {len(prompt)}, greedy, fp32")
    with torch.inference_mode():
        compared(model, prompt, given.new, ways)


if __name__ == "__main__":
    main()
