"""The reference model of `transformers`, imported here alone and on demand; and the probe inputs for both models.

Row 0 of a probe is full, the others end early, with padding where the model can have it: equal outputs of full rows
alone would say nothing about the padding mask.
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.hub.families.registry import explain_no_family, match_family
from regard.hub.read_folder import ModelFolder

SENTENCE = "One small transformer reads this sentence, word by word, and another one reads it too: do they agree? "
ROWS = 3
LACKS = (0, 3, 5)  # tokens that the rows end early
LONGER = 4  # tokens that a source has more than its target: no two lengths alike


@dataclass(frozen=True)
class ProbeInput:
    """`theirs` by name; `ours` in order and by name; `reals` are the tokens whose answers count, (B, N) each."""

    theirs: dict[str, Tensor]
    ours: tuple[Any, ...]
    named: dict[str, Tensor] = field(default_factory=dict)
    reals: tuple[Tensor, ...] = ()

    def select_real(self, x: Tensor) -> Tensor:
        """Only what stands at real tokens, if the vectors are of tokens at all."""
        real = next((real for real in self.reals if x.dim() == 3 and x.shape[:2] == real.shape), None)
        return x if real is None else x[real]

    def asked_of(self, model: Any) -> Any:
        return model(*self.ours, **self.named)


def build_probe(ours: Any, reference: Any, tokens: int = 32, dtype: torch.dtype = torch.float32) -> ProbeInput:
    """What to ask a model of ours and one of theirs; always the same for the same folder."""
    chance = torch.Generator().manual_seed(0)
    found = build_probe_for(ours, reference, tokens, chance)
    return probe_to_device(found, next(ours.parameters()).device, dtype)


def build_probe_for(ours: Any, reference: Any, tokens: int, chance: torch.Generator) -> ProbeInput:
    c = ours.c
    if isinstance(c, config.DualEncoder):
        pictures, text = probe_pixels(c.towers[0].embed, chance), text_probe(ours, c.text, reference, tokens, chance)
        given = {"ids": text.ours[0], **text.named}
        return ProbeInput({**text.theirs, "pixel_values": pictures}, (pictures, given), {}, text.reals)
    if isinstance(c.embed, config.PixelEmbedding):
        ids = torch.randint(c.embed.palette, (ROWS, c.embed.count), generator=chance)
        ids[:, 0] = c.embed.palette  # the start token is the id after the last colour
        return ProbeInput({"input_ids": ids}, (ids,))
    if hasattr(c.embed, "channels") or isinstance(c.embed, config.StageEmbedding):
        pictures = probe_pixels(c.embed, chance)
        return ProbeInput({"pixel_values": pictures}, (pictures,))
    text = text_probe(ours, c, reference, tokens, chance)
    return text if c.encoder is None else seq2seq_probe(text, ours, reference, tokens, chance)


def text_probe(ours: Any, c: config.Transformer, reference: Any, tokens: int, chance: torch.Generator) -> ProbeInput:
    """A text: ids, which of them are real, and segments where the model knows them."""
    ids, real = probe_ids(ours, c, reference, tokens, chance)
    asked, named = {"input_ids": ids}, dict[str, Tensor]()
    if not real.all():
        asked["attention_mask"], named["real"] = real.long(), real
    if (
        isinstance(c.embed, config.TextEmbedding)
        and c.embed.segments
        and "token_type_ids" in forward_parameters(reference)
    ):
        segment = (torch.arange(ids.shape[1]) >= ids.shape[1] // 2).long().expand_as(ids)
        asked["token_type_ids"] = named["segment"] = segment.clamp(max=c.embed.segments - 1)
    return ProbeInput(asked, (ids,), named, (real,))


def seq2seq_probe(target: ProbeInput, ours: Any, reference: Any, tokens: int, chance: torch.Generator) -> ProbeInput:
    """A source for the encoder beside the target."""
    c, ids, real = ours.c, target.ours[0], target.reals[0]
    asked = {"decoder_input_ids": ids, "decoder_attention_mask": real.long()}
    if isinstance(c.encoder.embed, config.AudioEmbedding):
        heard = probe_audio(c.encoder.embed, chance)
        return ProbeInput({"input_features": heard, **asked}, (ids,), {"source": heard, "real": real}, (real,))
    reads = c if c.encoder.embed is None else replace(c, embed=replace(c.encoder.embed, eos_id=c.embed.eos_id))
    source, kept = probe_ids(ours, reads, reference, tokens, chance, LONGER)
    asked |= {"input_ids": source, "attention_mask": kept.long()}
    if isinstance(c.head, config.PoolingHead):  # a source that is classified is read once more, one place later
        first = torch.full_like(source[:, :1], reference.config.decoder_start_token_id)
        ids, real = torch.cat([first, source[:, :-1]], 1), kept
        asked = {"input_ids": source, "attention_mask": kept.long(), "decoder_input_ids": ids}
    named = {"source": source, "source_real": kept, "real": real}
    return ProbeInput(asked, (ids,), named, (real, kept))


# ---------------------------------------------------------------- what is in it


def probe_ids(
    ours: Any, c: config.Transformer, reference: Any, tokens: int, chance: torch.Generator, more: int = 0
) -> tuple[Tensor, Tensor]:
    """Ids (B, N) and which of them are real: a sentence in the model's own words, random ones where it has none."""
    vocab, pad = c.embed.vocab, pad_token_id(reference)
    count = min(tokens, max_probe_tokens(ours, c)) + more
    ids = probe_sentence(ours.tokenizer, vocab) or torch.randint(vocab, (97,), generator=chance).tolist()
    ids = [id for id in ids if id not in (pad, c.embed.eos_id)] or [0]
    rows = (
        ROWS if pad is not None or not reads_last_token(c) else 1
    )  # a head on the last token must know which are padding
    table = torch.tensor([[ids[(row * 5 + n) % len(ids)] for n in range(count)] for row in range(rows)])
    lacks = torch.tensor(LACKS[:rows]).clamp(max=count - 1) * (getattr(c.trunk.position, "scaling", "") != "dynamic")
    real = torch.arange(count) < count - lacks[:, None]  # dynamic scaling goes by the length of the input
    table = table.masked_fill(~real, 0 if pad is None else pad)
    if c.embed.eos_id is not None:
        table[torch.arange(rows), real.sum(-1) - 1] = c.embed.eos_id
    return table, real


