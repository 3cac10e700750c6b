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
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard import config
from regard.config.errors import unwritable
from regard.data import store
from regard.report.alignment import alignment
from regard.report.answers import answers
from regard.report.asks import asks, lead, summary, task_of, things
from regard.report.cost import cost
from regard.report.curves import curves, typical
from regard.report.headline import headline, marks
from regard.report.health import health
from regard.report.inside import inside
from regard.report.run import Run, read_run
from regard.report.words import words

SURROUNDINGS = ("regard", "torch", "python", "platform", "processor", "device", "threads", "precision", "compiled",
                "started")  # fmt: skip
SCRIPTS = ("tools", "curves", "health", "samples", "translations", "answers", "maps", "roles", "likeness", "words",
           "cost", "page")  # fmt: skip


def write(run: str | Path, model: Any, tokenizer: Any) -> Path:
    """Make report.html in a run's folder, from what the run wrote and what can be seen in its model."""
    found = read_run(Path(run))
    for vocab, own in vocabularies(model, tokenizer) if tokenizer is not None else []:
        if len(own) > vocab:
            sizes = f"{len(own):,} tokens, and the model knows {vocab:,}"
            raise config.DataError(f"{run}: the tokenizer has {sizes}; use the tokenizer that the model was trained "
                                   "with")  # fmt: skip
    made = page(found, task_of(found, model), gathered(found, model, tokenizer))
    path = found.path / "report.html"
    try:
        store.put(path, [made.encode()])  # who looks at the page meanwhile sees the old one, whole
    except OSError as problem:
        raise unwritable(path, problem) from None
    return path


def vocabularies(model: Any, tokenizer: Any) -> list[tuple[int, Any]]:
    """The tables of tokens that a model has, each with the tokenizer that it is for."""
    reads = None if model.c.encoder is None else model.c.encoder.embed
    other = [(reads.vocab, tokenizer)] if isinstance(reads, config.Embed) else []
    return [(model.c.embed.vocab, speaks(model, tokenizer)), *other]


def speaks(model: Any, tokenizer: Any) -> Any:
    """The tokenizer of what the model says, which may be another than that of what it reads."""
    return getattr(model, "target_tokenizer", None) or tokenizer


def gathered(run: Run, model: Any, tokenizer: Any) -> dict[str, Any]:
    """All numbers and texts that the page shows."""
    drawn, task = curves(run), task_of(run, model)
    said = answers(run, model, tokenizer, task)
    return {
        "task": task.kind,
        "loss": asks(run, task).loss,
        "thing": things(run)[0],
        "headline": headline(run, model, task, typical(drawn["speed"])),
        "curves": drawn,
        "scores": marks(run, task),
        "health": health(run),
        "samples": [{name: sample.get(name, "") for name in ("step", "temperature", "prompt", "text")}
                    for sample in run.samples],
        "translations": [{name: line[name] for name in ("step", "source", "text", "target")}
                         for line in run.translations],
        "answers": said.shown,
        "alignment": alignment(run, model, tokenizer, task),
        **inside(run, model, tokenizer, said.batch),
        "words": words(run, model, speaks(model, tokenizer), said.batch),
        "cost": cost(run, model),
    }  # fmt: skip


def page(run: Run, task: config.Task, data: dict[str, Any]) -> str:
    style, script = part("page.css"), "\n".join(part(f"{name}.js") for name in SCRIPTS)
    asked = asks(run, task)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    filled = {
        "title": html.escape(run.name),
        "policy": f"default-src 'none'; img-src data:; style-src '{digest(style)}'; script-src '{digest(script)}'",
        "style": style,
        "script": script,
        "data": embedded(data),
        "summary": html.escape(summary(run, task)),
        "loss": html.escape(lead(run, task)),
        "question": html.escape(asked.question),
        "answers": html.escape(asked.lead),
        "name": html.escape(asked.name),
        "notes": "".join(f"<p class='note'>{html.escape(line)}.</p>" for line in run.missing),
        "config": html.escape(run.settings or "config.toml is not there."),
        "facts": facts(run),
        "command": html.escape("\n".join(commands(run))),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], part("template.html"))


def commands(run: Run) -> list[str]:
    """What makes the run again: how it began, and each time that it went on with other settings."""
    lines = [str(run.facts.get("command") or f"regard train {run.path / 'config.toml'}")]
    resumed = run.facts.get("resumed")
    for each in resumed if isinstance(resumed, list) else []:
        if isinstance(each, dict) and isinstance(each.get("changes"), list):
            again = shlex.join(["regard", "resume", str(run.path), *map(str, each["changes"])])
            lines.append(f"{again}  # after step {each.get('step')}")
    return lines


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
