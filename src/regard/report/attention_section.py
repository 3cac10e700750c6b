"""The report's attention section: attention maps, head roles and similarity, and the alignment of a translation.

Heads with the same query and key tokens form a group: those of the encoder, of the decoder, of cross-attention. A head
is named by layer and index: 3.1 is the second of the fourth layer; in an encoder-decoder the name also has the stack.
"""

import base64
import math
from typing import Any

import torch
from torch import Tensor

from regard import config, lens
from regard.inference.objective import reads_text
from regard.lens.attention_maps import AttentionView, TrunkInput
from regard.models.dual_encoder import DualEncoder
from regard.report import image_rows
from regard.report.attention_inputs import ShownInput, attention_input, requested_sentence, translated_pairs
from regard.report.embedding_section import plain_tokens
from regard.report.run_data import LoggedRun
from regard.tasks.collate import TaskBatch

MAX_ALIGNED_TOKENS = 40  # tokens on either side


def alignment_section(run: LoggedRun, model: Any, tokenizer: Any, task: config.Task) -> dict[str, Any]:
    """The alignment of a translation; `absent` gives the reason if there is none; empty for other tasks. #: S157"""
    if not isinstance(task, config.Translation):
        return {}
    try:
        pair = translated_pairs(run, model, *requested_sentence(run, tokenizer))[0]
        seen = model.align(pair.source, pair.ids)
    except config.UserError as problem:
        return {"absent": f"No alignment: {problem}."}
    return {
        "text": pair.source,
        "told": pair.text,
        "layer": seen.layer,
        "source": seen.source[:MAX_ALIGNED_TOKENS],
        "target": seen.target[:MAX_ALIGNED_TOKENS],
        "weights": pack_bytes(seen.weights[:MAX_ALIGNED_TOKENS, :MAX_ALIGNED_TOKENS]),
        "cut": max(map(len, (seen.source, seen.target))) > MAX_ALIGNED_TOKENS,
    }


LONGEST = 64  # tokens of the sentence whose maps are drawn
ROOM = 900_000  # bytes for all maps
COMPARED = 256  # heads that are compared pairwise


def attention_section(run: LoggedRun, model: Any, tokenizer: Any, batch: TaskBatch | None) -> dict[str, Any]:
    """The page's content about heads; `absent` is a sentence on why it is missing."""
    try:
        if isinstance(model, DualEncoder):
            raise config.ConfigError("towers have two, each with its own input; regard.looking shows them")
        if why := lens.why_not_watchable(model):
            raise config.ConfigError(why)
        if not reads_text(model):
            return head_maps(model, None, image_rows.input_rows_shown(model, batch))
        return head_maps(model, tokenizer, attention_input(run, model, tokenizer, batch, max_shown_tokens(run, model)))
    except config.UserError as problem:
        return {"absent": f"No picture of the heads: {problem}."}


