"""Small models of the older kinds: a name for each, and the config that it means."""

from parity.tolerance import randomise

import regard
from regard import config as C

B, N, S, D, V = 3, 11, 7, 12, 19  # S: tokens of a source
ROOM = 16  # slots of a cache
STACKS = {
    "rnn": {"cell": "rnn"}, "gru": {"cell": "gru"}, "lstm": {"cell": "lstm"}, "cnn": {"cell": "cnn"},
    "cnn dilated": {"cell": "cnn", "kernel_size": 2, "dilation": 3}, "narrow lstm": {"cell": "lstm", "embed_dim": 5},
}  # fmt: skip
MIXERS = {
    "dense": C.DenseMixer(max_length=ROOM),
    "conv": C.ConvMixer(kernel_size=3),
    "dilated": C.ConvMixer(kernel_size=2, dilation=3),
    "1x1": C.ConvMixer(kernel_size=1),
    "rnn": C.RecurrentMixer(cell="rnn"),
    "gru": C.RecurrentMixer(cell="gru"),
    "lstm": C.RecurrentMixer(cell="lstm"),
    "ssm": C.StateSpaceMixer(state_dim=6),
    "none": C.NoMixer(),
}

RECIPE = """
[data]
source = "text.txt"
[tokenizer]
byte_fallback = false
[model]
embed = {scale = 4.0}
trunk = {kind = "recurrent", cell = "lstm", dim = 12, depth = 2, dropout = 0.1}
[train]
steps = 9
batch_size = 5
context = 7
compile = false
device = "cpu"
eval_every = "none"
save_every = "none"
[train.optimizer]
lr = 1e-2
[train.schedule]
kind = "constant"
warmup = 2
[report]
prompt = "a "
temperatures = [0.8]
max_new_tokens = 5
"""


def whole(trunk, **changes):
    """A model in eval mode, its biases and gains moved from where they begin."""
    head = C.LMHead(tied=False)
    made = regard.build(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk, head=head, **changes)).eval()
    randomise(made)
    return made


def stack(name, mask="causal", **changes):
    return C.RecurrentStack(**{"dim": D, "depth": 2, "dropout": 0.0, "mask": mask, **STACKS[name], **changes})


def blocks(name, mask="causal", **changes):
    attention, mlp = C.Attention(heads=3), C.MLP(hidden=17)
    settings = {"dim": D, "depth": 2, "mask": mask, "attention": attention, "mlp": mlp, "dropout": C.NO_DROPOUT}
    return C.Trunk(mixer=MIXERS[name], position=C.NoPosition(), **{**settings, **changes})


def every(mask="causal"):
    """All of them by name; even windows have no middle to look both ways from."""
    found = {f"stack {name}": (stack, name) for name in STACKS} | {f"mixer {name}": (blocks, name) for name in MIXERS}
    return {name: made for name, made in found.items() if mask == "causal" or "dilated" not in name}


def model(name, mask="causal", **changes):
    make, kind = every(mask)[name]
    return whole(make(kind, mask, **changes))


def pair(cell="gru", cross="additive", depth=2, **changes):
    """An encoder-decoder; one that is told a fixed vector reads its source from left to right."""
    reads = "causal" if cross == "fixed" else "full"
    encoder = C.Encoder(trunk=C.RecurrentStack(cell=cell, dim=D, depth=1, mask=reads, dropout=0.0))
    trunk = C.RecurrentStack(cell=cell, dim=D, depth=depth, cross=cross, dropout=0.0)
    return whole(trunk, encoder=encoder, **changes)
