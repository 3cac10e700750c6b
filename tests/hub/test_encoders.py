"""BERT and its relatives: what is heard of them and what is refused, which class a model is, names of older files."""

import json
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hub.encoder_cases import albert, bert, distilbert, electra, roberta
from hub.published import pair, quiet
from parity.tolerance import assert_near
from safetensors.torch import load_file, save_file

import regard
from regard import config as C
from regard.hub.families.registry import explain_all, match_family, parse_hf_config

BOTH = C.PretrainingHead()
WORDS = C.LMHead(transform=True, bias=True)
PRESETS = [
    ("bert-base", BOTH, "BertForPreTraining"),
    ("bert-base", WORDS, "BertForMaskedLM"),
    ("bert-base", C.PretrainingHead(lm=C.NoHead(), pooling=C.PoolingHead(dense=True)), "BertModel"),
    ("bert-large", C.PoolingHead(dense=True, out=3), "BertForSequenceClassification"),
    ("roberta-base", WORDS, "RobertaForMaskedLM"),
    ("roberta-base", C.TokenHead(out=9), "RobertaForTokenClassification"),
    ("distilbert", C.NoHead(), "DistilBertModel"),
    ("distilbert", C.PoolingHead(dense=True, activation="relu", out=2), "DistilBertForSequenceClassification"),
    ("albert-base", BOTH, "AlbertForPreTraining"),
    ("electra-small", C.NoHead(), "ElectraModel"),
    ("electra-small", C.TokenHead(out=1, dense=True), "ElectraForPreTraining"),
    ("electra-small", C.PoolingHead(dense=True, activation="gelu", out=2), "ElectraForSequenceClassification"),
]


@pytest.mark.parametrize("preset, head, architecture", PRESETS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_preset_with_a_head_is_a_class_of_its_family(preset, head, architecture):
    found = match_family(replace(regard.preset(preset), head=head))

    assert found is not None and found.architecture == architecture


@pytest.mark.parametrize(
    "wanted", ["BertForTokenClassification", "BertForQuestionAnswering", "ElectraForTokenClassification"]
)
def test_of_classes_with_one_head_the_wanted_one_is_it(wanted):
    found = match_family(replace(regard.preset("bert-base"), head=C.TokenHead(out=2)), wanted)

    assert found is not None and found.architecture == wanted


NOT = [
    ("bert-base", "roberta", "pad_token_id"),  # which counts places from the id after padding's
    ("roberta-base", "bert", "trunk.position.length is 512, where BERT has 514"),
    ("distilbert", "bert", "type_vocab_size"),
    ("bert-base", "albert", "embedding_size"),
    ("electra-small", "albert", "trunk.share_layers"),
    ("electra-small", "bert", "trunk.embed_dim"),
]


@pytest.mark.parametrize("preset, family, why", NOT)
def test_a_relative_is_told_apart_by_what_differs(preset, family, why):
    assert why in explain_all(replace(regard.preset(preset), head=WORDS))[family]


def test_padding_elsewhere_than_before_the_first_place_is_a_reason_against_roberta():
    c = replace(regard.preset("roberta-base"), head=WORDS)

    assert "embed.pad_id is 0" in explain_all(replace(c, embed=replace(c.embed, pad_id=0)))["roberta"]
    assert explain_all(replace(c, embed=replace(c.embed, pad_id=1)))["roberta"] == ""


# ---------------------------------------------------------------- what is heard


def test_places_of_roberta_begin_after_padding():
    position = parse_hf_config(roberta(pad_token_id=6).config.to_dict(), "config.json").config.trunk.position

    assert (position.length, position.offset) == (80 - 7, 7)


@pytest.mark.parametrize("case, activation", [(roberta, "gelu"), (bert, None), (albert, None), (distilbert, None)])
def test_the_layer_before_words_has_its_own_activation_in_roberta_alone(case, activation):
    key = "activation" if case is distilbert else "hidden_act"
    said = case(**{key: "relu"}).config.to_dict() | {"architectures": None}

    assert parse_hf_config(said, "config.json").config.head.activation == activation


REFUSED = [
    (albert, {"num_hidden_groups": 2}, ("num_hidden_groups", "2", "only have 1")),
    (albert, {"inner_group_num": 3}, ("inner_group_num", "3", "only have 1")),
    (albert, {"embedding_size": 36}, ("embedding_size", "36", "hidden_size")),
    (albert, {"tie_word_embeddings": False}, ("tie_word_embeddings", "false")),
    (bert, {"tie_word_embeddings": False}, ("tie_word_embeddings", "false")),
    (bert, {"is_decoder": True}, ("is_decoder", "true")),
    (bert, {"add_cross_attention": True}, ("add_cross_attention", "true")),
    (bert, {"position_embedding_type": "relative_key"}, ("position_embedding_type", "relative_key", "absolute")),
    (bert, {"type_vocab_size": 0}, ("type_vocab_size", "0", "whole number")),
    (bert, {"hidden_act": "mish"}, ("hidden_act", "mish", "gelu")),
    (bert, {"num_attention_heads": 5}, ("36", "5", "divisible")),
    (bert, {"architectures": ["BertForMultipleChoice"]}, ("architectures", "BertForMaskedLM")),
    (bert, {"architectures": ["BertForQuestionAnswering"], "id2label": {"0": "a", "1": "b", "2": "c"}},
     ("id2label", "two labels")),
    (bert, {"architectures": ["BertForTokenClassification"], "id2label": ["a"]}, ("id2label", "table")),
    (roberta, {"pad_token_id": 80}, ("pad_token_id", "80", "80")),
    (roberta, {"pad_token_id": -1}, ("pad_token_id", "-1")),
    (roberta, {"pad_token_id": "1"}, ("pad_token_id", "whole number")),
    (distilbert, {"dim": None}, ("dim", "missing")),
    (electra, {"embedding_size": 0}, ("embedding_size", "0")),
]  # fmt: skip


@pytest.mark.parametrize("case, said, words", REFUSED, ids=lambda one: next(iter(one), "") if type(one) is dict else "")
def test_what_we_cannot_say_is_refused_by_the_name_of_its_key(case, said, words):
    with pytest.raises(C.DataError) as error:
        parse_hf_config(case().config.to_dict() | said, "folder/config.json")

    for word in ("folder/config.json", *words):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_body_does_not_ask_whether_words_are_tied():
    said = bert().config.to_dict() | {"architectures": ["BertModel"], "tie_word_embeddings": False}

    assert parse_hf_config(said, "config.json").config.head.kind == "pretraining"


# ---------------------------------------------------------------- files


def rewritten(folder, change):
    """The weights of a folder under other names, or with others beside them."""
    state = load_file(folder / "model.safetensors")
    save_file(change(state), folder / "model.safetensors")


def test_a_file_of_before_has_gamma_and_beta_and_its_places_counted(tmp_path):
    of = pair(bert, tmp_path / "theirs")
    ids = torch.arange(3, 12)[None]

    def older(state):
        named = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
                 for name, x in state.items()}  # fmt: skip
        return named | {"bert.embeddings.position_ids": torch.arange(80)[None]}

    rewritten(of.folder, older)
    assert_near(regard.load(of.folder, device="cpu")(ids), of.theirs(ids).logits)


