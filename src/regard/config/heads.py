"""Config of output heads: LMHead, PoolingHead, TokenHead, PretrainingHead (LM and pooling together) and NoHead."""

from typing import Literal

from regard.config.errors import ConfigError
from regard.config.fields import check_choice, check_minimum, config_class
from regard.config.inputs.series import ForecastHead
from regard.config.trunk import ACTIVATIONS

SHAPES = ("tanh", *ACTIVATIONS)


def check_activation(name: str | None) -> None:
    if name is not None:
        check_choice(name, SHAPES, "activation")


@config_class
class LMHead:
    """LM head: logits over the vocabulary; `transform` is BERT's extra dense layer, activation and norm before them.

    Its `activation` defaults to that of the trunk's MLP. `vocab` is the number of logits if it differs from the
    embedding's: an image model never predicts its start token.
    """

    kind: Literal["lm"] = "lm"
    tied: bool = True
    bias: bool = False
    scale: float = 1.0
    transform: bool = False
    activation: str | None = None
    vocab: int | None = None

    def __post_init__(self) -> None:
        check_minimum(1, vocab=self.vocab)
        check_activation(self.activation)
        if self.tied and self.vocab is not None:
            raise ConfigError("vocab: a tied head has the embedding's; leave it out, or set tied to false")


@config_class
class PoolingHead:
    """Pooling head: one vector for the whole sequence, from `pooling`; `out` is the width of a final linear layer.

    `dense` is a layer before it as in BERT: a linear layer, then the `activation`. With several `classifiers`, each of
    the first tokens has its own final layer, and the output is their mean (DeiT: Touvron et al. 2021).
    """

    kind: Literal["pooling"] = "pooling"
    pooling: Literal["cls", "mean", "last", "eos"] = "cls"
    dense: bool = False
    activation: str = "tanh"
    out: int | None = None
    bias: bool = True
    classifiers: int = 1

    def __post_init__(self) -> None:
        check_minimum(1, out=self.out, classifiers=self.classifiers)
        check_activation(self.activation)
        if self.classifiers > 1 and (self.pooling != "cls" or self.dense or self.out is None):
            raise ConfigError(f"classifiers: {self.classifiers} output layers, one for each of the first tokens; "
                              "set out, set pooling to cls, and leave out dense")  # fmt: skip


@config_class
class NoHead:
    """No head: the output is the trunk's vectors."""

    kind: Literal["none"] = "none"


@config_class
class PretrainingHead:
    """BERT's pre-training head: logits for every token and one pooled vector; the output is the pair.

    With a `lm` of kind "none" the first part is every token's vector instead of logits.
    """

    kind: Literal["pretraining"] = "pretraining"
    lm: LMHead | NoHead = LMHead(transform=True, bias=True)
    pooling: PoolingHead = PoolingHead(dense=True, out=2)


@config_class
class TokenHead:
    """Token head: `out` numbers for every token, such as tag classes, or scores of an answer's start and end (2).

    `dense` is a layer before them: a linear layer, then the `activation`.
    """

    kind: Literal["token"] = "token"
    out: int = 2
    bias: bool = True
    dense: bool = False
    activation: str = "gelu"

    def __post_init__(self) -> None:
        check_minimum(1, out=self.out)
        check_activation(self.activation)


Head = LMHead | PoolingHead | PretrainingHead | TokenHead | NoHead | ForecastHead