def probe_sentence(tokenizer: Any, vocab: int) -> list[int]:
    """The sentence in ids; none where the tokenizer cannot say it."""
    try:
        return [] if tokenizer is None else [id for id in tokenizer.encode(SENTENCE) if id < vocab]
    except config.DataError:
        return []


def pad_token_id(reference: Any) -> int | None:
    """Their id of what is not there."""
    said = getattr(reference.config, "text_config", reference.config)
    pad = getattr(said, "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else None


def reads_last_token(c: config.Transformer) -> bool:
    return isinstance(c.head, config.PoolingHead) and c.head.pooling == "last"


def max_probe_tokens(ours: Any, c: config.Transformer) -> int:
    """As many tokens as the model has places for; where it reads another text, a few are left over for that."""
    reads = c.encoder is not None and not isinstance(c.encoder.embed, config.AudioEmbedding)
    stacks = [c.trunk, c.encoder.trunk] if reads and c.encoder is not None else [c.trunk]
    places = [stack.position for stack in stacks if isinstance(stack, config.Trunk)]
    lengths = [getattr(each, "original_length", getattr(each, "length", None)) for each in places]
    known = [each for each in (*lengths, ours.context) if isinstance(each, int)]
    return max(1, min(known, default=1 << 20) - LONGER * reads)


def probe_pixels(c: Any, chance: torch.Generator) -> Tensor:  # (B, channels, rows, columns)
    c = c.patches if isinstance(c, config.StageEmbedding) else c
    return torch.randn(ROWS, c.channels, c.image_size, c.image_size, generator=chance)


def probe_audio(c: config.AudioEmbedding, chance: torch.Generator) -> Tensor:  # (B, mels, windows)
    """A spectrogram of noise, as long as can be."""
    assert isinstance(c.features, config.ConvSpectrogram)  # the families that hear do so
    return torch.randn(ROWS, c.features.n_mels, c.features.windows(c.limit), generator=chance)


def forward_parameters(reference: Any) -> Any:
    return inspect.signature(reference.forward).parameters


def probe_to_device(probe: ProbeInput, device: torch.device, dtype: torch.dtype) -> ProbeInput:
    """On the models' device, and numbers in their type."""

    def put(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: put(each) for name, each in x.items()}
        return x.to(device, dtype if x.is_floating_point() else None)

    return ProbeInput(put(probe.theirs), tuple(put(x) for x in probe.ours), put(probe.named),
                    tuple(put(x) for x in probe.reals))  # fmt: skip


# ---------------------------------------------------------------- on its way to another process


def flatten_probe(probe: ProbeInput, side: str) -> dict[str, Tensor]:
    """What one side is given, as a flat table: places by number, what stands inside a place behind a dot."""
    if side == "theirs":
        return dict(probe.theirs)
    table = dict(probe.named)
    for place, given in enumerate(probe.ours):
        inner = given if isinstance(given, dict) else {"": given}
        table |= {f"{place}.{name}".rstrip("."): x for name, x in inner.items()}
    return table


def unflatten_probe(table: dict[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """The same again: in order, and by name."""
    named = {name: x for name, x in table.items() if not name[0].isdigit()}
    places: dict[str, Any] = {}
    for name, x in sorted(table.items()):
        place, _, inner = name.partition(".")
        if inner:
            places.setdefault(place, {})[inner] = x
        elif place.isdigit():
            places[place] = x
    return list(places.values()), named


# What a class of theirs answers with, by the first of the names that it has.
ANSWERS = (
    ("prediction_logits", "seq_relationship_logits", "sop_logits"), ("start_logits", "end_logits"),
    ("logits_per_image",), ("logits",), ("text_embeds",), ("image_embeds",), ("last_hidden_state", "pooler_output"),
)  # fmt: skip


def import_transformers() -> Any:
    if find_spec("transformers") is None:
        raise ConfigError("check: compares with `transformers`, which is not installed; pip install transformers")
    with mute_transformers():
        found: Any = import_module("transformers")
        found.utils.logging.set_verbosity_error()
        found.utils.logging.disable_progress_bar()
    return found


def transformers_version() -> str:
    return str(import_transformers().__version__)


def reference_class(found: ModelFolder) -> Any:
    """Their class for what is in a folder."""
    name = found.architecture
    if found.path.is_file():
        raise DataError(f"{found.path}: one file, and folders are compared; `regard convert {found.path} FOLDER` makes "
                        "one")  # fmt: skip
    if name is None:
        if (known := match_family(found.config)) is None:
            raise DataError(
                f"{found.path}: `transformers` has no class to compare it with ({explain_no_family(found.config)})"
            )
        raise DataError(f"{found.path}: in our own words, which `transformers` does not read; `regard convert "
                        f"{found.path} FOLDER` writes it as a {known.architecture}, which can be compared")  # fmt: skip
    with mute_transformers():
        there = getattr(import_transformers(), name, None)
    if there is None:
        raise ConfigError(f"check: transformers {transformers_version()} has no class {name}; install a newer one")
    return there


def load_reference(found: ModelFolder, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
    """Their model in a folder, with no code from anywhere else. What it has and the files have not is told."""
    kind = reference_class(found)
    try:
        with mute_transformers():
            model, report = kind.from_pretrained(
                str(found.path), dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as problem:
        first = str(problem).strip().split("\n")[0]
        raise DataError(f"{found.path}: `transformers` cannot open it ({first}); fetch or write it again") from None
    if lacking := sorted(report["missing_keys"]):
        warnings.warn(f"{found.path}: there is nothing for {', '.join(lacking[:3])}, and `transformers` makes it up; "
                      "what comes of it is not compared", stacklevel=2)  # fmt: skip
    return model.to(device).eval()


def reference_outputs(reference: Any, probe: ProbeInput) -> list[Tensor]:
    """What theirs says, tensor by tensor, in the shapes of ours."""
    with mute_transformers():
        told = reference(**probe.theirs)
    names = next(names for names in ANSWERS if getattr(told, names[0], None) is not None)
    found = [getattr(told, name) for name in names if getattr(told, name, None) is not None]
    return [torch.stack(found, -1)] if names[0] == "start_logits" else found


@contextmanager
def mute_transformers() -> Iterator[None]:
    """Their warnings are about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
