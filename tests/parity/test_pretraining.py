"""BERT as it was trained: a word for every token and a yes or no for the pair, from one model."""

import torch
import transformers as hf
from parity.families import LENGTH, B, D, F, H, N, V, bert, ids
from parity.tolerance import assert_near, randomise

from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

MORE = """
bert.pooler.dense.{w}        head.pooling.dense.{w}
cls.seq_relationship.{w}     head.pooling.out.{w}
"""


def test_both_heads_of_pre_training_are_equal():
    theirs = hf.BertForPreTraining(
        hf.BertConfig(
            vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F,
            max_position_embeddings=LENGTH, pad_token_id=0,
        )
    ).eval()  # fmt: skip
    randomise(theirs)
    _, c = bert()
    ours = Transformer(C.Transformer(embed=c.embed, trunk=c.trunk, head=C.PretrainingHead())).eval()
    known = [name_table.NameRow(row.theirs, row.ours.replace("head.", "head.lm."), row.transform)
             for row in name_table.load_name_table("bert")]  # fmt: skip
    name_table.load_tensors(ours, theirs.state_dict(), [*known, *name_table.parse_rows(MORE)])
    words, segment = ids(N), torch.randint(2, (B, N))
    want = theirs(input_ids=words, token_type_ids=segment)

    tokens, whole = ours(words, segment=segment)

    assert_near(tokens, want.prediction_logits)
    assert_near(whole, want.seq_relationship_logits)
    assert sum(w.numel() for w in ours.parameters()) == sum(w.numel() for w in theirs.parameters())
