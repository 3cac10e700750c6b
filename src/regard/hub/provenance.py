"""Provenance: which model another one was made from, and what its model card says.

A card is README.md: metadata between two lines of ---, then text. The metadata is YAML; it is split into its keys and
otherwise left as it was written, so that nothing is lost that is not understood here.

    ---                          license: apache-2.0       kept by every model that is made from it
    license: apache-2.0          datasets: [squad]
    datasets: [squad]            base_model: org/name      added
    ---
    # A model ...                                          kept while the model is the same
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from regard.config.errors import DataError
from regard.hub.locate import REPO_ID, STEP_PATTERN, find_folder, parse_repo_id
from regard.hub.validate import own_file

CARD, LARGEST = "README.md", 1 << 20  # bytes: a longer card is no card
KEY = re.compile(r"([A-Za-z_][\w-]*)\s*:")
INHERITED = ("license", "license_name", "license_link", "language", "datasets")  # true of what is made from it as well
SNAPSHOT = re.compile(r"models--([\w.-]+?)(?:--([\w.-]+))?")


@dataclass(frozen=True)
class ModelCard:
    """`metadata` has the lines of each key, the key's own included; `text` is what follows."""

    metadata: dict[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class ParentModel:
    """The model that another was made from: its name, whether it is an id of the hub, and its card and folder."""

    name: str | None = None
    is_hub_id: bool = False
    card: ModelCard = field(default_factory=ModelCard)
    folder: Path | None = None


def parse_card(text: str) -> ModelCard:
    """Split a card into the keys of its metadata, each with its lines, and the text."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    parts = re.match(r"\s*---[ \t]*\n(.*?\n|)---[ \t]*(?:\n|$)(.*)", text, re.DOTALL)
    if parts is None:
        return ModelCard(text=text)
    metadata, key = dict[str, str](), ""
    for line in parts[1].splitlines(keepends=True):
        if (begins := KEY.match(line)) is not None:
            key = begins[1]
            metadata[key] = ""  # of a key that is there twice the last counts
        metadata[key] = metadata.get(key, "") + line
    return ModelCard(metadata, parts[2])


def read_card(folder: Path) -> ModelCard:
    """The card in a folder; an empty one where there is none that can be read."""
    with suppress(DataError, OSError):
        return parse_card(own_file(folder, CARD, LARGEST).read_text(encoding="utf8", errors="replace"))
    return ModelCard()


def format_card(card: ModelCard) -> str:
    metadata = "".join(lines if lines.endswith("\n") else f"{lines}\n" for lines in card.metadata.values())
    return f"---\n{metadata}---\n{card.text}"


def find_parent(folder: Path) -> ParentModel:
    """The model in a folder, as the parent of what is made from it."""
    if not folder.is_dir():  # a GGUF file has no card beside it
        return ParentModel(printable_name(folder.stem))
    snapshot = SNAPSHOT.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    if snapshot is not None:
        owner, name = snapshot.groups()
        return ParentModel(f"{owner}/{name}" if name else owner, True, read_card(folder), folder)
    place = (
        folder.parent.parent if STEP_PATTERN.fullmatch(folder.name) and folder.parent.name == "checkpoints" else folder
    )
    return ParentModel(printable_name(place.resolve().name), False, read_card(folder), folder)


def parent_from_name(base: str) -> ParentModel:
    """The model that a setting names: a path, or an id of the hub, which is looked for in its cache and not fetched."""
    asked = parse_repo_id(base)
    if asked is None:
        try:
            return find_parent(find_folder(Path(base)))
        except (DataError, OSError):  # it was there when training began
            return ParentModel(printable_name(Path(base).name))
    from huggingface_hub import try_to_load_from_cache

    name, revision = asked
    kept = try_to_load_from_cache(name, "config.json", revision=revision)
    return find_parent(Path(kept).parent) if isinstance(kept, str) else ParentModel(name, True)


def printable_name(name: str) -> str | None:
    """A name that may stand in a card; of a folder called otherwise nothing is said."""
    return name if REPO_ID.fullmatch(name) else None
