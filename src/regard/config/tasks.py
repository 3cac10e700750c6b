"""Config of text tasks: what a model is trained for, and the columns of the data that it reads.

kind                  reads                      predicts                                    a model with
next_token            input                      the next token, at every position           causal, head lm
masked_lm             input                      the masked tokens (masked LM)               head lm (or pretraining)
translation           source, target             the target, token by token                  an encoder
span_corruption       input                      the masked spans (T5)                       an encoder
text_infilling        input                      the whole text, from one with masks (BART)  an encoder
prefix_lm             input                      the continuation (prefix LM)                an encoder
classification        input, input_pair, label   a class                                     head pooling
regression            input, input_pair, label   a number                                    head pooling
token_classification  words, labels              a class for every word                      head token
question_answering    question, context, answer  the span of the context that answers        head token
"""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import (
    check_classes,
    check_columns,
    check_label_smoothing,
    check_minimum,
    check_open_fraction,
    config_class,
)
from regard.config.tasks_nontext import Captioning, Contrastive, Forecasting, NextPixel, NodeClassification, TextToImage

DecoderStart = Literal["auto", "bos", "pad", "eos"]  # the special token before a target


# ---------------------------------------------------------------- language modelling


@config_class
class NextToken:
    """Next-token prediction at every position."""

    kind: Literal["next_token"] = "next_token"
    input: str = "text"

    def __post_init__(self) -> None:
        check_columns(input=self.input)


@config_class
class MaskedLM:
    """Masked LM: predict masked tokens from both sides (BERT: Devlin et al. 2019).

    A fraction `rate` of the tokens is selected; of these a fraction `mask_replace_prob` becomes the mask token,
    `random_replace_prob` any other token, and the rest stays unchanged. `whole_words` selects all tokens of a word or
    none. With `next_sentence` the text is a document with a sentence on each line (or a list), and the model also
    predicts whether two parts are consecutive.
    """

    kind: Literal["masked_lm"] = "masked_lm"
    input: str = "text"
    rate: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    whole_words: bool = False
    next_sentence: bool = False

    def __post_init__(self) -> None:
        check_columns(input=self.input)
        check_open_fraction(rate=self.rate)
        check_minimum(0, mask_replace_prob=self.mask_replace_prob, random_replace_prob=self.random_replace_prob)
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ConfigError(
                f"random_replace_prob: {self.random_replace_prob} and mask_replace_prob {self.mask_replace_prob} are "
                "together more than 1"
            )


# ---------------------------------------------------------------- encoder-decoders


@config_class
class Translation:
    """Translation of one text to another, token by token, with teacher forcing.

    `label_smoothing` moves that fraction of the target probability to all tokens (Vaswani et al. 2017). `decoder_start`
    is the special token before a target: auto is the tokenizer's start, or pad (T5, Marian), or end.
    """

    kind: Literal["translation"] = "translation"
    source: str = "source"
    target: str = "target"
    label_smoothing: float = 0.1
    decoder_start: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(source=self.source, target=self.target)
        check_label_smoothing(self.label_smoothing)


@config_class
class SpanCorruption:
    """Span corruption (T5): spans of about `mean_span_length` tokens are removed, each replaced by a numbered sentinel,
    and listed in the target.

    A fraction `rate` of the tokens is removed. Sentinels are the tokenizer's <extra_id_0>, <extra_id_1>, ... (Raffel et
    al. 2020); a tokenizer without them gets as many as configured here.
    """

    kind: Literal["span_corruption"] = "span_corruption"
    input: str = "text"
    rate: float = 0.15
    mean_span_length: float = 3.0
    sentinels: int = 100
    decoder_start: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(input=self.input)
        check_open_fraction(rate=self.rate)
        check_minimum(1, mean_span_length=self.mean_span_length)
        check_minimum(2, sentinels=self.sentinels)


@config_class
class TextInfilling:
    """Text infilling (BART): spans of Poisson(`mean_span_length`) tokens, also empty ones, are each replaced by one
    mask; the target is the whole text."""

    kind: Literal["text_infilling"] = "text_infilling"
    input: str = "text"
    rate: float = 0.3
    mean_span_length: float = 3.0
    decoder_start: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(input=self.input)
        check_open_fraction(rate=self.rate)
        check_minimum(1, mean_span_length=self.mean_span_length)


@config_class
class PrefixLM:
    """Prefix LM: a text is split at a random position; the encoder reads the first part, the decoder predicts the
    second."""

    kind: Literal["prefix_lm"] = "prefix_lm"
    input: str = "text"
    decoder_start: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(input=self.input)


# ---------------------------------------------------------------- classification and span extraction


@config_class
class Classification:
    """Text classification into one of `classes`, for a text or a pair; without classes they come from the training
    data."""

    kind: Literal["classification"] = "classification"
    input: str = "text"
    input_pair: str | None = None
    label: str = "label"
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(input=self.input, input_pair=self.input_pair, label=self.label)
        check_classes(self.classes)


@config_class
class Regression:
    """Text regression: a number for a text or a pair."""

    kind: Literal["regression"] = "regression"
    input: str = "text"
    input_pair: str | None = None
    label: str = "label"

    def __post_init__(self) -> None:
        check_columns(input=self.input, input_pair=self.input_pair, label=self.label)


@config_class
class TokenClassification:
    """Token classification: a class for every word, as two lists or two strings with spaces. A word's first token
    carries its label."""

    kind: Literal["token_classification"] = "token_classification"
    words: str = "words"
    labels: str = "labels"
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(words=self.words, labels=self.labels)
        check_classes(self.classes)


@config_class
class QuestionAnswering:
    """Extractive question answering: the span of the context that answers (SQuAD: Rajpurkar et al. 2016).

    `answer_start` is the column with the answer's first character; none: its first occurrence. An empty answer means
    that there is none. A long context is read in windows, `doc_stride` tokens apart; an answer has at most
    `max_answer_tokens` tokens.
    """

    kind: Literal["question_answering"] = "question_answering"
    question: str = "question"
    context: str = "context"
    answer: str = "answer"
    answer_start: str | None = "start"
    doc_stride: int = 128
    max_answer_tokens: int = 30

    def __post_init__(self) -> None:
        check_columns(question=self.question, context=self.context, answer=self.answer, answer_start=self.answer_start)
        check_minimum(1, doc_stride=self.doc_stride, max_answer_tokens=self.max_answer_tokens)


Task = (
    NextToken
    | MaskedLM
    | Translation
    | SpanCorruption
    | TextInfilling
    | PrefixLM
    | Classification
    | Regression
    | TokenClassification
    | QuestionAnswering
    | Forecasting
    | NodeClassification
    | NextPixel
    | Contrastive
    | Captioning
    | TextToImage
)
