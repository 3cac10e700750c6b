"""Config of text tasks: what a model is trained for, and the columns of the data that it reads.

kind       reads                        predicts                                         a model with
next       text                         the next token, at every position                causal, head vocabulary
masked     text                         the masked tokens (masked LM)                    head vocabulary (or both)
translate  source, target               the target, token by token                       an encoder beside it
spans      text                         the spans that were cut out (T5)                 an encoder beside it
infill     text                         the whole text, from one with holes (BART)       an encoder beside it
prefix     text                         the continuation (prefix LM)                     an encoder beside it
classify   text, pair, label            a class                                          head pooled
regress    text, pair, label            a number                                         head pooled
tag        words, labels                a class for every word                           head each
answer     question, context, answer    the span of the context that answers             head each
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

DecoderStart = Literal["auto", "start", "pad", "end"]  # the special token before a target


# ---------------------------------------------------------------- language


@config_class
class NextToken:
    """The next token at every place at once."""

    kind: Literal["next"] = "next"
    text: str = "text"

    def __post_init__(self) -> None:
        check_columns(text=self.text)


@config_class
class MaskedLM:
    """Some tokens hidden, to be told from both sides (BERT: Devlin et al. 2019).

    Of the tokens a part of `rate` is chosen; of these a part of `mask` becomes the mask token, of `random` any other
    token, and the rest stays as it is. `whole_words` chooses all pieces of a word or none. With `next_sentence` the
    text is a document, a sentence a line (or a list of them), and the model also tells whether two parts follow each
    other.
    """

    kind: Literal["masked"] = "masked"
    text: str = "text"
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    whole_words: bool = False
    next_sentence: bool = False

    def __post_init__(self) -> None:
        check_columns(text=self.text)
        check_open_fraction(rate=self.rate)
        check_minimum(0, mask=self.mask, random=self.random)
        if self.mask + self.random > 1:
            raise ConfigError(f"random: {self.random} and mask {self.mask} are together more than 1")


# ---------------------------------------------------------------- encoder-decoders


@config_class
class Translation:
    """One text from another, word by word, each word told what stood before it (teacher forcing).

    `smoothing` gives that part of the certainty to all other words (Vaswani et al. 2017). `begin` is the special token
    that a target begins with: auto is the tokenizer's start, or pad (T5, Marian), or end.
    """

    kind: Literal["translate"] = "translate"
    source: str = "source"
    target: str = "target"
    smoothing: float = 0.1
    begin: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(source=self.source, target=self.target)
        check_label_smoothing(self.smoothing)


@config_class
class SpanCorruption:
    """Spans of about `mean` tokens cut out, a numbered sentinel for each; they are told one after the other (T5).

    A part of `rate` of the tokens goes. Sentinels are the tokenizer's <extra_id_0>, <extra_id_1>, ... (Raffel et al.
    2020); one that has none gets as many as are said here.
    """

    kind: Literal["spans"] = "spans"
    text: str = "text"
    rate: float = 0.15
    mean: float = 3.0
    sentinels: int = 100
    begin: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(text=self.text)
        check_open_fraction(rate=self.rate)
        check_minimum(1, mean=self.mean)
        check_minimum(2, sentinels=self.sentinels)


@config_class
class TextInfilling:
    """Spans of Poisson(`mean`) tokens, one mask for each whatever its length, none included; all is told (BART)."""

    kind: Literal["infill"] = "infill"
    text: str = "text"
    rate: float = 0.3
    mean: float = 3.0
    begin: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(text=self.text)
        check_open_fraction(rate=self.rate)
        check_minimum(1, mean=self.mean)


@config_class
class PrefixLM:
    """A text cut at a random place: the encoder reads what is before, the decoder tells what is after."""

    kind: Literal["prefix"] = "prefix"
    text: str = "text"
    begin: DecoderStart = "auto"

    def __post_init__(self) -> None:
        check_columns(text=self.text)


# ---------------------------------------------------------------- what a text is, and where


@config_class
class Classification:
    """Which of the `classes` a text is, or a pair of texts; without classes they are found in the training data."""

    kind: Literal["classify"] = "classify"
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(text=self.text, pair=self.pair, label=self.label)
        check_classes(self.classes)


@config_class
class Regression:
    """A number for a text, or for a pair of texts."""

    kind: Literal["regress"] = "regress"
    text: str = "text"
    pair: str | None = None
    label: str = "label"

    def __post_init__(self) -> None:
        check_columns(text=self.text, pair=self.pair, label=self.label)


@config_class
class TokenClassification:
    """A class for every word: two lists, or two strings with spaces between. A word's first piece carries its label."""

    kind: Literal["tag"] = "tag"
    words: str = "words"
    labels: str = "labels"
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_columns(words=self.words, labels=self.labels)
        check_classes(self.classes)


@config_class
class QuestionAnswering:
    """Where in the context the answer to a question stands (SQuAD: Rajpurkar et al. 2016).

    `start` is the column with the answer's first character; none: where it stands first. An empty answer: there is
    none. A context too long to be read at once is read in windows, `stride` tokens apart; an answer has at most
    `longest` tokens.
    """

    kind: Literal["answer"] = "answer"
    question: str = "question"
    context: str = "context"
    answer: str = "answer"
    start: str | None = "start"
    stride: int = 128
    longest: int = 30

    def __post_init__(self) -> None:
        check_columns(question=self.question, context=self.context, answer=self.answer, start=self.start)
        check_minimum(1, stride=self.stride, longest=self.longest)


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
