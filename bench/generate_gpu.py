"""Writing on a GPU: greedy texts by a recorded step, by the plain loop and by `transformers`, in one run, in bf16.

    python bench/generate_gpu.py                          # GPT-2 in three sizes, one text and 64; three minutes
    python bench/generate_gpu.py 124M --batches 1 --alone # without transformers
    python bench/generate_gpu.py tiny --batches 2         # whether it runs at all, on a CPU as well
    python bench/generate_gpu.py 124M --anatomy           # what a call is made of

A prompt of 128 tokens and 256 new ones; tokens a second are of whole calls, the prompt included: ours the median of
several, `transformers` one call after a short one, the plain loop a quarter of one. Logits come first: how far the
recorded step and the plain one are each from fp32, over 16 steps, as a part of the largest logit. `first` is the time
of a model's first call over that of later ones, when its loops were compiled before; `prompt_ms` and `step_us` are what
a later call is made of. A prompt is recorded when its shape comes again, and so it is here from the third call on.
"""

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import keep, show

import regard
from regard import config as C
from regard.generation import cuda_graphs
from regard.generation.cuda_graphs import DecodeGraph
from regard.generation.session import inference_mode, prefill
from regard.hub import name_table

SIZES = {"124M": (768, 12, 12), "355M": (1024, 24, 16), "1.5B": (1600, 48, 25), "tiny": (64, 2, 4)}
# what GPT-2 with a static cache, compiled and in a CUDA graph, reached on such a machine when we began
AIMS = {("124M", 1): 2333, ("124M", 64): 95228, ("355M", 1): 1139, ("355M", 64): 44258, ("1.5B", 1): 461,
        ("1.5B", 64): 14857}  # fmt: skip
PROMPT, NEW, VOCAB = 128, 256, 50257
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(size: str):
    """transformers' GPT-2 and ours with the same random weights."""
    import transformers as hf

    torch.manual_seed(0)
    dim, depth, heads = SIZES[size]
    trunk = C.Trunk(
        dim=dim,
        depth=depth,
        mask="causal",
        position=C.LearnedPosition(length=1024),
        attention=C.Attention(heads=heads),
        mlp=C.MLP(activation="gelu_tanh"),
        dropout=C.NO_DROPOUT,
    )
    with torch.device(DEVICE):
        c = hf.GPT2Config(n_embd=dim, n_layer=depth, n_head=heads, eos_token_id=None, bos_token_id=None)
        theirs = hf.GPT2LMHeadModel(c)
        ours = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk))
    name_table.load_tensors(ours, theirs.state_dict(), "gpt2")
    return theirs.to(torch.bfloat16).eval(), ours.to(torch.bfloat16).eval()


def far(model: regard.Model, ids: torch.Tensor) -> tuple[float, float]:
    """The largest difference from fp32 logits over the largest of them: of the plain step, and of the recorded one."""
    rows, worst = len(ids), [0.0, 0.0]
    with torch.inference_mode():
        exact = copy.deepcopy(model).float()
        caches = [one.cache(rows, 1024) for one in (exact, model, model)]
        for one, cache in zip((exact, model, model), caches, strict=True):
            one(ids[:, :PROMPT], cache=cache)
        step = DecodeGraph(model, caches[2])
        for place in range(PROMPT, PROMPT + 16):
            new = ids[:, place : place + 1]
            truth = exact(new, cache=caches[0])[:, -1]
            for which, said in enumerate((model(new, cache=caches[1])[:, -1], step.replay(new))):
                worst[which] = max(worst[which], ((said.float() - truth).abs().max() / truth.abs().max()).item())
    return worst[0], worst[1]


def timed(work: Callable[[], object]) -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def parts(model: regard.Model, texts: list[list[int]]) -> tuple[float, float]:
    """Milliseconds to the first tokens, and microseconds of each step after them: medians of three calls."""
    firsts, rests = [], []
    for _ in range(3):
        began = time.perf_counter()
        steps = iter(model.session(texts, temperature=0, max_new_tokens=NEW))
        next(steps)
        first = time.perf_counter()
        count = sum(1 for _ in steps)
        firsts.append((first - began) * 1e3)
        rests.append((time.perf_counter() - first) / count * 1e6)
    return statistics.median(firsts), statistics.median(rests)


