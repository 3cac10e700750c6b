"""Published folders speak as their generation_config.json says: the texts of `transformers`' own `generate`."""

import json

import pytest
import torch
import transformers as hf
from hub.text_folders import TEXTS, bytelevel, saved

import regard
from regard import config
from regard.generation import params

WORDS = [text.lower() for text in TEXTS]
PAIRS = {
    "t5": lambda size: hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=size, d_model=36, d_kv=9, num_heads=4, d_ff=60, num_layers=2, decoder_start_token_id=1,
        pad_token_id=1, eos_token_id=2)),
    "bart": lambda size: hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=size, d_model=36, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=3, encoder_ffn_dim=60, decoder_ffn_dim=44, max_position_embeddings=90, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)),
    "marian": lambda size: hf.MarianMTModel(hf.MarianConfig(
        vocab_size=size, d_model=36, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=3, encoder_ffn_dim=60, decoder_ffn_dim=44, max_position_embeddings=90, pad_token_id=1,
        eos_token_id=2, bos_token_id=0, decoder_start_token_id=1, forced_eos_token_id=None)),
}  # fmt: skip
MANNERS = {
    "greedy": dict(max_new_tokens=11, num_beams=1),
    "beams": dict(max_length=14, num_beams=3, length_penalty=0.4),
    "forced": dict(max_length=13, num_beams=3, length_penalty=2.0, forced_bos_token_id=9, forced_eos_token_id=2),
    "early": dict(max_new_tokens=12, num_beams=4, early_stopping=True, min_length=6),
    "without": dict(max_new_tokens=9, num_beams=2, bad_words_ids=[[17], [31]], suppress_tokens=[23]),
    "no run twice": dict(max_new_tokens=12, num_beams=3, no_repeat_ngram_size=2),
    "dear": dict(max_new_tokens=12, num_beams=3, repetition_penalty=1.4, length_penalty=0.0),
    "nudged": dict(max_new_tokens=9, num_beams=3, sequence_bias=[[[17], 4.0], [[31], -3.0]]),
    "begun otherwise": dict(max_new_tokens=9, num_beams=2, begin_suppress_tokens=[2, 17, 30, 40]),
}


def template(name):
    return bytelevel() if name == "bart" else bytelevel("$A </s>", "$A </s> $B </s>")


def pair(name, folder, **how):
    """Theirs in fp64 and ours, of a folder that says how it is to speak."""
    torch.manual_seed(8)
    tokenizer = template(name)
    model = PAIRS[name](len(tokenizer))
    last = "decoder.final_layer_norm.weight" if name == "t5" else "model.decoder.layers.1.final_layer_norm.weight"
    model.get_parameter(last).data.mul_(-2)  # small models say for ever what they have just said
    known = dict(decoder_start_token_id=model.config.decoder_start_token_id or 1, pad_token_id=1, eos_token_id=2)
    model.generation_config = hf.GenerationConfig(**known | how)
    saved(model, tokenizer, folder)
    return model.double(), tokenizer, regard.load(folder, device="cpu").double()


