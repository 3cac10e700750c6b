"""Model: the core's Transformer with a tokenizer and its methods: generate, translate, classify, save, and more."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from torch import Tensor

import regard.attention
import regard.inputs
import regard.models
import regard.models.heads
import regard.native.attention  # noqa: F401
from regard import config
from regard.core import model as core
from regard.generation.beam_search import BeamHypothesis, beam_search
from regard.generation.limits import GenerationLimits, barred_tokens
from regard.generation.params import (
    NO_DEFAULTS,
    GenerationDefaults,
    beam_search_params,
    canonical_settings,
    check_single_text,
    is_beam_search,
    sampling_params,
    start_once,
)
from regard.generation.sampler import TokenConstraint
from regard.generation.session import DecodeSession
from regard.generation.speculative import SPECULATION_SETTINGS, SpeculativeSession, wants_speculation
from regard.generation.text_stream import Completion, TextStream, completion_from_beams
from regard.inference.dual_encoder_model import DualEncoderModel
from regard.inference.hf_api import PretrainedMixin
from regard.inference.hf_inputs import HFCallMixin
from regard.inference.packed_weights import PackableModel
from regard.inputs.image import extend_positions
from regard.models import lora

if TYPE_CHECKING:
    from regard.hub.read_folder import ModelFolder
    from regard.inference.explain_generation import BeamExplanation, SampledExplanation
    from regard.inference.fill_mask import MaskPrediction
    from regard.inference.forecasting import ForecastResult
    from regard.inference.likelihood import TextLikelihood
    from regard.inference.question_answering import AnswerText
    from regard.inference.token_classification import TaggedSpan
    from regard.inference.translation import Alignment
    from regard.text.tokenizer import Tokenizer


class Model(PretrainedMixin, HFCallMixin, PackableModel, core.Transformer):
    """The public model: a Transformer with its tokenizer, if it has one, and the context length of its training.

    An encoder-decoder may have another tokenizer for its target, `target_tokenizer`; a target begins with
    `decoder_start_id`, or as in training if that is None.
    """

    def __init__(self, c: config.Transformer) -> None:
        super().__init__(c)
        self.target_tokenizer: Tokenizer | None = None
        self.decoder_start_id: int | None = None
        self.context: int | None = None
        self.task: config.Task | None = None  # the task of its training
        self.source_folder: ModelFolder | None = None  # the folder that it was loaded from
        self.generation_defaults: GenerationDefaults = NO_DEFAULTS  # defaults of generation settings

    def extend(self, *lengths: int) -> None:
        """Extend learned positions to other lengths, in the tables and in the config."""
        extend_positions(self, *lengths)

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Tensor, **settings: Any) -> Tensor: ...

    def generate(self, prompt: str | list[str] | Tensor, **settings: Any) -> str | list[str] | Tensor:
        """Generate the continuation of a prompt. Strings give strings; ids (N,) or (B, N) give ids (new,) or (B, new).

        The settings are those of `config.SamplingParams`: max_new_tokens, temperature, top_k, stop, seed, ...; a
        `logit_bias` is {id or text: number}. With `num_beams` it is a beam search, with the settings of
        `config.BeamSearchParams`. An encoder-decoder also takes `source` ids (B, S) and `source_real`. With a
        `draft_model`, or with `prompt_lookup` in the text so far, `num_speculative_tokens` are proposed at a time:
        speculative decoding, which changes the speed and not the distribution of the output. The names of
        `transformers`, vLLM and OpenAI for these settings are accepted. Rows of ids that end early are padded with
        their last token.
        """
        settings = canonical_settings(settings)
        check_single_text(settings, "generate", "complete")
        if isinstance(prompt, Tensor):
            return self.generate_ids(prompt, settings)
        told = self.complete(prompt, **settings)
        return [one.text for one in told] if isinstance(told, list) else told.text

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Stream the text of `generate` piece by piece, as it becomes final: no partial characters or stop strings."""
        settings = canonical_settings(settings)
        if is_beam_search(settings):
            raise config.ConfigError("num_beams: the best text is known only at its end, so there is nothing "
                                     "to stream; use generate or complete")  # fmt: skip
        speech = self.text_stream([prompt], settings)
        return (text for _, text in speech)

    @overload
    def complete(self, prompt: str, **settings: Any) -> Completion: ...
    @overload
    def complete(self, prompt: list[str], **settings: Any) -> list[Completion]: ...

    def complete(self, prompt: str | list[str], **settings: Any) -> Completion | list[Completion]:
        """Generate with details: a Completion with tokens, finish reason, seed and time.

        With `num_beams` it has a score, and with `num_return_sequences` the other hypotheses.
        """
        prompts, settings = [prompt] if isinstance(prompt, str) else prompt, canonical_settings(settings)
        if is_beam_search(settings):
            told = self.complete_by_beams(prompts, settings)
        else:
            speech = self.text_stream(prompts, settings)
            for _ in speech:
                pass
            told = speech.completions
        return told[0] if isinstance(prompt, str) else told

    @overload
    def translate(self, text: str, *, max_new_tokens: int | None = None, **settings: Any) -> str: ...
    @overload
    def translate(self, text: list[str], *, max_new_tokens: int | None = None, **settings: Any) -> list[str]: ...

    def translate(
        self, text: str | list[str], *, max_new_tokens: int | None = None, **settings: Any
    ) -> str | list[str]:
        """Translate a text with an encoder-decoder, by beam search with the settings of `config.BeamSearchParams`.

        A translation has at most `max_new_tokens`; by default twice the tokens of the source, plus 20.
        """
        settings = canonical_settings(settings)
        check_single_text(settings, "translate", "translations")
        told = self.translations([text] if isinstance(text, str) else text, max_new_tokens=max_new_tokens, **settings)
        return told[0].text if isinstance(text, str) else [one.text for one in told]

    def translations(self, texts: list[str], *, max_new_tokens: int | None = None, **settings: Any) -> list[Completion]:
        """Translate with details: tokens, score and finish reason; with `num_return_sequences` further hypotheses in
        `others`."""
        from regard.inference.translation import Translator

        return Translator(self)(texts, canonical_settings(settings), max_new_tokens)

    def embeddings(self, things: Sequence[Any], *, normalize: bool = True) -> Tensor:  # (B, D)
        """Embed inputs: one vector for each text, or each image, sound or record of a model that takes these; of length
        1 unless the folder says otherwise, or not `normalize`."""
        from regard.inference.embedding import embed_inputs

        return embed_inputs(self, things, normalize=normalize)

    @overload
    def fill_mask(self, text: str, top_k: int = 5) -> "list[list[MaskPrediction]]": ...
    @overload
    def fill_mask(self, text: list[str], top_k: int = 5) -> "list[list[list[MaskPrediction]]]": ...

    def fill_mask(self, text: str | list[str], top_k: int = 5) -> Any:
        """The most probable words for each [MASK] in a text, with their probabilities; for a list of texts a list."""
        from regard.inference.fill_mask import fill_masks

        return fill_masks(self, [text], top_k)[0] if isinstance(text, str) else fill_masks(self, text, top_k)

    @overload
    def answer_question(self, question: str, context: str) -> "AnswerText": ...
    @overload
    def answer_question(self, question: list[str], context: str | list[str]) -> "list[AnswerText]": ...

    def answer_question(self, question: str | list[str], context: str | list[str]) -> Any:
        """Extractive question answering: the span of the context that answers a question, empty where there is none.
        Several questions give a list, with one context for all or one for each."""
        from regard.inference.question_answering import answer_questions, pair_contexts

        found = answer_questions(self, pair_contexts([question] if isinstance(question, str) else question, context))
        return found[0] if isinstance(question, str) else found

    def classify(
        self, inputs: Sequence[Any], pairs: Sequence[str] | None = None, *, top_k: int | None = None
    ) -> list[Any]:
        """Classify each input: the probability of every class by name, the most probable first, at most `top_k`; or a
        number.

        Inputs are texts (with a second text each in `pairs`), or images, sounds and series as paths, arrays or tensors,
        images of PIL, sounds as (samples, rate); or records as dicts, such as graphs. A file of records gives a result
        for each record.
        """
        from regard.inference.classification import classify_inputs

        return classify_inputs(self, inputs, pairs, top_k=top_k)

    def likelihoods(self, texts: Sequence[str]) -> "list[TextLikelihood]":
        """Score texts: the log-probability of every token given those before it, their sum, and the perplexity."""
        from regard.inference.likelihood import score_texts

        return score_texts(self, texts)

    def choose_label(self, prompt: str, labels: Sequence[str], **settings: Any) -> dict[str, float]:
        """Zero-shot classification: the probability of each label after the prompt, the most probable first; scored per
        label, token or character (`score_per`), corrected by a `calibration_prompt` if there is one."""
        from regard.inference.likelihood import rank_labels

        return rank_labels(self, [prompt], labels, **settings)[0]

    @overload
    def tag(self, text: str, *, entities: bool = False) -> "list[TaggedSpan]": ...
    @overload
    def tag(self, text: list[str], *, entities: bool = False) -> "list[list[TaggedSpan]]": ...

    def tag(self, text: str | list[str], *, entities: bool = False) -> Any:
        """Token classification: every word of a text with its label, or the `entities` of words with B- and I- labels;
        for a list of texts a list."""
        from regard.inference.token_classification import tag_texts

        found = tag_texts(self, [text] if isinstance(text, str) else text, entities=entities)
        return found[0] if isinstance(text, str) else found

    def forecast(self, table: Any, **settings: Any) -> "ForecastResult":
        """Forecast the rows after the last one of a table: the path of a file, or numbers (rows, columns). Settings
        override those of the training task: date, columns, gaps."""
        from regard.inference.forecasting import forecast_table

        return forecast_table(self, table, **settings)

    def caption(self, pictures: Sequence[Any], **settings: Any) -> list[str]:
        """Caption each image or sound, by beam search; sampled, if a temperature is given."""
        from regard.inference.images import caption_images

        return caption_images(self, pictures, **settings)

    def generate_images(self, texts: Sequence[str], **settings: Any) -> Tensor:
        """Generate an image for each text, bytes (B, C, rows, columns)."""
        from regard.inference.images import generate_images

        return generate_images(self, texts, **settings)

    def align(self, source: str, target: str | Sequence[int] | None = None, layer: int | None = None) -> "Alignment":
        """Cross-attention alignment: how much each target token attends to each source token.

        The target is a text or ids; by default the model's own translation. `layer` is one of the decoder's, by default
        the last but one; its heads are averaged.
        """
        from regard.inference.translation import align_translation

        return align_translation(self, source, target, layer)

    def save(self, path: str | Path) -> None:
        """Save weights, config and tokenizer as a folder, in the format of `transformers` where the family has one.

        Adapters are merged in the saved copy, and stay separate in this model.
        """
        from regard.hub import write_folder
        from regard.native.quantize import refuse_packed

        refuse_packed(self, "saved")
        write_folder.save_model(
            Path(path),
            self,
            self.tokenizer,
            self.context,
            target=self.target_tokenizer,
            begin=self.decoder_start_id,
            task=self.task,
            origin=self.source_folder,
        )

    def adapt(self, adapter: str | Path | config.LoRA) -> Self:
        """Attach LoRA adapters: those in a folder (`peft`'s, or a run's), or new ones. Only they are trainable then."""
        from regard.hub import peft_load

        if isinstance(adapter, config.LoRA):
            lora.add_adapters(self, adapter)
        else:
            peft_load.apply_adapter(self, peft_load.read_adapter(adapter))
        return self

    def merge(self) -> Self:
        """Merge the adapters into the weights: the same outputs, from an ordinary model."""
        lora.merge_adapters(self)
        return self

    def save_adapter(self, path: str | Path) -> None:
        """Save the adapters alone, with modules_to_save, as a folder that `peft` reads."""
        from regard.hub import peft_save

        peft_save.save_adapter(
            path, peft_save.collect_adapter(self, None if self.source_folder is None else str(self.source_folder.path))
        )

    def explain_generation(self, prompt: str, **settings: Any) -> "SampledExplanation | BeamExplanation":
        """Explain generation: the text of `generate` with the candidates of each step and the effects of the logits
        processors, or with `num_beams` the tree of all beams."""
        from regard.inference.explain_generation import explain_generation

        return explain_generation(self, prompt, **settings)

    # ---------------------------------------------------------------- from prompts to sessions

    def text_stream(self, prompts: list[str], settings: dict[str, Any]) -> TextStream:
        tokenizer, texts = self.encode_prompts(prompts)
        return TextStream(self.session(texts, **settings), tokenizer, prompts)

    def complete_by_beams(self, prompts: list[str], settings: dict[str, Any]) -> list[Completion]:
        began = time.perf_counter()
        tokenizer, texts = self.encode_prompts(prompts)
        found = self.beam_search(texts, **settings)
        seconds, ends = time.perf_counter() - began, self.generation_limits.ends
        rows = zip(prompts, texts, found, strict=True)
        return [completion_from_beams(prompt, text, each, tokenizer, ends, seconds) for prompt, text, each in rows]

    def encode_inputs(
        self, text: str | None, *, source: str | None = None, pair: str | None = None
    ) -> dict[str, Tensor]:
        """A text as the inputs of forward, by name, in one row: a prompt for a decoder; a text with its special tokens
        for an encoder; for an encoder-decoder the `source` and the target so far, by default the translation."""
        from regard.inference.text_inputs import encode_model_inputs

        return encode_model_inputs(self, text, source, pair)

    def encode_prompts(self, prompts: list[str]) -> tuple["Tokenizer", list[list[int]]]:
        """Prompts in ids, and the tokenizer of their continuation."""
        if (tokenizer := self.output_tokenizer) is None:
            raise config.DataError("prompt: this model has no tokenizer; set model.tokenizer, or give a tensor of ids")
        try:
            before = tokenizer.leading_ids if self.task is None else []  # a model trained here has no start token
            return tokenizer, [
                self.with_start_token(start_once(before, tokenizer.encode(prompt))) for prompt in prompts
            ]
        except config.DataError as problem:
            where = "" if str(problem).startswith("prompt") else "prompt: "
            raise config.DataError(f"{where}{problem}") from None

    def generate_ids(self, prompt: Tensor, settings: dict[str, Any]) -> Tensor:
        rows = torch.atleast_2d(prompt)
        if rows.dim() != 2 or not len(rows) or prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise config.DataError(f"prompt: expected ids (N,) or (B, N), got {prompt.dtype} {tuple(prompt.shape)}")
        texts = [self.with_start_token(row) for row in rows.tolist()]
        if is_beam_search(settings):
            new = [list(found[0].ids) for found in self.beam_search(texts, **settings)]
        else:
            new = self.collect_ids(self.session(texts, **{"stop": ()} | settings))
        longest = max(map(len, new))
        full = [row + row[-1:] * (longest - len(row)) for row in new]
        made = torch.tensor(full, dtype=torch.long, device=prompt.device)
        return made[0] if prompt.dim() == 1 else made

    def collect_ids(self, session: DecodeSession) -> list[list[int]]:
        """All new ids of a session, row by row."""
        if session.c.stop:
            raise config.ConfigError("stop: stop strings need text; give the prompt as text, or use an end token")
        new: list[list[int]] = [[] for _ in session.texts]
        for ids in session:
            for row, id in zip(new, ids, strict=True):
                row += [] if id is None else [id]
        return new

    def beam_search(self, texts: list[list[int]], **settings: Any) -> list[list[BeamHypothesis]]:
        """The best continuations of each text in ids, by beam search, with their scores."""
        settings = canonical_settings(settings)
        sources = {name: settings.pop(name) for name in ("source", "source_real") if name in settings}
        texts = [[id for id in text if id != self.c.embed.pad_id] for text in texts]
        c = beam_search_params(
            self.default_settings(texts, self.generation_defaults.beam_search, settings.get("max_new_tokens"))
            | settings,
            self.output_tokenizer,
        )
        return beam_search(self, texts, c, self.generation_limits, **sources)

    def session(
        self, texts: list[list[int]], *, end_ids: frozenset[int] = frozenset(), **settings: Any
    ) -> DecodeSession:
        """A decode session in ids, whose steps can be observed and changed. `end_ids` are further end tokens."""
        settings, limits = canonical_settings(settings), self.generation_limits
        limits = replace(limits, ends=limits.ends | end_ids)
        given = {
            name: settings.pop(name) for name in ("source", "source_real", *SPECULATION_SETTINGS) if name in settings
        }
        c = sampling_params(self.default_settings(texts) | settings, self.output_tokenizer)
        kind = SpeculativeSession if wants_speculation(given) else DecodeSession
        return kind(self, texts, c, limits, **given, rules=self.constraints(c, len(texts), limits))

    def resume_session(self, path: str | Path) -> DecodeSession:
        """Load a saved session, which continues with the same ids."""
        from regard.generation.session_file import load_session

        return load_session(self, path, self.generation_limits)

    def constraints(
        self, c: config.SamplingParams, rows: int, limits: GenerationLimits | None = None
    ) -> list[TokenConstraint | None]:
        """One token constraint a row, where the settings have a regex or a JSON schema."""
        if c.regex is None and c.json_schema is None:
            return []
        from regard.generation.structured_output import build_constraint

        if self.output_tokenizer is None:
            raise config.ConfigError("regex: this model has no tokenizer, which gives the text of tokens; set "
                                     "model.tokenizer")  # fmt: skip
        limits = limits or self.generation_limits
        never = barred_tokens(self, limits)
        ends = frozenset(id for id in limits.ends if id < len(never) and not never[id])
        rule = build_constraint(c, self.output_tokenizer, len(never), ends)
        return [None if rule is None else rule.copy() for _ in range(rows)]

    def default_settings(
        self, texts: list[list[int]], overrides: dict[str, Any] | None = None, new: int | None = None
    ) -> dict[str, Any]:  # fmt: skip
        """The default settings of sampling or beam search, from the generation defaults of the folder.

        A limit of `new` tokens below the folder's minimum lowers that minimum.
        """
        self.generation_defaults.warn()
        longest = max(map(len, texts), default=0)
        most, least = (
            new or self.generation_defaults.max_new_tokens(longest),
            self.generation_defaults.min_new_tokens(longest),
        )
        least = least if most is None else min(least, most - 1)
        overrides = self.generation_defaults.sampling if overrides is None else overrides
        return {
            **overrides,
            **({} if most is None else {"max_new_tokens": most}),
            **({"min_new_tokens": least} if least else {}),
        }

    @property
    def generation_limits(self) -> GenerationLimits:
        defaults = self.generation_defaults
        own = frozenset(id for id in (self.special_token_id("eos"), self.c.embed.eos_id) if id is not None)
        return GenerationLimits(
            context=self.context, known=None if self.output_tokenizer is None else len(self.output_tokenizer),
            ends=own | defaults.ends, never=defaults.suppress_ids, begin=defaults.begin_suppress_ids,
            first=defaults.forced_bos, last=defaults.forced_eos,
        )  # fmt: skip

    def with_start_token(self, ids: list[int]) -> list[int]:
        """An empty prompt becomes the start token, or the end token where there is no other."""
        first = next(
            (id for id in (self.special_token_id("bos"), self.special_token_id("eos")) if id is not None), None
        )
        if not ids and first is None:
            raise config.DataError("prompt: it is empty, and the tokenizer has no start or end token to begin from; "
                                   "give it something to continue, if only a line break")  # fmt: skip
        return ids if ids or first is None else [first]

    def special_token_id(self, name: str) -> int | None:
        return None if self.output_tokenizer is None else self.output_tokenizer.special_ids.get(name)

    @property
    def output_tokenizer(self) -> "Tokenizer | None":
        """The tokenizer of generated text."""
        return self.tokenizer if self.target_tokenizer is None else self.target_tokenizer


@overload
def build_model(c: config.Transformer) -> Model: ...
@overload
def build_model(c: config.DualEncoder) -> DualEncoderModel: ...


def build_model(c: config.Transformer | config.DualEncoder) -> Model | DualEncoderModel:
    """Build a model with new weights from its config."""
    if isinstance(c, config.DualEncoder):
        return DualEncoderModel(c)
    if not isinstance(c, config.Transformer):
        raise TypeError(f"build takes a config, got {c!r}; regard.preset('gpt2') is one")
    return Model(c)
