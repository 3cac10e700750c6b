"""The reference model of `transformers`, which only this module imports, on demand; and probe inputs for both models.

Row 0 of a probe is full, the others are shorter and padded where the model allows it: full rows alone would not test
the padding mask.
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
LACKS = (0, 3, 5)  # padding of each row in tokens
LONGER = 4  # extra tokens of a source: no two lengths are equal


@dataclass(frozen=True)
class ProbeInput:
    """Probe inputs: `theirs` by name; `ours` in order and by name; `reals` mask the tokens whose outputs are compared,
    (B, N)."""

    theirs: dict[str, Tensor]
    ours: tuple[Any, ...]
    named: dict[str, Tensor] = field(default_factory=dict)
    reals: tuple[Tensor, ...] = ()

    def select_real(self, x: Tensor) -> Tensor:
        """Only the vectors of real tokens, if the tensor is one of tokens."""
        real = next((real for real in self.reals if x.dim() == 3 and x.shape[:2] == real.shape), None)
        return x if real is None else x[real]

    def asked_of(self, model: Any) -> Any:
        return model(*self.ours, **self.named)


def build_probe(ours: Any, reference: Any, tokens: int = 32, dtype: torch.dtype = torch.float32) -> ProbeInput:
    """The probe inputs for a model of ours and its reference; deterministic for a folder."""
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
    """A text probe: ids, the mask of real tokens, and segments where the model has them."""
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
    """Add a source for the encoder to the probe of the target."""
    c, ids, real = ours.c, target.ours[0], target.reals[0]
    asked = {"decoder_input_ids": ids, "decoder_attention_mask": real.long()}
    if isinstance(c.encoder.embed, config.AudioEmbedding):
        heard = probe_audio(c.encoder.embed, chance)
        return ProbeInput({"input_features": heard, **asked}, (ids,), {"source": heard, "real": real}, (real,))
    reads = c if c.encoder.embed is None else replace(c, embed=replace(c.encoder.embed, eos_id=c.embed.eos_id))
    source, kept = probe_ids(ours, reads, reference, tokens, chance, LONGER)
    asked |= {"input_ids": source, "attention_mask": kept.long()}
    if isinstance(c.head, config.PoolingHead):  # a classifier's decoder reads the source shifted by one
        first = torch.full_like(source[:, :1], reference.config.decoder_start_token_id)
        ids, real = torch.cat([first, source[:, :-1]], 1), kept
        asked = {"input_ids": source, "attention_mask": kept.long(), "decoder_input_ids": ids}
    named = {"source": source, "source_real": kept, "real": real}
    return ProbeInput(asked, (ids,), named, (real, kept))


# ---------------------------------------------------------------- contents of a probe


def probe_ids(
    ours: Any, c: config.Transformer, reference: Any, tokens: int, chance: torch.Generator, more: int = 0
) -> tuple[Tensor, Tensor]:
    """Ids (B, N) and the mask of real tokens: a sentence by the model's tokenizer, random ids without one."""
    vocab, pad = c.embed.vocab, pad_token_id(reference)
    count = min(tokens, max_probe_tokens(ours, c)) + more
    ids = probe_sentence(ours.tokenizer, vocab) or torch.randint(vocab, (97,), generator=chance).tolist()
    ids = [id for id in ids if id not in (pad, c.embed.eos_id)] or [0]
    rows = ROWS if pad is not None or not reads_last_token(c) else 1  # a head on the last token needs the padding id
    table = torch.tensor([[ids[(row * 5 + n) % len(ids)] for n in range(count)] for row in range(rows)])
    lacks = torch.tensor(LACKS[:rows]).clamp(max=count - 1) * (getattr(c.trunk.position, "scaling", "") != "dynamic")
    real = torch.arange(count) < count - lacks[:, None]  # dynamic scaling depends on the length of the input
    table = table.masked_fill(~real, 0 if pad is None else pad)
    if c.embed.eos_id is not None:
        table[torch.arange(rows), real.sum(-1) - 1] = c.embed.eos_id
    return table, real


def probe_sentence(tokenizer: Any, vocab: int) -> list[int]:
    """The probe sentence in ids; empty if the tokenizer cannot encode it."""
    try:
        return [] if tokenizer is None else [id for id in tokenizer.encode(SENTENCE) if id < vocab]
    except config.DataError:
        return []


