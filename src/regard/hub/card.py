"""README.md of a folder: what the model is, in words, and how to open it."""

from regard import config
from regard.hub.families import Family, reasons
from regard.zoo.sentence import sentence, shape


def card(c: config.Model, family: Family | None, parameters: int, context: int | None, speaks: bool) -> str:
    """The model card; `speaks` says whether a tokenizer lies beside it."""
    library = "transformers" if family else "regard"
    task = "pipeline_tag: text-generation\n" if verb(c, speaks).startswith("generate") else ""
    length = f" It was trained on texts of {context:,} tokens." if context else ""
    return f"""---
library_name: {library}
{task}tags:
- regard
---
# {title(c, family)}

{sentence(c)} It has {parameters:,} parameters.{length}

## Open it

{opening(c, speaks)}
{theirs(c, family, speaks)}
## All of its settings

```toml
{config.text(c).strip()}
```
"""


def title(c: config.Model, family: Family | None) -> str:
    if (kind := shape(c)) == "towers":
        return "Towers side by side"
    return f"{'An' if kind[0] == 'e' else 'A'} {kind}" + (f" of the {family.title} family" if family else "")


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


def theirs(c: config.Model, family: Family | None, speaks: bool) -> str:
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