def anatomy(model: regard.Model, prompt: torch.Tensor) -> None:
    """Milliseconds of the parts of a call up to its first token, until Python is through and until all is done; the
    prompt as written and as recorded. Then what the GPU did."""
    texts = prompt.tolist()
    for _ in range(4):
        list(model.session(texts, temperature=0, max_new_tokens=32))

    def parted(able: bool) -> dict[str, float]:
        marks = {"begin": time.perf_counter()}
        one = model.session(texts, temperature=0, max_new_tokens=32)
        marks["session"] = time.perf_counter()
        with inference_mode(one.modules):
            cache = one.new_cache(len(texts[0]))
            marks["room"] = time.perf_counter()
            one.decode_graph.readings.able = able
            logits = prefill(model, texts, cache, {}, one.decode_graph)
            marks["read"] = time.perf_counter()
            torch.cuda.synchronize()
            marks["done"] = time.perf_counter()
            one.sampler.choose(logits).tolist()
            marks["chosen"] = time.perf_counter()
        times = list(marks.values())
        return {name: (b - a) * 1e3 for name, a, b in zip(list(marks)[1:], times, times[1:], strict=False)}

    for able in (False, True):
        rows = [parted(able) for _ in range(7)]
        told = {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}
        print("recorded" if able else "as written", told)
        with torch.profiler.profile() as seen:
            parted(able)
        for by in ("self_cuda_time_total", "self_cpu_time_total"):
            print(seen.key_averages().table(sort_by=by, row_limit=14, max_name_column_width=60))
    with torch.profiler.profile() as seen:
        list(model.session(texts, temperature=0, max_new_tokens=16))
    print(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=20, max_name_column_width=60))


def measure(size: str, batch: int, hf, model: regard.Model, rounds: int, peers: bool) -> dict:
    torch.manual_seed(1)
    ids = torch.randint(VOCAB, (batch, PROMPT + 16), device=DEVICE)
    plain_gap, gap = far(model, ids)
    assert gap < 2 * plain_gap + 1e-3, f"the recorded step is {gap:.1e} from fp32, and the plain one {plain_gap:.1e}"
    prompt = ids[:, :PROMPT]

    def writing(new: int = NEW) -> None:
        assert model.generate(prompt, temperature=0, max_new_tokens=new).shape == (batch, new)

    def looping(new: int = NEW) -> None:
        kinds, cuda_graphs.GRAPH_DEVICES[:] = list(cuda_graphs.GRAPH_DEVICES), []
        try:
            writing(new)
        finally:
            cuda_graphs.GRAPH_DEVICES[:] = kinds

    def generating(new: int = NEW) -> None:
        hf.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

    cuda_graphs.IDLE_GRAPHS.clear()
    gc.collect()
    first, times = timed(writing), {"regard": statistics.median(timed(writing) for _ in range(rounds))}
    prompt_ms, step_us = parts(model, prompt.tolist())
    for name, work in {"loop": looping, "transformers": generating}.items():
        if name == "loop" or peers:
            work(new=4)
            new = NEW if name == "transformers" else NEW // 4  # the plain loop is no rival, and slow
            times[name] = timed(lambda work=work, new=new: work(new)) * NEW / new
    speed = {name: batch * NEW / seconds for name, seconds in times.items()}
    aim = AIMS.get((size, batch), 0)
    row = {"size": size, "batch": batch, **{name: round(value) for name, value in speed.items()}, "aim": aim}
    row |= {"x_aim": round(speed["regard"] / max(1, aim), 2), "first": round(first / times["regard"], 2)}
    row |= {"prompt_ms": round(prompt_ms, 2), "step_us": round(step_us, 1)}
    return row | {"gap_plain": f"{plain_gap:.1e}", "gap": f"{gap:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["124M", "355M", "1.5B"])
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--anatomy", action="store_true", help="what a call is made of, on a GPU, and nothing else")
    parser.add_argument("--out", type=Path, help="a file for the rows, instead of the kept table")
    asked = parser.parse_args()
    rows = []
    for size in asked.sizes:
        hf, model = made(size)
        for batch in map(int, asked.batches.split(",")):
            if asked.anatomy:
                anatomy(model, torch.randint(VOCAB, (batch, PROMPT), device=DEVICE))
                continue
            rows.append(measure(size, batch, hf, model, asked.rounds, not asked.alone))
            show(rows[-1:])
            if asked.out is None:
                keep("generate-gpu", rows)  # row by row: a machine may be gone before the last
            else:
                asked.out.write_text("\n".join(map(repr, rows)))
        cuda_graphs.IDLE_GRAPHS.clear()
        del hf, model
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    if rows:
        show(rows)


if __name__ == "__main__":
    main()
