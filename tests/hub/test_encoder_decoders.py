"""Encoder-decoders in use: a folder with a tokenizer translates as `generate` does, and what cannot be is refused."""

import json
import re

import pytest
import tokenizers
import torch
import transformers as hf
from hub.encoder_decoder_cases import bart, marian, mbart, t5, whisper
from hub.published import V, pair, quiet
from parity.tolerance import assert_near, randomise
from tokenizers import models, pre_tokenizers, processors

import regard
from regard import config as C
from regard.generation.params import NO_DEFAULTS
from regard.hub.families.registry import FAMILIES, explain_mismatch, parse_hf_config

TEXTS = ["c d e f g", "h", "i j k l m n o p", "q r s t"]
NEW = 15


def words(pad: int, end: int) -> dict[str, int]:
    """A vocabulary of letters and pairs of them, with special tokens at their places."""
    letters = [chr(ord("a") + place) for place in range(26)]
    names = [*letters, *(a + b for a, b in zip(letters, letters[1:], strict=False))][: V - 4]
    special = {pad: "<pad>", end: "</s>", **({1: "<s>", 4: "<unk>"})}
    left = iter(names)
    return {special.get(place) or next(left): place for place in range(V)}


def folder(path, model, before: str = ""):
    """Their model with a tokenizer that puts an end, and for BART a start, around each text."""
    lively(model)
    model.eval().save_pretrained(path)
    known = words(model.config.pad_token_id, model.config.eos_token_id)
    inner = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(name, known[name]) for name in ("<s>", "</s>")]
    inner.post_processor = processors.TemplateProcessing(f"{before} $A </s>".strip(), special_tokens=special)
    roles = dict(pad_token="<pad>", eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    hf.PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(path)
    return path


@torch.no_grad()
def lively(model):
    """So far from its beginning that sources matter; nobody says one word again and again, and some texts end."""
    randomise(model)
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dim() == 2:
            weight.add_((0.3 if "embed" in name or "shared" in name else 0.1) * torch.randn_like(weight))
        if re.search(r"decoder.*(layer_norm|layers.1.final_layer_norm)\.weight$", name):
            last = weight
    last.neg_()  # whoever ties words and head hears an echo otherwise
    model.get_output_embeddings().weight[model.config.eos_token_id] *= 2


MADE = {
    "t5": t5,
    "t5 gated": lambda: t5(own=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": bart,
    "mbart": mbart,
    "marian": lambda: marian(forced_eos_token_id=None, bos_token_id=1),
    "bart that must begin and end": lambda: speaking(bart(), forced_bos_token_id=1, forced_eos_token_id=2),
    "mbart into a language": lambda: speaking(mbart(), forced_bos_token_id=9, forced_eos_token_id=2),
    "marian without padding": lambda: speaking(marian(bos_token_id=1), bad_words_ids=[[V - 1], [21], [7]]),
}


def speaking(model, **said):
    """With words of a generation_config.json."""
    model.generation_config.update(**said)
    return model


def generated(path, texts, **how):
    """What `generate` says: the ids after the start, up to the end token."""
    with quiet():
        model = hf.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float64).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    asked = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with quiet():
        made = model.generate(**asked, do_sample=False, max_new_tokens=NEW, **how)[:, 1:].tolist()
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    whole = [row[: row.index(end) + 1] if end in row else row for row in made]
    assert all(set(row[len(kept) :]) <= {pad, end} for row, kept in zip(made, whole, strict=True))
    return whole, [tokenizer.decode(row, skip_special_tokens=True) for row in whole]


@pytest.mark.spec("S057")
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", MADE)
def test_texts_are_translated_as_generate_does(name, num_beams, tmp_path):
    """In fp64 on both sides: they begin with the same token, end with the same, and differ in none."""
    torch.manual_seed(5)
    path = folder(tmp_path / "theirs", MADE[name](), "<s>" if name.startswith("bart") else "")
    ids, texts = generated(path, TEXTS, num_beams=num_beams)
    told = regard.load(path, device="cpu").double().translations(TEXTS, num_beams=num_beams, max_new_tokens=NEW)

    assert [list(one.ids) for one in told] == ids
    assert [one.text for one in told] == texts
    assert len({tuple(row) for row in ids}) > 1


@torch.no_grad()
def test_bart_classifies_a_source_that_it_reads_once_more_one_place_later():
    """Theirs makes the target by itself, and looks where the end of the source stands."""
    theirs = bart(hf.BartForSequenceClassification, num_labels=5, pad_token_id=0)
    randomise(theirs)
    source = torch.tensor([[1, 7, 8, 9, 2], [1, 7, 2, 0, 0]])
    want = theirs.eval()(input_ids=source, attention_mask=(source != 0).long()).logits
    c = parse_hf_config(theirs.config.to_dict() | {"architectures": ["BartForSequenceClassification"]}, "").config
    ours = regard.build(c).eval()
    regard.hub.name_table.load_tensors(
        ours, untied(theirs), regard.hub.name_table.load_name_table("bart", "BartForSequenceClassification")
    )
    target = torch.cat([torch.full((2, 1), 2), source[:, :-1]], 1)

    assert_near(ours(target, source=source, source_real=source != 0, real=source != 0), want)


def untied(model):
    """Each tensor once."""
    return {name: x for name, x in model.state_dict().items() if "embed_tokens" not in name}


def test_a_raw_sound_is_told_as_generate_tells_its_features(tmp_path):
    of = pair(lambda: whisper(num_mel_bins=23, max_source_positions=50), tmp_path, torch.float64)
    sound, begin = torch.randn(2, 9999) * torch.linspace(0, 1, 9999), torch.tensor([[3, 9], [3, 7]])
    hears = hf.WhisperFeatureExtractor(feature_size=23, chunk_length=1)
    features = hears(list(sound.numpy()), sampling_rate=16_000, return_tensors="pt").input_features.double()
    of.theirs.generation_config = hf.GenerationConfig(max_new_tokens=30, do_sample=False, decoder_start_token_id=3)
    with quiet():
        want = hf.GenerationMixin.generate(of.theirs, features, decoder_input_ids=begin)[:, 2:]
    of.ours.generation_defaults = NO_DEFAULTS  # no end, as there

    assert of.ours.generate(begin, source=sound, max_new_tokens=30, temperature=0).tolist() == want.tolist()
    assert want[0].tolist() != want[1].tolist()


# ---------------------------------------------------------------- what is said and what is refused


def said(model):
    return model.config.to_dict() | {"architectures": [type(model).__name__]}


def test_a_head_of_its_own_in_t5_is_heard_in_old_and_in_new_words():
    """Published 1.1 says that nothing is tied; transformers 5 says of the same that all is, and logits are loud."""
    new = said(t5(own=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
    newer = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act")
    old = {key: value for key, value in new.items() if key not in newer} | {"tie_word_embeddings": False}

    assert new["tie_word_embeddings"] and not new["scale_decoder_outputs"]
    assert parse_hf_config(new, "")[0] == parse_hf_config(old, "")[0]
    assert parse_hf_config(new, "")[0].head == C.LMHead(tied=False)


def test_a_published_t5_of_the_first_kind_is_heard_without_newer_words():
    newer = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "tie_word_embeddings", "feed_forward_proj")
    whole = said(t5())

    assert (
        parse_hf_config({key: value for key, value in whole.items() if key not in newer}, "")[0]
        == parse_hf_config(whole, "")[0]
    )


REFUSED = [
    (bart, {"tie_word_embeddings": False}, ("tie_word_embeddings", "true")),
    (bart, {"activation_function": "mish"}, ("activation_function", "mish")),
    (bart, {"encoder_layers": 0}, ("encoder_layers", "0")),
    (bart, {"d_model": 35}, ("35", "divisible")),
    (mbart, {"tie_word_embeddings": False}, ("tie_word_embeddings",)),
    (marian, {"d_model": None}, ("d_model", "missing")),
    (marian, {"decoder_vocab_size": V + 8}, ("decoder_vocab_size", str(V))),
    (t5, {"feed_forward_proj": "gated-mish", "dense_act_fn": None}, ("feed_forward_proj", "gated-mish", "relu")),
    (t5, {"dense_act_fn": "mish"}, ("dense_act_fn", "mish")),
    (t5, {"relative_attention_num_buckets": 2}, ("num_buckets", "2")),
    (t5, {"architectures": ["T5ForTokenClassification"]}, ("architectures", "T5EncoderModel")),
    (whisper, {"num_mel_bins": "many"}, ("num_mel_bins", "many")),
    (whisper, {"max_source_positions": 2**30}, ("max_seconds",)),
]  # fmt: skip


@pytest.mark.parametrize("make, wrong, words", REFUSED, ids=lambda one: str(one)[:50] if isinstance(one, dict) else "")
def test_what_we_cannot_say_is_refused_by_the_name_of_its_key(make, wrong, words):
    with pytest.raises(C.DataError) as error:
        parse_hf_config(said(make()) | wrong, "folder/config.json")

    for word in ("folder/config.json", *words):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("preset, family", [("t5-small", "t5"), ("t5-v1.1-base", "t5"), ("marian", "marian")])
def test_presets_are_of_their_families(preset, family):
    assert explain_mismatch(regard.preset(preset), FAMILIES[family]) == ""


def test_an_encoder_of_another_kind_is_a_reason_against_all_of_them():
    c = regard.preset("marian")
    other = C.Transformer(**vars(c) | {"encoder": C.Encoder(trunk=C.RecurrentStack(dim=c.trunk.dim))})

    told = {name: explain_mismatch(other, FAMILIES[name]) for name in ("t5", "bart", "mbart", "marian", "whisper")}

    assert all("encoder.trunk.kind is 'recurrent'" in why for why in told.values()), told


def test_a_tied_t5_whose_logits_are_loud_is_refused_for_want_of_a_head(tmp_path):
    """Transformers 5 has the same words for it and for a head of its own, which every published one has."""
    model = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)

    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    with pytest.raises(C.DataError, match="head.weight"):
        regard.load(tmp_path, device="cpu")
