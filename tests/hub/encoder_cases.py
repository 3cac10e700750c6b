"""Encoders: BERT, RoBERTa, DistilBERT, ALBERT and ELECTRA, with all their heads."""

import transformers as hf
from hub.published import LENGTH, D, F, H, V

NARROW, LABELS = 20, 5
SIZES = dict(vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F,
             max_position_embeddings=LENGTH)  # fmt: skip


def bert(cls=hf.BertForMaskedLM, **said):
    return cls(hf.BertConfig(**SIZES | said))


def roberta(cls=hf.RobertaForMaskedLM, **said):
    return cls(hf.RobertaConfig(**SIZES | dict(layer_norm_eps=1e-5) | said))


def distilbert(cls=hf.DistilBertForMaskedLM, **said):
    sizes = dict(vocab_size=V, dim=D, n_layers=3, n_heads=H, hidden_dim=F, max_position_embeddings=LENGTH)
    return cls(hf.DistilBertConfig(**sizes | said))


def albert(cls=hf.AlbertForMaskedLM, **said):
    return cls(hf.AlbertConfig(**SIZES | dict(embedding_size=NARROW) | said))


def electra(cls=hf.ElectraForPreTraining, **said):
    return cls(hf.ElectraConfig(**SIZES | dict(embedding_size=NARROW) | said))


CASES = {
    "bert": bert,
    "bert body, three segments": lambda: bert(hf.BertModel, type_vocab_size=3, num_attention_heads=6),
    "bert body without a pooler": lambda: hf.BertModel(hf.BertConfig(**SIZES), add_pooling_layer=False),
    "bert words and pairs, relu": lambda: bert(hf.BertForPreTraining, hidden_act="relu", layer_norm_eps=1e-3),
    "bert pairs, padding is 5": lambda: bert(hf.BertForNextSentencePrediction, pad_token_id=5),
    "bert classes, gelu_new": lambda: bert(
        hf.BertForSequenceClassification, num_labels=LABELS, hidden_act="gelu_new", intermediate_size=D
    ),
    "bert tags, one layer": lambda: bert(hf.BertForTokenClassification, num_labels=LABELS, num_hidden_layers=1),
    "bert answers, silu": lambda: bert(hf.BertForQuestionAnswering, hidden_act="silu", num_attention_heads=1),
    "roberta": roberta,
    "roberta relu, padding is 4": lambda: roberta(hidden_act="relu", pad_token_id=4, type_vocab_size=1),
    "roberta body, padding is 0": lambda: roberta(hf.RobertaModel, pad_token_id=0, bos_token_id=1, layer_norm_eps=0.01),
    "roberta body without a pooler": lambda: hf.RobertaModel(hf.RobertaConfig(**SIZES), add_pooling_layer=False),
    "roberta classes": lambda: roberta(hf.RobertaForSequenceClassification, num_labels=LABELS),
    "roberta tags, quick_gelu": lambda: roberta(
        hf.RobertaForTokenClassification, num_labels=LABELS, hidden_act="quick_gelu", num_attention_heads=9
    ),
    "roberta answers": lambda: roberta(hf.RobertaForQuestionAnswering, type_vocab_size=3),
    "distilbert": distilbert,
    "distilbert untied, relu": lambda: distilbert(tie_word_embeddings=False, activation="relu"),
    "distilbert body, sinusoidal": lambda: distilbert(hf.DistilBertModel, sinusoidal_pos_embds=True, n_heads=6),
    "distilbert classes": lambda: distilbert(hf.DistilBertForSequenceClassification, num_labels=LABELS),
    "distilbert tags": lambda: distilbert(hf.DistilBertForTokenClassification, num_labels=LABELS, n_layers=1),
    "distilbert answers": lambda: distilbert(hf.DistilBertForQuestionAnswering, activation="gelu_new"),
    "albert": albert,
    "albert wide embeddings, relu": lambda: albert(embedding_size=D + 8, hidden_act="relu", num_hidden_layers=5),
    "albert words and order": lambda: albert(hf.AlbertForPreTraining, layer_norm_eps=1e-3),
    "albert body, three segments": lambda: albert(hf.AlbertModel, type_vocab_size=3, num_attention_heads=6),
    "albert classes": lambda: albert(hf.AlbertForSequenceClassification, num_labels=LABELS),
    "albert tags": lambda: albert(hf.AlbertForTokenClassification, num_labels=LABELS, hidden_act="gelu"),
    "albert answers": lambda: albert(hf.AlbertForQuestionAnswering, num_hidden_layers=1),
    "electra": electra,
    "electra as wide, relu": lambda: electra(embedding_size=D, hidden_act="relu"),
    "electra words": lambda: electra(hf.ElectraForMaskedLM),
    "electra words untied, relu": lambda: electra(hf.ElectraForMaskedLM, tie_word_embeddings=False, hidden_act="relu"),
    "electra body": lambda: electra(hf.ElectraModel, type_vocab_size=3, layer_norm_eps=1e-3),
    "electra classes": lambda: electra(hf.ElectraForSequenceClassification, num_labels=LABELS),
    "electra tags, as wide": lambda: electra(hf.ElectraForTokenClassification, num_labels=LABELS, embedding_size=D),
    "electra answers": lambda: electra(hf.ElectraForQuestionAnswering, num_attention_heads=6),
}
