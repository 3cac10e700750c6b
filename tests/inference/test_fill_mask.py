"""Words for blanks, with the probabilities that the pipeline of `transformers` gives them."""

import pytest
import torch
import transformers as hf
from hub.text_folders import LENGTH, V, bert, bytelevel, saved, wordpiece

import regard
from regard import config, text
from regard.tasks.task import add_task_tokens

ONE, TWO = "Paris is the [MASK] of France.", "the [MASK] sat on a [MASK]!"


def theirs(model, tokenizer, said, best):
    """Theirs as lists of lists: a text with one mask has no outer list there."""
    found = hf.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")(said, top_k=best)
    return [found] if isinstance(found[0], dict) else found


def same(ours, want):
    assert [len(blank) for blank in ours] == [len(blank) for blank in want]
    for got, their in zip((g for blank in ours for g in blank), (g for blank in want for g in blank), strict=True):
        assert got.id == their["token"] and got.probability == pytest.approx(their["score"], abs=1e-5)
        said = their["token_str"].strip()
        assert got.word == said or not said.isprintable() or said in ("", "\ufffd")  # half a character


@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForPreTraining"])
@pytest.mark.parametrize("said", [ONE, TWO, "[MASK]"])
def test_the_words_of_bert_and_their_probabilities_are_those_of_the_pipeline(said, kind, tmp_path):
    model, tokenizer, folder = bert(kind, tmp_path / "m")
    alone = model
    if kind == "ForPreTraining":
        alone = hf.BertForMaskedLM(model.config).eval()
        alone.load_state_dict({name: x for name, x in model.state_dict().items() if name in alone.state_dict()})

    same(regard.load(folder, device="cpu").fill_mask(said, top_k=7), theirs(alone, tokenizer, said, 7))


OTHERS = {
    "DistilBert": dict(dim=36, n_layers=2, n_heads=4, hidden_dim=60),
    "Albert": dict(hidden_size=36, num_hidden_layers=3, num_attention_heads=4, intermediate_size=60, embedding_size=20),
    "Electra": dict(hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=44, embedding_size=9),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_fill_as_the_pipeline_does(name, tmp_path):
    torch.manual_seed(6)
    settings = OTHERS[name] | dict(vocab_size=V, max_position_embeddings=LENGTH)
    model = getattr(hf, f"{name}ForMaskedLM")(getattr(hf, f"{name}Config")(**settings))
    tokenizer = wordpiece()
    if name == "DistilBert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    ours = regard.load(saved(model, tokenizer, tmp_path / name), device="cpu")

    same(ours.fill_mask(TWO), theirs(model, tokenizer, TWO, 5))


@pytest.mark.parametrize("said", ["the cat <mask> on a mat.", "paris is <mask> of <mask>."])
def test_another_mask_token_is_meant_by_its_own_name_and_by_the_usual_one(said, tmp_path):
    torch.manual_seed(3)
    tokenizer = bytelevel()
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
        max_position_embeddings=77, type_vocab_size=1, pad_token_id=1))  # fmt: skip
    ours = regard.load(saved(model, tokenizer, tmp_path / "r"), device="cpu")

    same(ours.fill_mask(said), theirs(model, tokenizer, said, 5))
    assert ours.fill_mask(said.replace("<mask>", "[MASK]")) == ours.fill_mask(said)


def test_many_texts_are_told_in_their_order_each_as_if_alone(tmp_path):
    from regard.inference.fill_mask import fill_masks

    _, _, folder = bert("ForMaskedLM", tmp_path / "m")
    ours = regard.load(folder, device="cpu")
    texts = [f"{'the cat sat. ' * many} who [MASK]?" for many in (4, 0, 7, 2)]
    for together, each in zip(fill_masks(ours, texts, 3), texts, strict=True):
        for a, b in zip(together[0], ours.fill_mask(each, 3)[0], strict=True):
            assert a.id == b.id and a.probability == pytest.approx(b.probability, abs=1e-6)


def test_a_masked_run_of_our_own_fills_blanks_too():
    tokenizer = add_task_tokens(
        config.MaskedLM(), text.train_tokenizer(config.CharTokenizer(byte_fallback=False), ["the cat sat on the mat."])
    )
    model = regard.build(regard.preset("bert-base", dim=12, depth=1, heads=3, vocab=len(tokenizer),
                                       head=config.LMHead(transform=True, bias=True))).eval()  # fmt: skip
    model.tokenizer, model.task = tokenizer, config.MaskedLM()
    [blank] = model.fill_mask("the c[MASK]t", top_k=99)

    assert sum(guess.probability for guess in blank) == pytest.approx(1, abs=1e-5)
    assert {"a", "c", "h"} <= {guess.word for guess in blank}


@pytest.mark.parametrize(("said", "sentence"), [
    ("no blank here", "text: there is no mask in it; write \\[MASK\\] where the word is missing"),
    (" ", "text: ' ' is empty"),
    ("[MASK] " + "the cat sat. " * 20, f"tokens are more than the {LENGTH} that this model reads at once"),
])  # fmt: skip
def test_a_text_that_cannot_be_filled_is_one_sentence(said, sentence, tmp_path):
    _, _, folder = bert("ForMaskedLM", tmp_path / "m")

    with pytest.raises(config.DataError, match=sentence):
        regard.load(folder, device="cpu").fill_mask(said)


@pytest.mark.parametrize(("kind", "sentence"), [
    ("ForSequenceClassification", "head.kind: 'pooling' is no LM head"),
    ("Model", "head.kind: 'pretraining' is no LM head"),
])  # fmt: skip
def test_who_says_no_words_fills_no_blanks(kind, sentence, tmp_path):
    _, _, folder = bert(kind, tmp_path / "m")

    with pytest.raises(config.ConfigError, match=sentence):
        regard.load(folder, device="cpu").fill_mask(ONE)


def test_who_reads_from_left_to_right_sees_nothing_behind_a_blank():
    model = regard.build(regard.preset("gpt2", dim=12, depth=1, heads=3, vocab=30))

    with pytest.raises(config.ConfigError, match="is causal .* generate"):
        model.fill_mask(ONE)


def test_a_tokenizer_without_a_mask_is_told(tmp_path):
    _, _, folder = bert("ForMaskedLM", tmp_path / "m")
    ours = regard.load(folder, device="cpu")
    ours.tokenizer = text.train_tokenizer(config.CharTokenizer(), [ONE])

    with pytest.raises(config.DataError, match="the tokenizer has no mask token"):
        ours.fill_mask(ONE)
