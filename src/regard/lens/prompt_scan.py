"""Scan: the cheap lenses on one prompt, as a page of findings with numbers and the line of Python behind each.

    decision     what is predicted, and after which layer it stays so         logit lens
    inputs       which tokens of the input it comes from                      occlusion
    parts        which parts of the model make its logit                      direct logit attribution
    heads        the strongest heads: role, contribution, logit without them  roles, ablation by zeros
    surprise     which tokens the model did not expect, in bits               log-probabilities

A finding that a model has no meaning for is left out, and the page says why. Each method has limits of its own, which
its page in the docs names; a scan is a place to begin, not evidence of a mechanism.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from torch import Tensor

from regard.config.errors import ConfigError, DataError
from regard.inputs.image import PixelEmbedding
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
from regard.models.heads import LMHead, PoolingHead, PretrainingHead

SHOWN = 5  # rows of a finding
STRONGEST = 10  # heads that are taken away one by one
LITERAL = 64  # ids that are written into a line of Python
BITS = ("from math import log", "from torch.nn.functional import cross_entropy")


@dataclass(frozen=True)
class Finding:
    """One question, its answer in a sentence, the numbers, and the Python that makes them of `model` and `prompt`."""

    name: str
    sentence: str
    table: Table
    code: str


@dataclass(frozen=True, eq=False)
class ScanResult(LensResult):
    """The findings on a prompt, the Python that comes before theirs, and why others were left out."""

    prompt: str
    setup: str
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Finding:
        found = {finding.name: finding for finding in self.findings}
        if name not in found:
            raise KeyError(f"no finding {name!r}; there are {', '.join(found)}")
        return found[name]

    def table(self) -> Table:
        rows = tuple((finding.name, finding.sentence, finding.code) for finding in self.findings)
        return Table(self.title, ("finding", "in a sentence", "python"), rows,
                     "; ".join(f"left out: {why}" for why in self.left_out))  # fmt: skip

    @property
    def title(self) -> str:
        return f"What stands out in {self.prompt!r}?"

    def to_json(self) -> dict[str, Any]:
        findings = [{"name": each.name, "sentence": each.sentence, "code": each.code, **each.table.to_json()}
                    for each in self.findings]  # fmt: skip
        return {"prompt": self.prompt, "setup": self.setup, "findings": findings, "left_out": list(self.left_out)}

    def __str__(self) -> str:
        parts = [f"{finding.sentence}\n\n{finding.table}\n\n    {finding.code}" for finding in self.findings]
        last = [f"left out: {why}" for why in self.left_out]
        before = "\n".join(f"    {line}" for line in self.setup.splitlines())
        last.append(f"Under each finding stands the line of Python that makes its numbers, after these:\n\n{before}")
        return "\n\n\n".join([self.title, *parts, *last])


def scan(
    model: Any, prompt: str | Tensor | Sequence[int] | Prompt, *, source: str | Tensor | None = None,
    pair: str | None = None, name: str = "",
) -> ScanResult:  # fmt: skip
    """Run the cheap lenses on one prompt: decision, inputs, parts and heads of its prediction, and surprise.

    `name` is what `regard.load` opens the model by, for the lines of Python.
    """
    model = unwrap_model(model)
    find_trunk(model)
    read = read_prompt(model, prompt, source=source, pair=pair)
    if len(read.first) != 1:
        raise DataError(f"prompt: {len(read.first)} rows; a scan reads one, so give them one by one")
    findings, left_out, at = list[Finding](), list[str](), read_position(model, read)
    for find in (find_decision, find_inputs, find_parts, find_heads, find_surprise):
        try:
            findings.append(find(model, read, at))
        except (ConfigError, DataError) as problem:
            left_out.append(f"{find.__name__.removeprefix('find_')}, because {problem}")
    if not findings:
        raise ConfigError(f"nothing can be scanned in this model: {left_out[0]}")
    shown = prompt if isinstance(prompt, str) else " ".join(read.labels) or "an input"
    imports = (*BITS[: 2 * (findings[-1].name == "surprise")], "import regard", "from regard import lens")
    setup = "\n".join((*imports, *write_setup(prompt, source, pair, name)))
    return ScanResult(shown, setup, tuple(findings), tuple(left_out))


def write_setup(prompt: Any, source: Any, pair: str | None, name: str) -> tuple[str, str]:
    """The lines that open the model and read the prompt."""
    given = [prompt, *(each for each in (source, pair) if each is not None)]
    opened = f"model = regard.load({name!r})" if name else "# model: the one that was scanned"
    if not all(isinstance(each, str) or each is prompt and short_ids(each) for each in given):
        return opened, "# prompt: lens.read_prompt(model, what was scanned)"
    first = repr(prompt if isinstance(prompt, str) else short_ids(prompt))
    rest = "".join(f", {key}={text!r}" for key, text in (("source", source), ("pair", pair)) if text is not None)
    return opened, f"prompt = lens.read_prompt(model, {first}{rest})"


def short_ids(prompt: Any) -> list[int]:
    """The ids of a prompt of one short row of them; none of other prompts."""
    if isinstance(prompt, Tensor):
        rows = prompt.dim() == 1 or prompt.dim() == 2 and len(prompt) == 1
        prompt = prompt.flatten().tolist() if rows and not prompt.is_floating_point() else ()
    return list(prompt) if isinstance(prompt, Sequence) and len(prompt) <= LITERAL else []


def read_position(model: Any, prompt: Prompt) -> int:
    """The token whose prediction is looked at: the mask, or the last one."""
    try:
        return logit_lens(model, prompt, top_k=1, halves=False).position
    except ConfigError:
        return -1


def logits_code(model: Any, rest: str) -> str:
    """The Python of logits: of a pair of heads the words."""
    return f"prompt.run(model){'[0]' if isinstance(model.head, PretrainingHead) else ''}[0{rest}]"


# ---------------------------------------------------------------- one finding each


def find_decision(model: Any, prompt: Prompt, at: int) -> Finding:
    """The first place from which on the top prediction is the final one."""
    read = logit_lens(model, prompt, top_k=1)
    tops = read.top_ids[:, 0, at, 0].tolist()
    since = max((place + 1 for place, top in enumerate(tops) if top != tops[-1]), default=0)
    shares = read.top_probs[:, 0, at, 0].tolist()
    last = len(tops) - 1
    rows = tuple((name, read.names[top], share)
                 for place, (name, top, share) in enumerate(zip(read.places, tops, shares, strict=True))
                 if place in (0, last) or top != tops[place - 1])  # fmt: skip
    sentence = (f"The prediction is {read.names[tops[-1]]!r} ({shares[-1]:.0%}); it is on top from "
                f"{read.places[since]} on, place {since + 1} of {len(tops)}.")  # fmt: skip
    note = "Where the top changes. 2.mlp is the place after the feed-forward of block 2; blocks count from 0."
    table = Table("What would be predicted if the model ended here?", ("place", "top", "probability"), rows, note)
    return Finding("decision", sentence, table, "lens.logit_lens(model, prompt).table()")


def find_inputs(model: Any, prompt: Prompt, at: int) -> Finding:
    """The inputs without which the predicted score falls most."""
    pools = isinstance(find_head(model), PoolingHead)
    found = attribute_inputs(model, prompt, method="occlusion", position=None if pools else at)
    rows = tuple(sorted(found.table().rows, key=lambda row: -abs(float(row[2] or 0))))[:SHOWN]
    moved = -float(rows[0][2] or 0)  # an attribution is the score less the score without the input
    sentence = f"Without {rows[0][1]!r} the logit of {found.target_label!r} moves by {moved:+.2f}."
    place = "" if pools else f", position={at}"
    return Finding("inputs", sentence, Table(found.title, ("side", "token", "attribution", "share"), rows),
                   f"lens.attribute_inputs(model, prompt, method='occlusion'{place})")  # fmt: skip


def find_parts(model: Any, prompt: Prompt, at: int) -> Finding:
    """The strongest parts of the predicted logit."""
    found = attribute_logit(model, prompt, position=at)
    rows, largest = found.table().rows[:SHOWN], float(found.values[found.order("magnitude")[0]])
    sentence = f"The logit of {found.token!r} is {found.logit:.2f}; the largest part is {rows[0][0]}: {largest:+.2f}."
    return Finding("parts", sentence, Table(found.question, ("part", "contribution"), rows),
                   f"lens.attribute_logit(model, prompt, position={at})")  # fmt: skip


def find_heads(model: Any, prompt: Prompt, at: int) -> Finding:
    """The heads with the largest direct contribution: their roles on this prompt, and the logit without each."""
    found = attribute_logit(model, prompt, position=at)
    heads = [(part, value) for part, value in zip(found.parts, found.values.tolist(), strict=True)
             if part.kind == "head" and part.index is not None]  # fmt: skip
    if not heads:
        raise ConfigError("this model has no attention heads")
    heads.sort(key=lambda head: -abs(head[1]))
    roles, whole, top = dict(known_roles(model, prompt)), *read_top_logit(model, prompt, at)
    rows: list[tuple[Value, ...]] = []
    for part, value in heads[:STRONGEST]:
        where, head = f"trunk.{part.place}", int(part.index or 0)
        with ablate(model, {where: [head]}):
            without = read_top_logit(model, prompt, at, top)[0]
        rows.append((part.name, roles.get((where, head)), value, without, without - whole))
    rows.sort(key=lambda row: -abs(float(row[4] or 0)))
    name, role, _, _, effect = rows[0]
    here = f"; its role here is {role}." if role else "."
    sentence = (f"Of the {len(rows)} strongest heads {name} matters most: the logit moves by {effect:+.2f} without it"
                f"{here}")  # fmt: skip
    layer, number = str(name).split(" head ")
    columns = ("head", "role here", "contribution", "logit without it", "change")
    place = f", {top}" if isinstance(find_head(model), PoolingHead) else f", {at}, {top}"
    return Finding("heads", sentence, Table("Which heads make the prediction?", columns, tuple(rows)),
                   f"with lens.ablate(model, {{'trunk.{layer}': [{number}]}}): "
                   f"print({logits_code(model, place)}.item())")  # fmt: skip


def find_surprise(model: Any, prompt: Prompt, at: int) -> Finding:
    """The tokens with the least probability after those before them."""
    if not isinstance(find_head(model), LMHead) or any(pair[False, False].ahead for pair in model.trunk.masks):
        raise ConfigError("surprise is of a model that predicts each next token of a text")
    ahead = 0 if isinstance(model.embed, PixelEmbedding) and prompt.first.dim() > 2 else 1  # it reads a start itself
    with recording(model, prompt) as run:
        logs = model_log_probs(run)[0]
    ids = prompt.ids[0, ahead:]
    if not len(ids):
        raise DataError("surprise needs two tokens or more")
    bits = (-logs[: len(ids)].gather(1, ids[:, None])[:, 0] / log(2)).tolist()
    order = sorted(range(len(bits)), key=lambda i: -bits[i])
    rows = tuple((prompt.labels[i + ahead], i + ahead, bits[i]) for i in order[:SHOWN])
    mean = sum(bits) / len(bits)
    sentence = f"{rows[0][0]!r} was the least expected: {rows[0][2]:.1f} bits, where a token has {mean:.1f} on average."
    some = (", :-1", "1:") if ahead else ("", ":")
    code = f"cross_entropy({logits_code(model, some[0])}, prompt.ids[0, {some[1]}], reduction='none') / log(2)"
    return Finding("surprise", sentence, Table("Which tokens were not expected?", ("token", "at", "bits"), rows), code)


def known_roles(model: Any, prompt: Prompt) -> Iterator[tuple[tuple[str, int], str]]:
    """The heads that have a role on this prompt."""
    try:
        for head in summarize_heads(model, prompt.first, **prompt.given):
            if head.role is not None:
                yield (head.where, head.head), head.role
    except ConfigError:  # too short, or no attention weights: no roles
        return


def read_top_logit(model: Any, prompt: Prompt, at: int, top: int | None = None) -> tuple[float, int]:
    """The logit that is on top, or of the one that was, and which one it is."""
    with recording(model, prompt) as run:
        out = run.out[0] if isinstance(run.out, tuple) else run.out
    logits: Tensor = out[0] if isinstance(find_head(model), PoolingHead) else out[0, at]
    top = int(logits.argmax()) if top is None else top
    return float(logits[top]), top