def max_shown_tokens(run: LoggedRun, model: Any) -> int:
    """The number of tokens shown: the training length, limited by the space on the page."""
    context = 512 if run.recipe is None else run.recipe.train.context
    heads = sum(model.c.trunk.heads)
    heads = heads if model.c.encoder is None else 2 * heads + sum(model.c.encoder.trunk.heads)
    return max(4, min(LONGEST, context, math.isqrt(ROOM // heads)))


def head_maps(model: Any, tokenizer: Any, read: ShownInput) -> dict[str, Any]:
    speaks = getattr(model, "target_tokenizer", None) or tokenizer
    marks, vocabulary = (
        ((), None) if speaks is None else (lens.delimiter_ids(speaks), torch.tensor(plain_tokens(speaks)))
    )
    heads = lens.summarize_heads(model, read.some["ids"], marks=marks, vocabulary=vocabulary, **other_inputs(read.some))
    maps, several = (
        group_views(lens.attention_views(model, read.one["ids"], **other_inputs(read.one))),
        model.encoder is not None,
    )
    few = {name: table[:2] for name, table in read.some.items()}
    alike = group_views(lens.attention_views(model, few["ids"], **other_inputs(few)))
    return {
        "attention": {"note": read.note, "groups": [pack_maps(name, views, tokenizer, speaks)
                                                    for name, views in maps.items()]},
        "roles": [{"name": role.name, "does": role.does} for role in lens.ROLES
                  if any(role.name in head.scores for head in heads)],
        "heads": [head_description(head, several) for name in maps for head in heads if stack_of(head.where) == name],
        "likeness": head_likeness([view for views in alike.values() for view in views], several),
    }  # fmt: skip


def other_inputs(inputs: TaskBatch) -> TaskBatch:
    """The model inputs besides ids."""
    return {name: table for name, table in inputs.items() if name != "ids"}


def group_views(views: list[AttentionView]) -> dict[str, list[AttentionView]]:
    """Attention maps by group: the encoder's, the decoder's self-attention, cross-attention."""
    names = dict.fromkeys(stack_of(view.where) for view in views)
    order = sorted(names, key=lambda name: STACK_ORDER.index(name) if name in STACK_ORDER else 0)
    return {name: [view for view in views if stack_of(view.where) == name] for name in order}


def pack_maps(name: str, views: list[AttentionView], reads: Any, speaks: Any) -> dict[str, Any]:
    """One group's maps, with the tokens of both axes."""
    view = views[0]
    queries, keys = (reads if name == "encoder" else speaks), (speaks if name == "decoder" else reads)
    return {
        "name": name,
        "own": view.own,
        "heads": [each.pattern.shape[1] for each in views],
        "queries": token_labels(view.q, queries),
        "keys": token_labels(view.k, keys),
        "grid": image_rows.patch_grid(view.q),
        "maps": pack_bytes(torch.cat([each.pattern for each in views], 1)[0].sqrt()),
    }


def token_labels(read: TrunkInput, tokenizer: Any) -> list[str]:
    """Labels of the tokens of the first row: text, or positions."""
    if read.ids is None or tokenizer is None:
        return image_rows.patch_labels(read)
    return [tokenizer.token_text(id) for id in read.ids[0].tolist()]


def head_description(head: lens.HeadSummary, several: bool) -> dict[str, Any]:
    scores = {name: [round(number, 3) for number in (one.value, one.chance, one.lift)]
              for name, one in head.scores.items()}  # fmt: skip
    return {
        "name": head_label(head.where, head.head, several), "layer": head.layer, "role": head.role, "scores": scores,
        "entropy": round(head.entropy, 2), "relative": round(head.relative, 3),
        "distance": None if head.distance is None else round(head.distance, 1),
    }  # fmt: skip


def head_likeness(views: list[AttentionView], several: bool) -> dict[str, Any]:
    """Similarity of heads within groups; of some layers only, if there are very many heads."""
    every = -(-sum(each.pattern.shape[1] for each in views) // COMPARED)
    views = views[::every]
    values = lens.head_similarity(views)
    heads = [(view.where, head) for view in views for head in range(view.pattern.shape[1])]
    return {
        "size": len(values), "values": pack_bytes(values.nan_to_num(0.0)),
        "layers": [int(where.rsplit(".", 2)[1]) for where, _ in heads],
        "groups": [stack_of(where) for where, _ in heads],
        "names": [head_label(where, head, several) for where, head in heads],
    }  # fmt: skip


def pack_bytes(values: Tensor) -> str:
    """Numbers from 0 to 1 as base64 bytes, which is precise enough for a picture."""
    return base64.b64encode((values.clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()).decode()


STACK_ORDER = ("encoder", "decoder", "across")
PLACES = {"encoder.attn": "encoder", "trunk.attn": "decoder", "trunk.cross": "across"}


def stack_of(where: str) -> str:
    """The group of an attention layer; trunk.3.cross is cross-attention of the decoder."""
    trunk, _, side = where.rsplit(".", 2)
    return PLACES.get(f"{trunk}.{side}", trunk)


def head_label(where: str, head: int, several: bool) -> str:
    name = f"{where.rsplit('.', 2)[1]}.{head}"
    return f"{stack_of(where)} {name}" if several else name