def theirs(model, tokenizer, text):
    asked = tokenizer([text], return_tensors="pt", return_token_type_ids=False)
    said = model.generate(**asked)
    return tokenizer.decode(said[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("way", MANNERS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_translation_is_what_generate_writes_by_the_folder_s_own_settings(name, way, tmp_path):
    model, tokenizer, ours = pair(name, tmp_path / name, **MANNERS[way])

    told = [theirs(model, tokenizer, text) for text in WORDS]
    assert ours.translate(WORDS) == told and all(told)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("way", ["no run twice", "dear", "nudged"])
def test_these_settings_change_what_is_said(name, way, tmp_path):
    """Else the tests above would prove nothing."""
    _, _, ours = pair(name, tmp_path / name, **MANNERS[way])
    plain = {
        "no run twice": dict(no_repeat_ngram_size=None),
        "dear": dict(repetition_penalty=1.0),
        "nudged": dict(logit_bias=()),
    }[way]

    assert ours.translate(WORDS) != ours.translate(WORDS, **plain)


def test_rows_of_several_tokens_that_are_nudged_are_named_in_a_warning(tmp_path):
    _, _, ours = pair("t5", tmp_path / "t5", max_new_tokens=3, sequence_bias=[[[17, 18], 4.0]])

    with pytest.warns(UserWarning, match="sequence_bias is not supported"):
        ours.translate(WORDS[0])


def test_stop_strings_of_a_folder_stop_its_texts_and_not_its_ids(tmp_path):
    _, _, ours = speaker("gpt2", tmp_path / "gpt2", max_new_tokens=19)
    free = ours.generate(TEXTS[0], temperature=0)
    _, _, ours = speaker("gpt2", tmp_path / "again", max_new_tokens=19, stop_strings=[free[2:4]])

    assert ours.generate(TEXTS[0], temperature=0) == free[: free.index(free[2:4])]
    assert len(ours.generate(torch.tensor([5, 6, 7]), temperature=0)) == 19


def test_options_go_before_what_the_folder_says(tmp_path):
    model, tokenizer, ours = pair("t5", tmp_path / "t5", max_new_tokens=11, num_beams=4, length_penalty=2.0)
    [made] = ours.translations(WORDS[:1], max_new_tokens=5, num_beams=1)
    model.generation_config.update(max_new_tokens=5, num_beams=1)

    assert len(made.ids) <= 5 and made.text == theirs(model, tokenizer, WORDS[0])


def test_older_folders_say_it_in_config_json(tmp_path):
    _, _, ours = pair("bart", tmp_path / "bart", max_length=15, num_beams=3)
    (tmp_path / "bart" / "generation_config.json").unlink()
    said = json.loads((tmp_path / "bart" / "config.json").read_text())
    (tmp_path / "bart" / "config.json").write_text(json.dumps(said | {"max_length": 15, "num_beams": 3}))
    again = regard.load(tmp_path / "bart", device="cpu").double()

    assert (again.generation_defaults.beam_search, again.generation_defaults.most_whole) == ({"num_beams": 3}, 15)
    assert again.translate(WORDS) == ours.translate(WORDS)


def test_what_is_not_known_here_is_named_in_a_warning(tmp_path):
    _, _, ours = pair("t5", tmp_path / "t5", max_new_tokens=3, epsilon_cutoff=0.01, do_sample=True)

    with pytest.warns(UserWarning, match="epsilon_cutoff is not supported and is ignored"):
        ours.translate(WORDS[0])


# ---------------------------------------------------------------- decoders

SPEAKERS = {
    "gpt2": (lambda size: hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=size, n_embd=36, n_layer=2, n_head=4, n_positions=90, bos_token_id=0, eos_token_id=2)), ""),
    "llama": (lambda size: hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=size, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=60, max_position_embeddings=90, bos_token_id=0, eos_token_id=2)), "<s> $A"),
}  # fmt: skip


def speaker(name, folder, **how):
    torch.manual_seed(8)
    make, around = SPEAKERS[name]
    tokenizer = bytelevel(around, "<s> $A <s> $B" if around else "")
    model = make(len(tokenizer))
    model.generation_config = hf.GenerationConfig(bos_token_id=0, eos_token_id=[2, 77], pad_token_id=1, **how)
    saved(model, tokenizer, folder)
    return model.double(), tokenizer, regard.load(folder, device="cpu").double()


@pytest.mark.parametrize("how", [dict(max_new_tokens=19), dict(max_length=44),
                                 dict(max_length=50, repetition_penalty=1.3),
                                 dict(max_new_tokens=29, no_repeat_ngram_size=2),
                                 dict(max_new_tokens=17, sequence_bias=[[[40], 6.0], [[41], -6.0]]),
                                 dict(max_new_tokens=17, begin_suppress_tokens=[5, 6, 7, 40]),
                                 dict(max_new_tokens=17, min_new_tokens=9)])  # fmt: skip
@pytest.mark.parametrize("name", SPEAKERS)
def test_a_decoder_goes_on_from_what_its_tokenizer_makes_of_a_prompt(name, how, tmp_path):
    model, tokenizer, ours = speaker(name, tmp_path / name, **how)
    for prompt in WORDS[:3]:
        asked = tokenizer([prompt], return_tensors="pt", return_token_type_ids=False)
        said = model.generate(**asked)[0, asked["input_ids"].shape[1] :].tolist()

        assert list(ours.complete(prompt, temperature=0).ids) == said


def test_chance_is_as_the_folder_says_where_it_is_asked_for(tmp_path):
    _, _, ours = speaker("llama", tmp_path / "m", do_sample=True, temperature=0.6, top_p=0.9, top_k=7, max_new_tokens=9)

    assert ours.default_settings([[1, 2]]) == {"temperature": 0.6, "top_p": 0.9, "top_k": 7, "max_new_tokens": 9}
    assert ours.generate("a", seed=3) == ours.generate(
        "a", seed=3, temperature=0.6, top_p=0.9, top_k=7, max_new_tokens=9
    )
    assert ours.generation_limits.ends == {2, 77}


@pytest.mark.parametrize(("said", "sentence"), [
    ({"num_beams": "many"}, "num_beams is \"many\"; expected a whole number"),
    ({"eos_token_id": "</s>"}, "eos_token_id is .* expected an id"),
    ({"bad_words_ids": [7]}, "bad_words_ids is .* expected a list of lists"),
    ({"max_length": -3}, "max_length is -3"),
])  # fmt: skip
def test_a_folder_that_says_nonsense_is_one_sentence(said, sentence, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(said))

    with pytest.raises(config.DataError, match=f"generation_config.json: {sentence}"):
        params.read_generation_config(tmp_path, {})
