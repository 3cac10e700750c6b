"""Model card: README.md of a folder, with a description, usage, and the metadata of the model's origin."""

import re

from regard import config
from regard.hub.families.registry import FamilyClass, nearest_families
from regard.hub.provenance import INHERITED, ModelCard, ParentModel, format_card
from regard.zoo.describe import describe_model, model_shape

BEGIN, END = "<!-- written by regard, again at every save -->", "<!-- end of what regard wrote -->"
OURS = re.compile(rf"\s*{BEGIN}.*?{END}\s*", re.DOTALL)
TASKS = {
    "ForCausalLM": "text-generation", "LMHeadModel": "text-generation", "MTModel": "translation",
    "ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification", "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification", "CLIPModel": "zero-shot-image-classification",
    "WhisperForConditionalGeneration": "automatic-speech-recognition",
}  # fmt: skip


def render_card(
    c: config.Model, known: FamilyClass | None, parameters: int, context: int | None, speaks: bool,
    parent: ParentModel | None = None, same: bool = False,
) -> str:  # fmt: skip
    """The model card; `speaks` is True if the folder has a tokenizer.

    It keeps licence, languages and data from the card of its `parent`; the whole card if the model is still the same.
    """
    parent = parent or ParentModel()
    length = f" It was trained on texts of {context:,} tokens." if context else ""
    facts = f"{describe_model(c)} It has {parameters:,} parameters.{length}{parent_sentence(parent)}"
    kept = foreign_card_text(parent.card.text) if same else ""
    heading = f"{kept}\n\n{BEGIN}\n## With regard" if kept else f"{BEGIN}\n# {card_title(c, known)}"
    text = f"""{heading}

{facts}

{"#" if kept else ""}## Open it

{usage_section(c, speaks)}
{transformers_section(c, known, speaks)}
{"#" if kept else ""}## All of its settings

```toml
{config.to_toml(c).strip()}
```
{END}
"""
    return format_card(ModelCard(card_metadata(known, parent, same, card_verb(c, speaks)), text))


def card_metadata(known: FamilyClass | None, parent: ParentModel, same: bool, verb: str) -> dict[str, str]:
    """The metadata in the hub's keys: those of the parent's card, and ours where it has none."""
    said = {key: lines for key, lines in parent.card.metadata.items() if same or key in INHERITED}
    usual = "text-generation" if verb.startswith("generate") else ""
    task = next((task for name, task in TASKS.items() if known and name in known.architecture), usual)
    fresh = {"library_name": f"library_name: {'transformers' if known else 'regard'}\n",
             "pipeline_tag": f"pipeline_tag: {task}\n" if task else "", "tags": "tags:\n- regard\n"}  # fmt: skip
    said |= {key: lines for key, lines in fresh.items() if key not in said}
    if known is None:
        said["library_name"] = fresh["library_name"]  # no other library loads it
    if parent.name and parent.is_hub_id:
        said["base_model"] = f"base_model: {parent.name}\n"
    elif "base_model" in parent.card.metadata and not parent.is_hub_id:
        said["base_model"] = parent.card.metadata["base_model"]  # a local folder in between has no meaning elsewhere
    elif parent.name:
        said["base_model"] = f"base_model: {parent.name}\n"
    return said


def parent_sentence(parent: ParentModel) -> str:
    return f" It was made from `{parent.name}`." if parent.name else ""


def foreign_card_text(text: str) -> str:
    """The text of a card without the part that we write."""
    left = OURS.sub("\n\n", text).strip()
    ours = 'regard.load(".")' in left and "## All of its settings" in left  # an old format without an end mark
    return "" if ours else left


def card_title(c: config.Model, known: FamilyClass | None) -> str:
    if (kind := model_shape(c)) == "towers":
        return "Towers side by side"
    return f"{'An' if kind[0] == 'e' else 'A'} {kind}" + (f" of the {known.family.title} family" if known else "")


def card_verb(c: config.Model, speaks: bool) -> str:
    """An example call of the model; empty where it has no text output."""
    if not speaks or (c.encoder is None and not isinstance(c, config.DualEncoder) and c.head.kind != "lm"):
        return ""
    if isinstance(c, config.DualEncoder):
        return 'match(["cat.png"], ["a cat", "a dog"])'
    if isinstance(c.embed, config.MultimodalEmbedding) or not isinstance(
        c.encoder and c.encoder.embed, config.TextEmbedding | None
    ):
        return 'caption(["cat.png"])'
    return 'generate("Once", max_new_tokens=100)' if c.encoder is None else 'translate("The cat sat on the mat.")'


def usage_section(c: config.Model, speaks: bool) -> str:
    reads, ask = "ids" if isinstance(c.embed, config.TextEmbedding) else "images", card_verb(c, speaks)
    use = f"print(model.{ask})" if ask else f"answer = model({reads})"
    return f"""```python
import regard

model = regard.load(".")  # the path of this folder
{use}
```
"""


def transformers_section(c: config.Model, known: FamilyClass | None, speaks: bool) -> str:
    if known is None:
        why = "".join(f"- {reason}\n" for reason in nearest_families(c).values())
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
