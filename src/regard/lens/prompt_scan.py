"""Scan: the cheap lenses on one prompt, as a page of findings with numbers and the line of Python behind each.

    surprise     which tokens the model did not expect, in bits               log-probabilities
    decision     after which layer the prediction stays what it is in the end logit lens
    parts        which parts of the model make its logit                      direct logit attribution
    inputs       which tokens of the input it comes from                      occlusion
    heads        the strongest heads: role, contribution, loss without them   roles, ablation by zeros

A finding that a model has no meaning for is left out, and the page says why. Each method has limits of its own, which
its page in the docs names; a scan is a place to begin, not evidence of a mechanism.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log
from typing import Any

from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.lens.ablation import ablate
from regard.lens.attention_maps import unwrap_model
from regard.lens.attribution.direct_attribution import attribute_logit
from regard.lens.attribution.input_attribution import attribute_inputs
from regard.lens.heads import summarize_heads
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import find_head, find_trunk, recording
from regard.lens.result import LensResult, Table, Value
from regard.lens.stream.logit_lens import logit_lens
from regard.lens.stream.predictions import model_log_probs
from regard.models.heads import LMHead, PoolingHead

SHOWN = 5  # rows of a finding
STRONGEST = 10  # heads that are taken away one by one


@dataclass(frozen=True)
class Finding:
    """One question, its answer in a sentence, the numbers, and the Python that makes them."""

    name: str
    sentence: str
    table: Table
    code: str


@dataclass(frozen=True, eq=False)
class ScanResult(LensResult):
    """The findings on a prompt, and why others were left out."""

    prompt: str
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Finding:
        found = {finding.name: finding for finding in self.findings}
        if name not in found:
            raise KeyError(f"no finding {name!r}; there are {', '.join(found)}")
        return found[name]

    def table(self) -> Table:
        rows = tuple((finding.name, finding.sentence, finding.code) for finding in self.findings)
        return Table(f"What stands out in {self.prompt!r}?", ("finding", "in a sentence", "python"), rows,
                     "; ".join(f"left out: {why}" for why in self.left_out))  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        findings = [{"name": each.name, "sentence": each.sentence, "code": each.code, **each.table.to_json()}
                    for each in self.findings]  # fmt: skip
        return {"prompt": self.prompt, "findings": findings, "left_out": list(self.left_out)}

    def __str__(self) -> str:
        parts = [f"{finding.sentence}\n\n{finding.table}\n\n    {finding.code}" for finding in self.findings]
        return "\n\n\n".join([*parts, *(f"left out: {why}" for why in self.left_out)])


def scan(
    model: Any, prompt: str | Tensor | Prompt, *, source: str | Tensor | None = None, pair: str | None = None
) -> ScanResult:
    """Run the cheap lenses on one prompt: surprise, decision, parts, inputs and heads of its prediction."""
    model = unwrap_model(model)
    find_trunk(model)
    read = read_prompt(model, prompt, source=source, pair=pair)
    if len(read.first) != 1:
        raise DataError(f"prompt: {len(read.first)} rows; a scan reads one, so give them one by one")
    findings, left_out, at = list[Finding](), list[str](), read_position(model, read)
    for find in (find_surprise, find_decision, find_parts, find_inputs, find_heads):
        try:
            findings.append(find(model, read, at))
        except (ConfigError, DataError) as problem:
            left_out.append(f"{find.__name__.removeprefix('find_')}, because {problem}")
    if not findings:
        raise ConfigError(f"nothing can be scanned in this model: {left_out[0]}")
    return ScanResult(" ".join(read.labels) or "an input", tuple(findings), tuple(left_out))


def read_position(model: Any, prompt: Prompt) -> int:
    """The token whose prediction is looked at: the mask, or the last one."""
    try:
        return logit_lens(model, prompt, top_k=1, halves=False).position
    except ConfigError:
        return -1


# ---------------------------------------------------------------- one finding each


def find_surprise(model: Any, prompt: Prompt, at: int) -> Finding:
    """The tokens with the least probability after those before them."""
    if not isinstance(find_head(model), LMHead) or any(pair[False, False].ahead for pair in model.trunk.masks):
        raise ConfigError("surprise is of a model that predicts each next token of a text")
    with recording(model, prompt) as run:
        logs = model_log_probs(run)[0]
    ids = prompt.ids[0]
    if len(ids) < 2:
        raise DataError("surprise needs two tokens or more")
    bits = (-logs[:-1].gather(1, ids[1:, None])[:, 0] / log(2)).tolist()
    order = sorted(range(len(bits)), key=lambda i: -bits[i])
    rows = tuple((prompt.labels[i + 1], i + 1, bits[i]) for i in order[:SHOWN])
    mean = sum(bits) / len(bits)
    sentence = f"{rows[0][0]!r} was the least expected: {rows[0][2]:.1f} bits, where a token has {mean:.1f} on average."
    return Finding("surprise", sentence, Table("Which tokens were not expected?", ("token", "at", "bits"), rows),
                   "model(ids).log_softmax(-1)")  # fmt: skip


def find_decision(model: Any, prompt: Prompt, at: int) -> Finding:
    """The first place from which on the top prediction is the final one."""
    read = logit_lens(model, prompt, top_k=1)
    tops = read.top_ids[:, 0, at, 0].tolist()
    since = max((place + 1 for place, top in enumerate(tops) if top != tops[-1]), default=0)
    shares = read.top_probs[:, 0, at, 0].tolist()
    rows = tuple((name, read.names[top], share)
                 for name, top, share in zip(read.places, tops, shares, strict=True) if name == "final" or "." in name)
    word = read.names[tops[-1]]
    sentence = (f"The prediction is {word!r} ({shares[-1]:.0%}); it is on top from {read.places[since]} on, "
                f"place {since + 1} of {len(tops)}.")  # fmt: skip
    return Finding("decision", sentence, Table("What is on top after each sublayer?", ("place", "top", "probability"),
                   rows), "lens.logit_lens(model, text)")  # fmt: skip


def find_parts(model: Any, prompt: Prompt, at: int) -> Finding:
    """The strongest parts of the predicted logit."""
    found = attribute_logit(model, prompt, position=at)
    rows, largest = found.table().rows[:SHOWN], float(found.values[found.order("magnitude")[0]])
    sentence = f"The logit of {found.token!r} is {found.logit:.2f}; the largest part is {rows[0][0]}: {largest:+.2f}."
    return Finding("parts", sentence, Table(found.question, ("part", "contribution"), rows),
                   "lens.attribute_logit(model, text)")  # fmt: skip


def find_inputs(model: Any, prompt: Prompt, at: int) -> Finding:
    """The inputs without which the predicted score falls most."""
    place = None if isinstance(find_head(model), PoolingHead) else at
    found = attribute_inputs(model, prompt, method="occlusion", position=place)
    rows = tuple(sorted(found.table().rows, key=lambda row: -abs(float(row[2] or 0))))[:SHOWN]
    moved = -float(rows[0][2] or 0)  # an attribution is the score less the score without the input
    sentence = f"Without {rows[0][1]!r} the logit of {found.target_label!r} moves by {moved:+.2f}."
    return Finding("inputs", sentence, Table(found.title, ("side", "token", "attribution", "share"), rows),
                   "lens.attribute_inputs(model, text, method='occlusion')")  # fmt: skip


def find_heads(model: Any, prompt: Prompt, at: int) -> Finding:
    """The heads with the largest direct contribution: their roles on this prompt, and the logit without each."""
    found = attribute_logit(model, prompt, position=at)
    heads = [(part, value) for part, value in zip(found.parts, found.values.tolist(), strict=True)
             if part.kind == "head" and part.index is not None]  # fmt: skip
    if not heads:
        raise ConfigError("this model has no attention heads")
    heads.sort(key=lambda head: -abs(head[1]))
    roles, logit = dict(known_roles(model, prompt)), logit_reader(model, prompt, at)
    rows: list[tuple[Value, ...]] = []
    for part, value in heads[:STRONGEST]:
        where, head = f"trunk.{part.place}", int(part.index or 0)
        with ablate(model, {where: [head]}):
            rows.append((part.name, roles.get((where, head)), value, logit() - found.logit))
    rows.sort(key=lambda row: -abs(float(row[3] or 0)))
    name, role, _, effect = rows[0]
    here = f"; its role here is {role}." if role else "."
    moved = f"the logit moves by {effect:+.2f} without it"
    sentence = f"Of the {len(rows)} strongest heads {name} matters most: {moved}{here}"
    columns = ("head", "role here", "contribution", "logit without it")
    return Finding("heads", sentence, Table("Which heads make the prediction?", columns, tuple(rows)),
                   "with lens.ablate(model, {'trunk.0.attn': [1]}): model(ids)")  # fmt: skip


def known_roles(model: Any, prompt: Prompt) -> Iterator[tuple[tuple[str, int], str]]:
    """The heads that have a role on this prompt."""
    try:
        for head in summarize_heads(model, prompt.first, **prompt.given):
            if head.role is not None:
                yield (head.where, head.head), head.role
    except ConfigError:  # too short, or no attention weights: no roles
        return


def logit_reader(model: Any, prompt: Prompt, at: int) -> Callable[[], float]:
    """A function that runs the model once more and returns the logit that is on top now."""

    def logits() -> Tensor:
        with recording(model, prompt) as run:
            out = run.out[0] if isinstance(run.out, tuple) else run.out
        found: Tensor = out[0] if isinstance(find_head(model), PoolingHead) else out[0, at]
        return found

    top = int(logits().argmax())
    return lambda: float(logits()[top])
