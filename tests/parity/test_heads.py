"""Heads for tags and answers: the logits of the published models, from equal weights."""

import pytest
import torch
import transformers as hf
from parity.families import LENGTH, B, D, F, H, N, V, bert, ids, keep
from parity.tolerance import assert_near, gradients, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

SAID = dict(vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F,
            max_position_embeddings=LENGTH, pad_token_id=0)  # fmt: skip
# What each head is called there, and what is ours; everything else is BERT's own table.
HEADS = {
    "tags": (hf.BertForTokenClassification, dict(num_labels=5), C.TokenHead(out=5), "classifier.{w}   head.out.{w}"),
    "answers": (hf.BertForQuestionAnswering, {}, C.TokenHead(out=2), "qa_outputs.{w}   head.out.{w}"),
    "classes": (hf.BertForSequenceClassification, dict(num_labels=3), C.PoolingHead(dense=True, out=3),
                "bert.pooler.dense.{w}   head.dense.{w}\nclassifier.{w}   head.out.{w}"),
}  # fmt: skip


def pair(name):
    kind, more, head, rows = HEADS[name]
    theirs = kind(hf.BertConfig(**SAID, **more, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).eval()
    randomise(theirs)
    _, c = bert()
    ours = Transformer(C.Transformer(embed=c.embed, trunk=c.trunk, head=head)).eval()
    body = [row for row in name_table.load_name_table("bert") if not row.ours.startswith("head.")]
    name_table.load_tensors(ours, theirs.state_dict(), [*body, *name_table.parse_rows(rows)])
    return theirs, ours


def logits_of(said):
    """(B, N, 2) of an answer's two tables, (B, N, classes) or (B, classes) of the others."""
    return torch.stack([said.start_logits, said.end_logits], -1) if "start_logits" in said else said.logits


@pytest.mark.spec("S164")
@pytest.mark.parametrize("name", HEADS)
def test_logits_and_gradients_are_the_published_models(name):
    theirs, ours = pair(name)
    words, segment, real = ids(N), torch.randint(2, (B, N)), keep(N, "right")
    want = logits_of(theirs(input_ids=words, token_type_ids=segment, attention_mask=real.long()))
    found = ours(words, segment=segment, real=real)
    want, found = (x[real] if x.dim() == 3 else x for x in (want, found))
    for x in (want, found):
        (x * torch.randn(x.shape, generator=torch.Generator().manual_seed(7))).sum().backward()

    assert_near(found, want)
    assert_near(
        gradients(ours)["head.out.weight"],
        next(grad for label, grad in gradients(theirs).items() if label in ("classifier.weight", "qa_outputs.weight")),
        1e-4,
    )
    assert sum(w.numel() for w in ours.parameters()) == sum(w.numel() for w in theirs.parameters())


def test_a_head_of_no_width_is_refused():
    with pytest.raises(ValueError, match="out: 0 is less than 1"):
        C.TokenHead(out=0)
