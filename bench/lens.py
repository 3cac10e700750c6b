"""The lens beside TransformerLens and captum, on the shape of GPT-2 with weights that are drawn, 64 tokens, one thread.

    .venv/peers/bin/python bench/lens.py           `make peers` makes that environment

Both read one folder that transformers writes, and their answers are compared before anything is timed. TransformerLens
is version 4, its bridge in compatibility mode. Patches are counted one by one: TransformerLens runs each alone, so a
few of them say what one costs; all patches of three layers are made here, since it is batches that make them fast.
Memory is the peak of a process of its own above the loaded model. Kept in bench/results/lens-cpu.csv.
"""

import ctypes
import gc
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pandas
import torch
import transformers as hf
from captum.attr import InputXGradient, IntegratedGradients
from common import keep, show, take_turns
from tokenizers import Tokenizer, models
from torch import Tensor
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis import logit_lens as their_logit_lens

import regard
from regard import lens
from regard.lens.patching.activation_patching import patch_places, read_pair
from regard.lens.patching.logit_metrics import bind_metric
from regard.lens.patching.patch_targets import patch_targets
from regard.lens.patching.patched_runs import PatchedRuns, record_activations

N, DEPTH, HEADS, VOCAB = 64, 12, 12, 50257
TOKEN, AGAINST = 11, 5
LAYERS, SOME_HEADS, SOME_POSITIONS = (0, 6, 11), (0, 4, 8), (0, 21, 42, 63)
STEPS = 28  # gradients of integrated gradients: four pieces of seven points


