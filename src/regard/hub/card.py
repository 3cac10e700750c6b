"""README.md of a folder: what the model is, in words, and how to open it."""

from regard import config
from regard.hub.families import Family, reasons
from regard.zoo.sentence import sentence, shape


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

{opening(c, speaks)}
{theirs(c, family, speaks)}
## All of its settings

```toml
{config.text(c).strip()}
```
"""


def title(c: config.Transformer, family: Family | None) -> str:
    kind = shape(c)
    return f"{'An' if kind[0] == 'e' else 'A'} {kind}" + (f" of the {family.title} family" if family else "")


def opening(c: config.Transformer, speaks: bool) -> str:
    reads = "ids" if isinstance(c.embed, config.Embed) else "images"
    ask = 'translate("The cat sat on the mat.")' if c.encoder is not None else 'generate("Once", new=100)'
    words = speaks and (c.encoder is not None or isinstance(c.head, config.Vocabulary))
    use = f"print(model.{ask})" if words else f"answer = model({reads})"
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
