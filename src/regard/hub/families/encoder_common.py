"""What BERT and its relatives say alike: post-norm, a norm after the embeddings, learned places; and their heads."""

from dataclasses import replace
from typing import Any

from regard import config
from regard.hub.families.settled import of_blocks
from regard.hub.families.theirs import ACTIVATIONS, Theirs, count, say_labels, their_word


def say_encoder(c: config.Transformer) -> dict[str, Any]:
    trunk, head = of_blocks(c), c.head
    assert isinstance(c.embed, config.Embed)  # another front end is no encoder of text
    length, offset = say_places(trunk.position)
    return {
        "vocab_size": c.embed.vocab,
        "hidden_size": trunk.dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads[0],
        "intermediate_size": trunk.mlp.hidden or 4 * trunk.dim,
        "hidden_act": their_word(trunk.mlp.activation, ACTIVATIONS),
        "hidden_dropout_prob": trunk.dropout.sublayer,
        "attention_probs_dropout_prob": trunk.dropout.attention,
        "max_position_embeddings": length + offset,
        "type_vocab_size": c.embed.segments,
        "layer_norm_eps": trunk.norm.eps,
        "tie_word_embeddings": ties(head),
        **({"add_pooling_layer": False} if isinstance(head, config.Bare) else {}),  # for as long as it is heard back
        **say_labels(head.pooled if isinstance(head, config.Both) else head),
    }


def say_places(c: config.Position) -> tuple[int, int]:
    """How many learned places in a line, and how many before the first; a line is all that they have."""
    return (c.length, c.offset) if isinstance(c, config.Learned) and isinstance(c.length, int) else (512, 0)


def ties(c: config.Head) -> bool:
    """Whether words go out by the table they come in by; without such a head yet, whoever adds one would have it so."""
    words = c.vocabulary if isinstance(c, config.Both) else c
    return words.tied if isinstance(words, config.Vocabulary) else True


def hear_encoder(theirs: Theirs, head: config.Head, offset: int = 0, **trunk: Any) -> config.Transformer:
    """`offset` places come before the first; `trunk` is what else a family has."""
    theirs.only("is_decoder", False)
    theirs.only("add_cross_attention", False)
    theirs.only("position_embedding_type", "absolute")
    activation = theirs.word("hidden_act", ACTIVATIONS, "gelu")
    rate = theirs.number("hidden_dropout_prob", 0.1)
    return config.Transformer(
        embed=config.Embed(vocab=theirs.whole("vocab_size"), segments=theirs.whole("type_vocab_size", 2)),
        trunk=config.Trunk(
            dim=theirs.whole("hidden_size"),
            depth=theirs.whole("num_hidden_layers"),
            position=config.Learned(length=theirs.whole("max_position_embeddings", 512) - offset, offset=offset),
            attention=config.Attention(heads=theirs.whole("num_attention_heads")),
            mlp=config.MLP(hidden=theirs.whole("intermediate_size"), activation=activation),
            norm=config.Norm(eps=theirs.number("layer_norm_eps", 1e-12)),
            place="post",
            embed_norm=True,
            dropout=config.Dropout(
                embed=rate, attention=theirs.number("attention_probs_dropout_prob", 0.1), sublayer=rate
            ),
            **trunk,
        ),
        head=head,
        init="bert",
    )


# ---------------------------------------------------------------- heads


def body(theirs: Theirs) -> config.Head:
    """Every token's vector, and one for the whole where there is a pooler: what classes called Model answer."""
    if not theirs.flag("add_pooling_layer", True):
        return config.Bare()
    return config.Both(vocabulary=config.Bare(), pooled=config.Pooled(dense=True))


def words(theirs: Theirs) -> config.Vocabulary:
    """Logits over the vocabulary, after a layer with the activation and the norm that the others have."""
    return config.Vocabulary(transform=True, bias=True, tied=theirs.flag("tie_word_embeddings", True))


def tied_words(theirs: Theirs) -> config.Vocabulary:
    """Untied ones are refused where `transformers` would store two biases, one of them of no use to anybody."""
    theirs.only("tie_word_embeddings", True)
    return words(theirs)


def with_gelu(theirs: Theirs, head: config.Vocabulary) -> config.Vocabulary:
    """Gelu in the layer of a head, whatever the others have."""
    same = theirs.word("hidden_act", ACTIVATIONS, "gelu") == "gelu"
    return head if same else replace(head, activation="gelu")


def classes(theirs: Theirs) -> config.Pooled:
    """One of several classes for the whole, through the pooler or a layer like it."""
    return config.Pooled(dense=True, out=count(theirs))


def tags(theirs: Theirs) -> config.Head:
    """One of several classes for every token."""
    return config.Each(out=count(theirs))


def ends(theirs: Theirs) -> config.Head:
    """How well an answer begins and ends at every token."""
    if count(theirs) != 2:
        raise theirs.wrong("id2label", "expected two labels: an answer has a first and a last token")
    return config.Each(out=2)
