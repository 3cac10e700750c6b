"""A small text, a recipe for it, small models, and what it means that two runs are the same."""

import json
from itertools import islice

import torch

import regard
from regard.training.loop import train_steps

V, D, H, N = 23, 12, 3, 17
TEXT = (
    "".join(
        f"{who} {what} the {whom}, and {why}.\n"
        for who in ("a cat", "my dog", "the owl")
        for what in ("saw", "met", "fed")
        for whom in ("mouse", "king", "jug")
        for why in ("sat", "ran")
    )
    * 3
)
RECIPE = """
[data]
source = "text.txt"
[tokenizer]
byte_fallback = false
[model]
preset = "gpt2"
dim = 12
depth = 2
heads = 3
dropout = 0.1
[train]
steps = 6
batch_size = 5
context = 7
compile = false
device = "cpu"
eval_every = "none"
save_every = "none"
[train.schedule]
kind = "constant"
warmup = 2
[report]
prompt = "a "
temperatures = [0.8]
max_new_tokens = 5
"""
# Every way of training whose bits a checkpoint must keep.
KINDS = {
    "adamw": [],
    "muon": ["train.optimizer.kind=muon"],
    "mixed": ["train.precision=mixed"],
    "bf16": ["train.precision=bf16"],
    "muon in bf16": ["train.optimizer.kind=muon", "train.precision=bf16"],
    "accumulated": ["train.gradient_accumulation=2"],
    "adafactor": ["train.optimizer.kind=adafactor"],
    "averaged": ["train.ema_decay=0.9"],
    "frozen and recomputed": ['train.freeze=["embed"]', "train.activation_checkpointing=true"],
    "packed": ["train.pack=true"],
    "llama": ["model.preset=llama-7b", "model.hidden=20"],
}


def laid(tmp_path, monkeypatch, recipe=RECIPE):
    """A folder to work in, with a cache of its own; the machine's speed is known without half a second of measuring."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("regard.measure.calibration.matmul_speed", lambda *sizes: 1e9)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "recipe.toml").write_text(recipe)
    return tmp_path


def model(name="gpt2", **changes):
    """A small model without dropout, with every bias and gain moved from where it begins."""
    settings = {"dim": D, "depth": 2, "heads": H, "vocab": V, "dropout": 0.0, **changes}
    if name == "gpt2":
        settings["position"] = {"length": N}
    elif name == "llama-7b":
        settings["hidden"] = 20
    made = regard.build(regard.preset(name, **settings))
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def gradients(model, seed=0):
    """Random gradients, the same for models of the same shape."""
    chance = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=chance).to(weight.dtype)


def advanced(run, steps=None):
    """The losses of some steps, or of all that are left."""
    return [float(step.loss) for step in islice(train_steps(run), steps)]


def bits(run):
    """All that a run has learned: its weights, and what its optimizer remembers."""
    return {**copied(run.model.state_dict()), **copied(run.optimizer.state())}


def copied(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), f"{name} differs by {(ours[name] - tensor).abs().max()}"


def lines(path):
    """The lines of a log but for the times, which no seed repeats."""
    read = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read]
