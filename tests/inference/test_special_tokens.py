"""The verbs read special tokens in a text as `transformers` does, unless a model is loaded to take texts as plain."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hub.text_folders import bert, saved
from text.families import FAMILIES
from text.families import saved as family
from torch.testing import assert_close

import regard
from regard.chat.conversation import Conversation
from regard.chat.formats import TemplateFormat, find_chat_template
from regard.config.errors import ConfigError

ODD = ["The cat [SEP] sat [MASK].", "[CLS] who is it?", "a [PAD] dog", "[UNK] cat"]
TALK = [{"role": "user", "content": "Hi, who are you?"}]
CHATS = ["chatml", "qwen", "llama2", "llama3", "mistral", "zephyr", "gemma", "phi"]


def llama(name, folder):
    """A tiny random Llama with the tokenizer and the template of a family."""
    torch.manual_seed(3)
    known = family(name, folder)
    sizes = dict(hidden_size=24, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(known) + 3, max_position_embeddings=311, **sizes,
                                               bos_token_id=None, eos_token_id=None, pad_token_id=None))  # fmt: skip
    saved(model, None, folder)
    return known, regard.load(folder, device="cpu")


def test_vectors_of_texts_with_special_tokens_are_those_of_transformers(tmp_path):
    model, tokenizer, folder = bert("Model", tmp_path / "m")
    asked = tokenizer(ODD, padding=True, return_tensors="pt")
    with torch.no_grad():
        x, real = model(**asked).last_hidden_state, asked["attention_mask"].bool()
    want = torch.stack([row[keep].mean(0) for row, keep in zip(x, real, strict=True)])
    ours, plain = (regard.load(folder, device="cpu", specials=how).embeddings(ODD) for how in ("parse", "plain"))

    assert_close(ours, F.normalize(want, dim=-1), rtol=0, atol=1e-5)
    assert_close(regard.load(folder, device="cpu").embeddings(ODD), ours)
    assert F.cosine_similarity(plain, ours, dim=-1).max() < 0.999


def test_classes_of_texts_with_special_tokens_are_those_of_transformers(tmp_path):
    model, tokenizer, folder = bert("ForSequenceClassification", tmp_path / "m", num_labels=3)
    ask = hf.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    for text, shares in zip(ODD, regard.load(folder, device="cpu").classify(ODD), strict=True):
        want = {each["label"]: each["score"] for each in ask([text])[0]}
        assert shares == pytest.approx(want, abs=1e-5), text


@pytest.mark.parametrize("how", ["parse", "plain"])
def test_blanks_are_filled_whether_or_not_other_special_tokens_are_parsed(how, tmp_path):
    model, tokenizer, folder = bert("ForMaskedLM", tmp_path / "m")
    ours = regard.load(folder, device="cpu", specials=how)
    for text, same in (("the [MASK] sat", True), ("the [MASK] [SEP] sat", how == "parse")):
        with torch.no_grad():
            asked = tokenizer(text, return_tensors="pt")
            place = asked["input_ids"][0].tolist().index(4)
            want = model(**asked).logits[0, place].softmax(-1).max().item()
        [[best, *_]] = ours.fill_mask(text)
        assert (best.probability == pytest.approx(want, abs=1e-6)) == same


@pytest.mark.parametrize("name", CHATS)
def test_going_on_from_a_rendered_template_is_what_a_chat_answers(name, tmp_path):
    known, model = llama(name, tmp_path)
    chat = find_chat_template(model)
    rendered = known.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    want = known.apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]
    [[*ids]] = model.encode_prompts([rendered])[1]
    talk = Conversation(model, TemplateFormat(model, chat), max_new_tokens=7, temperature=0.0)
    said = "".join(talk.send(TALK[0]["content"]))

    assert chat.encode(model.tokenizer, TALK) == want
    if name == "zephyr":  # its tokenizer begins texts with <s>, and its template does not
        assert ids == known(rendered).input_ids == [known.bos_token_id, *want]
    else:
        assert ids == want and said and model.generate(rendered, max_new_tokens=7, temperature=0.0).startswith(said)


def test_a_start_token_that_a_prompt_has_is_not_put_before_it_again(tmp_path):
    known, model = llama("llama3", tmp_path)
    start = known.bos_token
    for text in (f"{start}Hi, who", "Hi, who"):
        assert model.encode_prompts([text])[1] == [known("Hi, who").input_ids]
    [twice, once] = model.likelihoods([f"{start}Hi, who", "Hi, who"])
    assert (twice.ids, twice.logs) == (once.ids, once.logs)


def test_the_likelihood_of_a_text_counts_its_special_tokens_as_tokens(tmp_path):
    known, model = llama("chatml", tmp_path)
    text = known.apply_chat_template(TALK, tokenize=False)
    ids = known(text, return_tensors="pt").input_ids
    theirs = hf.LlamaForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logs = theirs(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    [found] = model.likelihoods([text])

    assert list(found.ids) == ids[0].tolist()
    assert_close(torch.tensor(found.logs[1:]), logs, rtol=0, atol=1e-4)


def test_a_bias_may_name_a_special_token(tmp_path):
    known, model = llama("chatml", tmp_path)
    end = known.convert_tokens_to_ids("<|im_end|>")
    [ids] = [list(model.session([[1, 2]], max_new_tokens=1, logit_bias={"<|im_end|>": 100.0}, temperature=0.0))]

    assert ids == [[end]]


def test_a_model_that_is_loaded_plain_reads_special_tokens_as_text(tmp_path):
    known, _ = llama("chatml", tmp_path)
    model = regard.load(tmp_path, device="cpu", specials="plain")

    assert model.encode_prompts(["Hi<|im_end|>"])[1] != [known("Hi<|im_end|>").input_ids]
    with pytest.raises(ConfigError, match="specials: no 'text'; there are plain and parse"):
        regard.load(tmp_path, device="cpu", specials="text")


def test_there_are_as_many_families_as_are_promised():
    assert set(CHATS) <= set(FAMILIES) and len(CHATS) >= 6
