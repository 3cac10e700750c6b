"""README.md of a folder: what the model is, in words, and how to open it."""

from regard import config
from regard.hub.families import Family, reasons


def card(c: config.Transformer, family: Family | None, parameters: int, context: int | None, speaks: bool) -> str:
    """The model card; `speaks` says whether a tokenizer lies beside it."""
    library = "transformers" if family else "regard"
    task = "pipeline_tag: text-generation\n" if speaks and c.encoder is None else ""
    length = f" It was trained on texts of {context:,} tokens." if context else ""
    return f"""---
library_name: {library}
{task}tags:
- regard
---
# {title(c, family)}

{sentence(c)} It has {parameters:,} parameters.{length}

## Open it

{opening(speaks)}
{theirs(c, family, speaks)}
## All of its settings

```toml
{config.text(c).strip()}
```
"""


def title(c: config.Transformer, family: Family | None) -> str:
    shape = "encoder-decoder" if c.encoder else "decoder" if "causal" in c.trunk.masks[0] else "encoder"
    return f"{'An' if shape[0] == 'e' else 'A'} {shape}" + (f" of the {family.title} family" if family else "")


def sentence(c: config.Transformer) -> str:
    trunk, heads = c.trunk, "/".join(str(count) for count in dict.fromkeys(c.trunk.heads))
    shared = f" sharing {trunk.attention.groups} keys and values" if trunk.attention.groups else ""
    gated = "gated " if trunk.mlp.gated else ""
    return (
        f"{trunk.depth} layers, {trunk.dim} wide, {heads} heads{shared}; mask {' / '.join(trunk.masks)}, "
        f"positions {trunk.position.kind}, {trunk.norm.kind} norm ({trunk.place}), "
        f"{gated}{trunk.mlp.activation} feed-forward of {trunk.mlp.hidden or 4 * trunk.dim}; "
        f"vocabulary of {c.embed.vocab:,}."
    )


def opening(speaks: bool) -> str:
    use = 'print(model.generate("Once", new=100))' if speaks else "logits = model(ids)"
    return f"""```python
import regard

model = regard.load(".")  # the path of this folder
{use}
```
"""


def theirs(c: config.Transformer, family: Family | None, speaks: bool) -> str:
    if family is None:
        why = "".join(f"- {reason}\n" for reason in reasons(c).values())
        return f"`transformers` has no class for this model:\n\n{why}"
    words = ("AutoModelForCausalLM, AutoTokenizer", '\ntokenizer = AutoTokenizer.from_pretrained(".")')
    imports, tokenizer = words if speaks else ("AutoModelForCausalLM", "")
    return f"""or with `transformers`, with equal logits:

```python
from transformers import {imports}

model = AutoModelForCausalLM.from_pretrained("."){tokenizer}
```
"""
