"""Report page, report.html: collects the data and fills the template, with style and scripts inline in a single file.

User content (text, prompts, settings, names) enters the page in two ways only: escaped into the template, or as JSON
that the scripts show as text. A content security policy allows no other script and no requests.
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
from regard.config.errors import unwritable_error
from regard.files import atomic
from regard.report.answers import answer_section
from regard.report.attention_section import alignment_section, attention_section
from regard.report.curves import diagnostics_section, median_value, training_curves
from regard.report.embedding_section import embedding_section
from regard.report.headline import cost_section, headline_numbers, score_rows
from regard.report.run_data import LoggedRun, read_logged_run
from regard.report.task_text import input_nouns, loss_lead, task_summary, task_wording, trained_task_of

SURROUNDINGS = ("regard", "torch", "python", "platform", "processor", "device", "threads", "precision", "compiled",
                "started")  # fmt: skip
SCRIPTS = ("tools", "curves", "health", "samples", "translations", "answers", "maps", "roles", "likeness", "words",
           "cost", "page")  # fmt: skip


def write_report(run: str | Path, model: Any, tokenizer: Any) -> Path:
    """Write report.html in a run's folder, from the run's files and its model."""
    found = read_logged_run(Path(run))
    for vocab, own in token_tables(model, tokenizer) if tokenizer is not None else []:
        if len(own) > vocab:
            sizes = f"{len(own):,} tokens, and the model knows {vocab:,}"
            raise config.DataError(f"{run}: the tokenizer has {sizes}; use the tokenizer that the model was trained "
                                   "with")  # fmt: skip
    made = render_page(found, trained_task_of(found, model), collect_sections(found, model, tokenizer))
    path = found.path / "report.html"
    try:
        atomic.write_file(path, [made.encode()])  # atomic: a reader sees the old page or the new one
    except OSError as problem:
        raise unwritable_error(path, problem) from None
    return path


def token_tables(model: Any, tokenizer: Any) -> list[tuple[int, Any]]:
    """The embedding tables of a model, each with its tokenizer."""
    reads = None if model.c.encoder is None else model.c.encoder.embed
    other = [(reads.vocab, tokenizer)] if isinstance(reads, config.TextEmbedding) else []
    return [(model.c.embed.vocab, output_tokenizer(model, tokenizer)), *other]


def output_tokenizer(model: Any, tokenizer: Any) -> Any:
    """The tokenizer of the output, which may differ from that of the input."""
    return getattr(model, "target_tokenizer", None) or tokenizer


def collect_sections(run: LoggedRun, model: Any, tokenizer: Any) -> dict[str, Any]:
    """All numbers and texts of the page."""
    drawn, task = training_curves(run), trained_task_of(run, model)
    said = answer_section(run, model, tokenizer, task)
    return {
        "task": task.kind,
        "loss": task_wording(run, task).loss,
        "thing": input_nouns(run)[0],
        "headline": headline_numbers(run, model, task, median_value(drawn["speed"])),
        "curves": drawn,
        "scores": score_rows(run, task),
        "health": diagnostics_section(run),
        "samples": [{name: sample.get(name, "") for name in ("step", "temperature", "prompt", "text")}
                    for sample in run.samples],
        "translations": [{name: line[name] for name in ("step", "source", "text", "target")}
                         for line in run.translations],
        "answers": said.shown,
        "alignment": alignment_section(run, model, tokenizer, task),
        **attention_section(run, model, tokenizer, said.batch),
        "words": embedding_section(run, model, output_tokenizer(model, tokenizer), said.batch),
        "cost": cost_section(run, model),
    }  # fmt: skip


def render_page(run: LoggedRun, task: config.Task, data: dict[str, Any]) -> str:
    style, script = read_page_part("page.css"), "\n".join(read_page_part(f"{name}.js") for name in SCRIPTS)
    asked = task_wording(run, task)
    script = f'"use strict";\n(() => {{\n{script}\n}})();'
    filled = {
        "title": html.escape(run.name),
        "policy": f"default-src 'none'; img-src data:; style-src '{script_hash(style)}'; script-src "
                  f"'{script_hash(script)}'",
        "style": style,
        "script": script,
        "data": embed_json(data),
        "summary": html.escape(task_summary(run, task)),
        "loss": html.escape(loss_lead(run, task)),
        "heading": html.escape(asked.heading),
        "answers": html.escape(asked.lead),
        "name": html.escape(asked.name),
        "notes": "".join(f"<p class='note'>{html.escape(line)}.</p>" for line in run.missing),
        "config": html.escape(run.settings or "config.toml is not there."),
        "facts": run_facts_rows(run),
        "command": html.escape("\n".join(run_commands(run))),
    }  # fmt: skip
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], read_page_part("template.html"))


def run_commands(run: LoggedRun) -> list[str]:
    """The commands that reproduce the run: its start, and each resumption with other settings."""
    lines = [str(run.facts.get("command") or f"regard train {run.path / 'config.toml'}")]
    resumed = run.facts.get("resumed")
    for each in resumed if isinstance(resumed, list) else []:
        if isinstance(each, dict) and isinstance(each.get("changes"), list):
            again = shlex.join(["regard", "resume", str(run.path), *map(str, each["changes"])])
            lines.append(f"{again}  # after step {each.get('step')}")
    return lines


def read_page_part(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf8")


def script_hash(source: str) -> str:
    """The hash of the page's only script, for the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def embed_json(data: dict[str, Any]) -> str:
    """JSON for a script element, in which no text can close the element."""
    return json.dumps(finite_or_none(data), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def finite_or_none(value: Any) -> Any:
    """Replace non-finite numbers by None, since JSON has none."""
    if isinstance(value, dict):
        return {str(name): finite_or_none(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_facts_rows(run: LoggedRun) -> str:
    """The facts of the run as table rows."""
    known = {name: run.facts.get(name) for name in SURROUNDINGS}
    known["seed"] = None if run.recipe is None else run.recipe.train.seed
    rows = []
    for name, value in known.items():
        if value is not None:
            spelt = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            rows.append(f"<tr><th scope='row'>{name}</th><td>{html.escape(spelt)}</td></tr>")
    return "".join(rows)
