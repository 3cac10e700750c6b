"""What models of `transformers` call their parts while they run, where their files keep the names of earlier ones.

    file      vit.encoder.layer.3.attention.attention.query
    running   vit.layers.3.attention.q_proj

Adapters are for what runs, and have its names.
"""

ATTENTION = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
AFTER = ((".attention.output.dense", ".attention.o_proj"), (".intermediate.dense", ".mlp.fc1"),
         (".output.dense", ".mlp.fc2"))  # fmt: skip
ONCE = (*((f".attention.attention.{old}", f".attention.{new}") for old, new in ATTENTION), *AFTER)
CELLS = (*((f".attention.self.{old}", f".attention.{new}") for old, new in ATTENTION), *AFTER)
# By family: pieces of a file's names, and those of the running model; the first that is there is replaced first.
INSIDE = {
    "vit": (("encoder.layer.", "layers."), *ONCE),
    "deit": (("encoder.layer.", "layers."), *ONCE),
    "swin": CELLS,
}


def running(name: str, family: str) -> str:
    """The name of a part while the model runs."""
    for old, new in INSIDE.get(family, ()):
        name = name.replace(old, new)
    return name


def filed(name: str, family: str) -> str:
    """The same in a file; what has a file's name already keeps it."""
    for old, new in INSIDE.get(family, ()):
        name = name.replace(new, old)
    return name