def test_heads_that_the_class_does_not_have_are_left_aside_and_told(tmp_path):
    """As bert-base-uncased is published: a masked language model with the pooler and the pairs of its training."""
    of = pair(lambda: bert(hf.BertForPreTraining), tmp_path / "theirs")
    said = json.loads((of.folder / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (of.folder / "config.json").write_text(json.dumps(said))
    ids = torch.arange(3, 12)[None]
    with pytest.warns(UserWarning, match=r"bert\.pooler\.dense\.bias.* is of another head"):
        ours = regard.load(of.folder, device="cpu")

    assert_near(ours(ids), of.theirs(ids).prediction_logits)


def test_a_body_may_be_stored_with_or_without_its_prefix(tmp_path):
    of = pair(lambda: bert(hf.BertModel), tmp_path / "theirs")
    ids = torch.arange(3, 12)[None]
    rewritten(of.folder, lambda state: {f"bert.{name}": x for name, x in state.items()})

    tokens, whole = regard.load(of.folder, device="cpu")(ids)
    assert_near(tokens, of.theirs(ids).last_hidden_state)
    assert_near(whole, of.theirs(ids).pooler_output)


@pytest.mark.parametrize("case", [bert, roberta, albert])
def test_a_tied_table_may_be_stored_twice(case, tmp_path):
    of = pair(case, tmp_path / "theirs")
    rewritten(of.folder, lambda state: {name: x.clone() for name, x in of.theirs.state_dict().items()})
    ids = torch.arange(3, 12)[None]

    assert_near(regard.load(of.folder, device="cpu")(ids), of.theirs(ids).logits)


def test_labels_are_said_as_many_as_there_are_answers(tmp_path):
    c = replace(regard.preset("bert-base", dim=24, depth=1, heads=3, vocab=31), head=C.PoolingHead(dense=True, out=5))
    regard.build(c).save(tmp_path / "five")
    with quiet():
        theirs = hf.BertForSequenceClassification.from_pretrained(tmp_path / "five")

    assert theirs.config.num_labels == 5