def write_folder(folder: str) -> None:
    """GPT-2 of 124 million weights, and a tokenizer, which the other library does not load a model without."""
    hf.GPT2LMHeadModel(hf.GPT2Config(bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    tokens = Tokenizer(models.BPE({"<|endoftext|>": 0}, []))
    hf.PreTrainedTokenizerFast(tokenizer_object=tokens, **ends).save_pretrained(folder)


def prompts() -> tuple[Tensor, Tensor]:
    clean = torch.randint(VOCAB, (1, N), generator=torch.Generator().manual_seed(1))
    corrupted = clean.clone()
    corrupted[0, 5] += 1
    return clean, corrupted


class Ours:
    """Each task as `regard.lens` does it."""

    def __init__(self, folder: str) -> None:
        self.model = regard.load(folder)
        self.ids, self.corrupted = prompts()
        # head_out, what each head adds, is made by none of the others unless it is asked for
        self.addresses = [each for each in self.model.addresses() if not each.endswith(".head_out")]

    @torch.no_grad()
    def activations(self):
        with regard.looking(self.model, *self.addresses) as seen:
            self.model(self.ids)
        return torch.stack([seen[f"trunk.{i}.residual"] for i in range(DEPTH)])

    def logit_lens(self):
        found = lens.logit_lens(self.model, self.ids, top_k=5)
        return found.top_probs[:-1, 0]

    def attribution(self):
        return lens.attribute_logit(self.model, self.ids, TOKEN, against=AGAINST).heads().flatten()

    def patch(self, part: str, layers: tuple[int, ...]) -> list[Tensor]:
        """What patch_activations does, for some of the addresses."""
        model, given, base = read_pair(self.model, self.ids, self.corrupted, "denoise")
        targets = patch_targets(model, base, (part,))[part]
        targets = [targets[2 * i if part == "residual" else i] for i in layers]
        runs = PatchedRuns(model, base, bind_metric(model, base, lens.logit_difference(TOKEN, AGAINST)))
        values = record_activations(model, given, *(target.address for target in targets))
        return [patch_places(runs, target, values) for target in targets]

    def head_patches(self, layers=LAYERS):
        found = torch.stack(self.patch("head_positions", layers)).view(len(layers), HEADS, N)
        return found[:, SOME_HEADS][..., SOME_POSITIONS].transpose(1, 2).flatten()

    def residual_patches(self, layers=LAYERS):
        return torch.stack(self.patch("residual", layers))[:, SOME_POSITIONS].flatten()

    def gradient_x_input(self):
        return lens.attribute_inputs(self.model, self.ids, method="gradient_x_input", target=TOKEN).values

    def integrated_gradients(self):
        settings = dict(baseline="mean", target=TOKEN, max_steps=STEPS)
        return lens.attribute_inputs(self.model, self.ids, method="integrated_gradients", **settings).values

    def patterns(self):
        return torch.stack(lens.attention_patterns(self.model, self.ids))


class Theirs:
    """The same by TransformerLens, and by captum on transformers' own model."""

    def __init__(self, folder: str) -> None:
        self.plain = hf.GPT2LMHeadModel.from_pretrained(folder).eval()
        self.ids, self.corrupted = prompts()
        self.model = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32)
        self.model.enable_compatibility_mode(no_processing=True)
        self.model.eval()
        self.clean = None

    @torch.no_grad()
    def activations(self):
        _, cache = self.model.run_with_cache(self.ids)
        return torch.stack([cache["resid_post", i] for i in range(DEPTH)])

    @torch.no_grad()
    def logit_lens(self):
        asked = dict(positions=None, incl_mid=True, return_type="probs", top_k=5)
        return their_logit_lens(self.model, self.ids, **asked).values[:, 0]

    @torch.no_grad()
    def attribution(self):
        _, cache = self.model.run_with_cache(self.ids)
        parts = cache.get_full_resid_decomposition(expand_neurons=False, pos_slice=-1)
        return cache.logit_attrs(parts, TOKEN, AGAINST, pos_slice=-1)[: DEPTH * HEADS, 0]

    @torch.no_grad()
    def patch(self, name: str, setter, rows: pandas.DataFrame) -> Tensor:
        if self.clean is None:
            _, self.clean = self.model.run_with_cache(self.ids)
        return patching.generic_activation_patch(
            self.model, self.corrupted, self.clean, lambda x: x[0, -1, TOKEN] - x[0, -1, AGAINST], setter, name,
            index_df=rows,
        )  # fmt: skip

    def head_patches(self, layers=LAYERS):
        rows = [(i, n, h) for i in layers for n in SOME_POSITIONS for h in SOME_HEADS]
        table = pandas.DataFrame(rows, columns=["layer", "pos", "head"])
        return self.patch("z", patching.layer_pos_head_vector_patch_setter, table)

    def residual_patches(self, layers=LAYERS):
        table = pandas.DataFrame([(i, n) for i in layers for n in SOME_POSITIONS], columns=["layer", "pos"])
        return self.patch("resid_pre", patching.layer_pos_patch_setter, table)

    def score(self, x: Tensor) -> Tensor:  # the logits of one token alone, as ours are
        return self.plain(inputs_embeds=x, logits_to_keep=1).logits[:, -1, TOKEN]

    def gradient_x_input(self):
        x = self.plain.transformer.wte(self.ids).detach().requires_grad_()
        return InputXGradient(self.score).attribute(x)[0].sum(-1)

    def integrated_gradients(self):
        table = self.plain.transformer.wte
        x, base = table(self.ids).detach(), table.weight.detach().mean(0).expand(1, N, -1)
        settings = dict(n_steps=STEPS, internal_batch_size=16)
        return IntegratedGradients(self.score).attribute(x, base, **settings)[0].sum(-1)

    @torch.no_grad()
    def patterns(self):
        _, cache = self.model.run_with_cache(self.ids, names_filter=lambda name: name.endswith("hook_pattern"))
        return torch.stack([cache["pattern", i] for i in range(DEPTH)])


# What each is called, how many rounds, how many patches ours and theirs make, and how near the answers are.
TASKS = {
    "activations": ("all activations and logits", 7, 1, 1, 1e-4),
    "logit_lens": ("logit lens, 25 places, 64 positions, top 5", 3, 1, 1, 1e-4),
    "attribution": ("direct logit attribution, heads and MLPs", 7, 1, 1, 1e-4),
    "head_patches": ("a patch of a head at a position", 1, 3 * HEADS * N, 36, 1e-4),
    "residual_patches": ("a patch of the stream at a position", 1, 3 * N, 12, 1e-4),
    "patterns": ("attention patterns of all layers", 7, 1, 1, 1e-4),
    "gradient_x_input": ("gradient x input (captum)", 7, 1, 1, 1e-4),
    "integrated_gradients": (f"integrated gradients, {STEPS} gradients (captum)", 1, 1, 1, 0.02),
}
SIDES = {"ours": Ours, "theirs": Theirs}


def peak_memory(side: str, task: str, folder: str) -> int:
    """MiB above the loaded model, in a process of its own."""
    command = [sys.executable, __file__, side, task, folder]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_memory(side: str, task: str, folder: str) -> None:
    """Print the peak of the second time: the first one makes what stays."""
    who = SIDES[side](folder)
    call = getattr(who, task)
    if task.endswith("patches"):
        call = partial(call, layers=(6,))
        if side == "ours":
            call = partial(who.patch, "residual" if task == "residual_patches" else "head_positions", (6,))
    else:
        call()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    call()
    print(max(0, memory("VmHWM") - before) // 1024)


def memory(name: str) -> int:  # KiB
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        write_folder(folder)
        memories = {task: [peak_memory(side, task, folder) for side in SIDES] for task in TASKS}
        ours, theirs = (side(folder) for side in SIDES.values())
        rows = []
        for task, (name, rounds, mine, other, near) in TASKS.items():
            found, want = (getattr(side, task)().detach().double().flatten() for side in (ours, theirs))
            off = float((found - want).abs().max() / want.abs().max())
            assert found.shape == want.shape and off < near, f"{task}: the two differ by {off:.2g} of the largest"
            seconds = take_turns({"ours": getattr(ours, task), "theirs": getattr(theirs, task)}, rounds, warm=0)
            mine, other = 1000 * seconds["ours"] / mine, 1000 * seconds["theirs"] / other
            rows.append({
                "task": name, "ours_ms": round(mine, 2), "theirs_ms": round(other, 2), "ratio": round(other / mine, 2),
                "ours_mib": memories[task][0], "theirs_mib": memories[task][1], "differ": f"{off:.1e}",
            })  # fmt: skip
            show(rows[-1:])
    both = f"TransformerLens bridge {version('transformer_lens')}, captum {version('captum')}"
    show(rows)
    keep("lens-cpu", [{**row, "peers": f"{both}, transformers {hf.__version__}"} for row in rows])


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        measure_memory(*sys.argv[1:])
    else:
        main()
