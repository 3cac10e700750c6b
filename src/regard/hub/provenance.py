"""Provenance: the model that another one was made from, and its model card.

A card is README.md: metadata between two lines of ---, then text. The metadata is YAML; it is split by keys and
otherwise kept verbatim, so that unknown content is not lost.

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

CARD, LARGEST = "README.md", 1 << 20  # bytes: a larger file is ignored
KEY = re.compile(r"([A-Za-z_][\w-]*)\s*:")
INHERITED = ("license", "license_name", "license_link", "language", "datasets")  # keys that derived models inherit
SNAPSHOT = re.compile(r"models--([\w.-]+?)(?:--([\w.-]+))?")


@dataclass(frozen=True)
class ModelCard:
    """A model card: `metadata` has the lines of each key, the key's own included; `text` follows."""

    metadata: dict[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class ParentModel:
    """The parent of a derived model: its name, whether that is a hub id, its card and its folder."""

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
            metadata[key] = ""  # of a duplicate key the last one counts
        metadata[key] = metadata.get(key, "") + line
    return ModelCard(metadata, parts[2])


def read_card(folder: Path) -> ModelCard:
    """The card in a folder; an empty one if it is missing or unreadable."""
    with suppress(DataError, OSError):
        return parse_card(own_file(folder, CARD, LARGEST).read_text(encoding="utf8", errors="replace"))
    return ModelCard()


def format_card(card: ModelCard) -> str:
    metadata = "".join(lines if lines.endswith("\n") else f"{lines}\n" for lines in card.metadata.values())
    return f"---\n{metadata}---\n{card.text}"


def find_parent(folder: Path) -> ParentModel:
    """The model in a folder as a parent."""
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
    """The model that a setting names: a path, or a hub id, which is looked up in the cache and not downloaded."""
    asked = parse_repo_id(base)
    if asked is None:
        try:
            return find_parent(find_folder(Path(base)))
        except (DataError, OSError):  # it may have been deleted since training
            return ParentModel(printable_name(Path(base).name))
    from huggingface_hub import try_to_load_from_cache

    name, revision = asked
    kept = try_to_load_from_cache(name, "config.json", revision=revision)
    return find_parent(Path(kept).parent) if isinstance(kept, str) else ParentModel(name, True)


def printable_name(name: str) -> str | None:
    """A name that is valid in a card; None for any other."""
    return name if REPO_ID.fullmatch(name) else None
