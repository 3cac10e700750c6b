"""README.md of a folder: what the model is, in words, and how to open it."""

from regard import config
from regard.hub.families import Kin
from regard.hub.families.near import nearest
from regard.zoo.sentence import sentence, shape


def card(c: config.Model, known: Kin | None, parameters: int, context: int | None, speaks: bool) -> str:
    """The model card; `speaks` says whether a tokenizer lies beside it."""
    library = "transformers" if known else "regard"
    task = "pipeline_tag: text-generation\n" if verb(c, speaks).startswith("generate") else ""
    length = f" It was trained on texts of {context:,} tokens." if context else ""
    return f"""---
library_name: {library}
{task}tags:
- regard
---
# {title(c, known)}

{sentence(c)} It has {parameters:,} parameters.{length}

## Open it

{opening(c, speaks)}
{theirs(c, known, speaks)}
## All of its settings

```toml
{config.text(c).strip()}
```
"""


def title(c: config.Model, known: Kin | None) -> str:
    if (kind := shape(c)) == "towers":
        return "Towers side by side"
    return f"{'An' if kind[0] == 'e' else 'A'} {kind}" + (f" of the {known.family.title} family" if known else "")


def verb(c: config.Model, speaks: bool) -> str:
    """What a model can be asked in words; nothing where it cannot."""
    if not speaks or (c.encoder is None and not isinstance(c, config.Towers) and c.head.kind != "vocabulary"):
        return ""
    if isinstance(c, config.Towers):
        return 'match(["cat.png"], ["a cat", "a dog"])'
    if isinstance(c.embed, config.Mixed) or not isinstance(c.encoder and c.encoder.embed, config.Embed | None):
        return 'caption(["cat.png"])'
    return 'generate("Once", new=100)' if c.encoder is None else 'translate("The cat sat on the mat.")'


def opening(c: config.Model, speaks: bool) -> str:
    reads, ask = "ids" if isinstance(c.embed, config.Embed) else "images", verb(c, speaks)
    use = f"print(model.{ask})" if ask else f"answer = model({reads})"
    return f"""```python
import regard

model = regard.load(".")  # the path of this folder
{use}
```
"""


def theirs(c: config.Model, known: Kin | None, speaks: bool) -> str:
    if known is None:
        why = "".join(f"- {reason}\n" for reason in nearest(c).values())
        return f"`transformers` has no class for this model:\n\n{why}"
    name = known.architecture
    words = (f"AutoTokenizer, {name}", '\ntokenizer = AutoTokenizer.from_pretrained(".")')
    imports, tokenizer = words if speaks else (name, "")
    return f"""or with `transformers`, with equal logits:

```python
from transformers import {imports}

model = {name}.from_pretrained("."){tokenizer}
```
"""
