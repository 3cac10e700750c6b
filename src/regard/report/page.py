"""The page itself: numbers gathered, template filled, style and scripts laid in; one file that needs no other.

What a user wrote (text, prompts, settings, names) enters the page in two ways only: escaped into the template, or as
JSON that the scripts show as text. The page carries a policy that lets no other script run and nothing be fetched.
"""

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import unwritable
from regard.data import store
from regard.report.cost import brief, cost
from regard.report.curves import curves, typical
from regard.report.inside import inside
from regard.report.run import Run, read_run
from regard.report.words import words

SURROUNDINGS = ("regard", "torch", "python", "platform", "processor", "device", "threads", "precision", "compiled",
                "started")  # fmt: skip
SCRIPTS = ("tools", "curves", "samples", "maps", "roles", "likeness", "words", "cost", "page")


def write(run: str | Path, model: Any, tokenizer: Any) -> Path:
    """Make report.html in a run's folder, from what the run wrote and what can be seen in its model."""
    found = read_run(Path(run))
    if len(tokenizer) > model.c.embed.vocab:
        sizes = f"{len(tokenizer):,} tokens, and the model knows {model.c.embed.vocab:,}"
        raise config.DataError(f"{run}: the tokenizer has {sizes}; use the tokenizer that the model was trained with")
    made = page(found, gathered(found, model, tokenizer))
    path = found.path / "report.html"
    try:
        store.put(path, [made.encode()])  # who looks at the page meanwhile sees the old one, whole
    except OSError as problem:
        raise unwritable(path, problem) from None
    return path


def gathered(run: Run, model: Any, tokenizer: Any) -> dict[str, Any]:
    """All numbers and texts that the page shows."""
    drawn = curves(run)
    return {
        "headline": headline(run, model, typical(drawn["speed"])),
        "curves": drawn,
        "samples": [{name: sample.get(name, "") for name in ("step", "temperature", "prompt", "text")}
                    for sample in run.samples],
        **inside(run, model, tokenizer),
        "words": words(run, model, tokenizer),
        "cost": cost(run, model),
    }  # fmt: skip


def headline(run: Run, model: Any, speed: float | None) -> list[dict[str, str]]:
    """The few numbers that everybody asks for first."""
    final, last = run.final, run.steps[-1] if run.steps else None
    loss = final["eval_loss"] if final else last["loss"] if last else None
    whose = "validation" if final else "training"
    rows = []
    if loss is not None and math.isfinite(loss):
        perplexity = f"{math.exp(loss):,.2f}" if loss < 20 else "over 10⁸"
        rows += [(f"{whose} loss", f"{loss:.4f}", "nats a token"), ("perplexity", perplexity, "equally likely choices"),
                 ("bits a token", f"{loss / math.log(2):.3f}", "to write the text down")]  # fmt: skip
    elif loss is not None:
        rows += [(f"{whose} loss", str(loss), "the run diverged")]
    rows += [("parameters", f"{sum(weight.numel() for weight in model.parameters()):,}", shape(model))]
    if speed:
        rows += [("tokens a second", f"{speed:,.0f}", str(run.facts.get("device", "")))]
    seconds = run.facts.get("seconds") or (last or {}).get("seconds")
    if isinstance(seconds, int | float):
        rows += [("time", brief(seconds), f"{len(run.steps):,} steps")]
    return [dict(zip(("name", "value", "note"), row, strict=True)) for row in rows]


def shape(model: Any) -> str:
    trunk = model.c.trunk
    heads = sorted(set(trunk.heads))
    return f"{trunk.depth} layers, {'-'.join(map(str, heads[:: len(heads) - 1 or 1]))} heads, {trunk.dim} wide"


def page(run: Run, data: dict[str, Any]) -> str:
    style, script = part("page.css"), "\n".join(part(f"{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    filled = {
        "title": html.escape(run.name),
        "policy": f"default-src 'none'; img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'",
        "style": style,
        "script": script,
        "data": embedded(data),
        "summary": html.escape(summary(run)),
        "notes": "".join(f"<p class='note'>{html.escape(line)}.</p>" for line in run.missing),
        "config": html.escape(run.settings or "config.toml is not there."),
        "facts": facts(run),
        "command": html.escape(str(run.facts.get("command") or f"regard train {run.path / 'config.toml'}")),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], part("template.html"))


def part(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf8")


def digest(source: str) -> str:
    """How a page's policy names the one script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def embedded(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: without a < no text can close it."""
    return json.dumps(finite(data), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def finite(value: Any) -> Any:
    """JSON knows no infinity: what is not a number is nothing."""
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary(run: Run) -> str:
    """What was trained on what, in a sentence."""
    if run.recipe is None:
        return "A run whose recipe could not be read."
    source, text, train = run.recipe.data.source, run.recipe.text.kind, run.recipe.train
    named = source if isinstance(source, str) else ", ".join(source[:3]) + (" and more" if len(source) > 3 else "")
    kinds = {"char": "character by character", "byte": "byte by byte", "word": "word by word", "file": "token by token"}
    return f"Trained on {named}, {kinds.get(text, 'piece by piece')}, {train.context} tokens at a time."


def facts(run: Run) -> str:
    """The circumstances of the run as rows of a table."""
    known = {name: run.facts.get(name) for name in SURROUNDINGS}
    known["seed"] = None if run.recipe is None else run.recipe.train.seed
    rows = []
    for name, value in known.items():
        if value is not None:
            spelt = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            rows.append(f"<tr><th scope='row'>{name}</th><td>{html.escape(spelt)}</td></tr>")
    return "".join(rows)
