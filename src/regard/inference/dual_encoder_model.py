"""DualEncoderModel: matches images and texts with a CLIP-like model.

model = regard.load("runs/emoji-clip")
model.match(["heart.png"], ["a red heart", "a green apple"])      # (1, 2) probabilities: a row sums to one
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from regard import config
from regard.config.errors import ConfigError, DataError
from regard.generation.session import inference_mode
from regard.inference.hf_api import PretrainedMixin
from regard.inference.hf_inputs import DualEncoderHFCallMixin
from regard.inference.packed_weights import PackableModel
from regard.models import dual_encoder

if TYPE_CHECKING:
    from regard.hub.read_folder import ModelFolder
    from regard.text.tokenizer import Tokenizer


class DualEncoderModel(PretrainedMixin, DualEncoderHFCallMixin, PackableModel, dual_encoder.DualEncoder):
    """A dual encoder: an image tower and a text tower, with the tokenizer of the text tower."""

    def __init__(self, c: config.DualEncoder) -> None:
        super().__init__(c)
        self.target_tokenizer: Tokenizer | None = None
        self.decoder_start_id: int | None = None
        self.context: int | None = None
        self.task: config.Task | None = None  # the task of its training
        self.source_folder: ModelFolder | None = None  # the folder that it was loaded from

    def match(self, pictures: Sequence[Any], texts: Sequence[str]) -> Tensor:  # (B, C)
        """The probability of each text, among these texts, to match an image."""
        with inference_mode(list(self.modules())):
            return (self.logit_scale * self.embed_images(pictures) @ self.embed_texts(texts).mT).softmax(-1)

    def embeddings(self, things: Sequence[Any], *, normalize: bool = True) -> Tensor:  # (B, D)
        """One vector for each text and each image, which is named by its file; of length 1 unless not `normalize`."""
        from regard.inference.embedding import embed_inputs

        return embed_inputs(self, things, normalize=normalize)

    def embed_images(self, pictures: Sequence[Any]) -> Tensor:  # (B, D)
        """The vector of each image, of length 1: files by name, bytes (C, H, W), or other inputs of the image
        processor."""
        from regard.inference.record_inputs import front_end_inputs, input_records

        with inference_mode(list(self.modules())):
            front = self.c.towers[0].embed
            return self.encode(0, front_end_inputs(front, input_records(front, pictures), self.device))

    def embed_texts(self, texts: Sequence[str]) -> Tensor:  # (B, D)
        """The vector of each text, of length 1."""
        from regard.tasks.collate import RowPadding, TaskSpecialTokens
        from regard.tasks.image_text import normalize_phrases

        if self.tokenizer is None:
            raise DataError("this model has no tokenizer; put a tokenizer.json beside it")
        around = TaskSpecialTokens.of(self.tokenizer).single
        most = None if self.context is None else self.context - len(around)
        phrases = isinstance(self.task, config.Contrastive) and self.task.phrase_list
        rows = [around(self.ids(normalize_phrases(text) if phrases else text, most)) for text in texts]
        wide = RowPadding(max(4, *map(len, rows)))
        given = {"ids": wide.pad(rows, TaskSpecialTokens.of(self.tokenizer).fill), "real": wide.real_mask(rows)}
        with inference_mode(list(self.modules())):
            return self.encode(1, {name: table.to(self.device) for name, table in given.items()})

    def ids(self, text: str, most: int | None) -> list[int]:
        assert self.tokenizer is not None
        found = self.tokenizer.encode(text)
        if not found or (most is not None and len(found) > most):
            raise DataError(f"text: {text!r:.60} has {len(found)} tokens; expected 1 to {most or 'more'}, so change "
                            "the text")  # fmt: skip
        return found

    @property
    def output_tokenizer(self) -> "Tokenizer | None":
        return self.tokenizer

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def save(self, path: str | Path) -> None:
        """Save weights, config and tokenizer as a folder."""
        from regard.hub import write_folder

        write_folder.save_model(
            Path(path), self, self.tokenizer, self.context, task=self.task, origin=self.source_folder
        )

    def refuse_verb(self, *things: Any, **settings: Any) -> NoReturn:
        """The verbs of a `Model` that a dual encoder does not have."""
        raise ConfigError("a dual encoder compares images and texts and generates nothing; use match, embed_images "
                          "or embed_texts")  # fmt: skip

    generate = stream = complete = session = refuse_verb
    translate = translations = align = caption = generate_images = refuse_verb
    classify = fill_mask = tag = answer_question = forecast = likelihoods = choose_label = refuse_verb