def pad_token_id(reference: Any) -> int | None:
    """The padding id of the reference."""
    said = getattr(reference.config, "text_config", reference.config)
    pad = getattr(said, "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else None


def reads_last_token(c: config.Transformer) -> bool:
    return isinstance(c.head, config.PoolingHead) and c.head.pooling == "last"


def max_probe_tokens(ours: Any, c: config.Transformer) -> int:
    """The model's number of positions; for an encoder-decoder less LONGER, for the longer source."""
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
    """A spectrogram of noise, of the maximum length."""
    assert isinstance(c.features, config.ConvSpectrogram)  # true of all audio families
    return torch.randn(ROWS, c.features.n_mels, c.features.windows(c.limit), generator=chance)


def forward_parameters(reference: Any) -> Any:
    return inspect.signature(reference.forward).parameters


def probe_to_device(probe: ProbeInput, device: torch.device, dtype: torch.dtype) -> ProbeInput:
    """The probe on the models' device, floating-point tensors in their dtype."""

    def put(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: put(each) for name, each in x.items()}
        return x.to(device, dtype if x.is_floating_point() else None)

    return ProbeInput(put(probe.theirs), tuple(put(x) for x in probe.ours), put(probe.named),
                    tuple(put(x) for x in probe.reals))  # fmt: skip


# ---------------------------------------------------------------- transfer to another process


def flatten_probe(probe: ProbeInput, side: str) -> dict[str, Tensor]:
    """The inputs of one side as a flat dict: positional ones by number, nested ones after a dot."""
    if side == "theirs":
        return dict(probe.theirs)
    table = dict(probe.named)
    for place, given in enumerate(probe.ours):
        inner = given if isinstance(given, dict) else {"": given}
        table |= {f"{place}.{name}".rstrip("."): x for name, x in inner.items()}
    return table


def unflatten_probe(table: dict[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """The inverse: positional inputs, and named ones."""
    named = {name: x for name, x in table.items() if not name[0].isdigit()}
    places: dict[str, Any] = {}
    for name, x in sorted(table.items()):
        place, _, inner = name.partition(".")
        if inner:
            places.setdefault(place, {})[inner] = x
        elif place.isdigit():
            places[place] = x
    return list(places.values()), named


# The output fields of the reference: the first entry with a field that is present.
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
    """The class of `transformers` for the model in a folder."""
    name = found.architecture
    if found.path.is_file():
        raise DataError(f"{found.path}: a file, but folders are compared; `regard convert {found.path} FOLDER` makes "
                        "one")  # fmt: skip
    if name is None:
        if (known := match_family(found.config)) is None:
            raise DataError(
                f"{found.path}: `transformers` has no class to compare it with ({explain_no_family(found.config)})"
            )
        raise DataError(f"{found.path}: in regard's own format, which `transformers` cannot read; `regard convert "
                        f"{found.path} FOLDER` writes it as a {known.architecture}, which can be compared")  # fmt: skip
    with mute_transformers():
        there = getattr(import_transformers(), name, None)
    if there is None:
        raise ConfigError(f"check: transformers {transformers_version()} has no class {name}; install a newer one")
    return there


def load_reference(found: ModelFolder, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
    """Load the reference from a folder, without remote code. Weights missing in the files raise a warning."""
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
        warnings.warn(f"{found.path}: has no {', '.join(lacking[:3])}, which `transformers` initialises at random; "
                      "outputs of these weights are not compared", stacklevel=2)  # fmt: skip
    return model.to(device).eval()


def reference_outputs(reference: Any, probe: ProbeInput) -> list[Tensor]:
    """The outputs of the reference, tensor by tensor, in the shapes of ours."""
    with mute_transformers():
        told = reference(**probe.theirs)
    names = next(names for names in ANSWERS if getattr(told, names[0], None) is not None)
    found = [getattr(told, name) for name in names if getattr(told, name, None) is not None]
    return [torch.stack(found, -1)] if names[0] == "start_logits" else found


@contextmanager
def mute_transformers() -> Iterator[None]:
    """Silence the warnings of `transformers`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
