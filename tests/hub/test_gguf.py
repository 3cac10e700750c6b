"""GGUF files of Llama and its relatives: read to the bit where they hold floats, within their blocks where they do not.

The files are written by the package `gguf`; what they mean is told by `transformers`, from the model that was written
or by its own reader.
"""

import json
import random
import struct
import sys
import warnings

import pytest
import torch
import transformers as hf
from hub import decoder_cases, gguf_files
from hub.decoder_cases import llama, qwen2, qwen3
from parity.tolerance import OUTPUT, assert_near

import regard
from regard.config.errors import DataError
from regard.hub import read_folder

gguf = pytest.importorskip("gguf")

CASES = {
    "llama": llama(),
    "llama tied, biases": llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama one group": llama(num_key_value_heads=1, rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "qwen2": qwen2(),
    "qwen2 tied": qwen2(tie_word_embeddings=True, rms_norm_eps=1e-5),
    "qwen3": qwen3(),
    "qwen3 tied": qwen3(tie_word_embeddings=True, rms_norm_eps=1e-5),
}
EVERY = pytest.mark.parametrize("name", CASES)
WIDE = dict(hidden_size=96, intermediate_size=160, head_dim=32, num_attention_heads=6, num_key_value_heads=3)


def ids(vocab=decoder_cases.V):
    torch.manual_seed(11)
    return torch.randint(3, vocab, (3, 9))


@EVERY
def test_a_file_of_floats_answers_as_the_model_that_was_written(name, tmp_path):
    theirs = gguf_files.made(CASES[name])
    ours = regard.load(gguf_files.write(tmp_path / "model.gguf", theirs), device="cpu")

    assert_near(ours(ids()), theirs(ids()).logits, OUTPUT)
    assert ours.context == decoder_cases.LENGTH


@EVERY
def test_what_was_read_is_saved_as_a_folder_that_transformers_opens_with_every_bit(name, tmp_path):
    theirs = gguf_files.made(CASES[name])
    regard.load(gguf_files.write(tmp_path / "model.gguf", theirs), device="cpu").save(tmp_path / "out")
    again, report = type(theirs).from_pretrained(tmp_path / "out", output_loading_info=True)

    assert not any(report.values()), report
    assert all(torch.equal(again.state_dict()[each], x) for each, x in theirs.state_dict().items())
    assert torch.equal(again(ids()).logits, theirs(ids()).logits)
    assert regard.load(tmp_path / "out", device="cpu").source_folder.family == theirs.config.model_type


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1", "Q4_0"])
@pytest.mark.parametrize("case", [llama, qwen3], ids=["llama", "qwen3"])
def test_blocks_of_few_bits_are_what_the_package_makes_of_them(kind, case, tmp_path):
    """Against the same model with every table quantised and back: equal; against the model itself: as near as bits."""
    kind = gguf.GGMLQuantizationType[kind]
    theirs = gguf_files.made(case(**WIDE))
    exact = theirs(ids()).logits
    ours = regard.load(gguf_files.write(tmp_path / "model.gguf", theirs, kind), device="cpu")
    for _, weight in theirs.named_parameters():
        if weight.dim() > 1:  # rows of q and k change places as wholes, so that blocks stay what they are
            weight.data = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.data.numpy(), kind), kind)).clone()

    assert_near(ours(ids()), theirs(ids()).logits, OUTPUT)
    error = (ours(ids()) - exact).abs().mean() / exact.abs().mean()
    assert error < {"F16": 1e-3, "BF16": 1e-2, "Q8_0": 3e-2, "Q5_1": 0.2, "Q4_0": 0.5}[kind.name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_transformers_reads_the_same_model_from_the_same_file(kind, tmp_path):
    theirs = gguf_files.made(llama(**WIDE))
    path = gguf_files.write(tmp_path / "model.gguf", theirs, None if kind == "F32" else gguf.GGMLQuantizationType.Q8_0,
                       LISTS | {"add_token_list": [f"w{i}" for i in range(decoder_cases.V)],
                                "add_token_types": [1] * decoder_cases.V, "add_tokenizer_model": "gpt2",
                                "add_token_merges": []})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
        ours = regard.load(path, device="cpu")

    assert_near(ours(ids()), read(ids()).logits, OUTPUT)


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_stretched_positions_are_heard(scaling, tmp_path):
    length = dict(original_max_position_embeddings=16) if scaling == "yarn" else {}
    theirs = gguf_files.made(llama(**decoder_cases.rope(scaling, factor=5.0, **length)))

    def more(file):
        file.add_rope_scaling_type(gguf.RopeScalingType[scaling.upper()])
        file.add_rope_scaling_factor(5.0)
        if length:
            file.add_rope_scaling_orig_ctx_len(16)

    ours = regard.load(gguf_files.write(tmp_path / "model.gguf", theirs, more=more), device="cpu")
    assert_near(ours(ids()), theirs(ids()).logits, OUTPUT)


def test_a_factor_for_each_pair_of_channels_is_what_llama_3_means(tmp_path):
    """llama.cpp computes the scaling of Llama 3 when it converts, and keeps its factors as a tensor."""
    theirs = gguf_files.made(decoder_cases.CASES["llama 3"])
    usual = 1 / 500.0 ** (torch.arange(0, 14, 2) / 14)
    factors = (usual / theirs.model.rotary_emb.inv_freq).float().numpy()
    assert factors.std() > 0.1
    path = tmp_path / "model.gguf"
    gguf_files.write(path, theirs, more=lambda file: file.add_tensor("rope_freqs.weight", factors))
    ours = regard.load(path, device="cpu")
    ours.save(tmp_path / "out")
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "out")

    assert_near(ours(ids()), theirs(ids()).logits, OUTPUT)
    assert_near(again(ids()).logits, theirs(ids()).logits, OUTPUT)


# ---------------------------------------------------------------- tokenizers

TEXTS = ["Hello world, it's 2024!", "  two spaces\n\n\tand tabs ", "café naïve 日本 🙂", "I'LL've 1234567", "", "a"]
LISTS = {"add_bos_token_id": 1, "add_eos_token_id": 2, "add_pad_token_id": 0}


def byte_pairs():
    """Tokens and merges of a small byte-level BPE, three control tokens first."""
    inner = regard.text.train_tokenizer(
        regard.config.SubwordTokenizer(kind="bpe", vocab=400), TEXTS * 3 + ["Hello hello world world"] * 9
    )
    spec = json.loads(inner.text())["model"]
    tokens = ["<pad>", "<s>", "</s>", *(each for each in spec["vocab"] if each != "<|endoftext|>")]
    return tokens, [" ".join(pair) for pair in spec["merges"]]


def scored():
    """Pieces with scores, as SentencePiece has them: 3 special ones, bytes, then the likeliest first."""
    pieces = ["▁", "e", "l", "o", "h", "w", "r", "d", "a", "t", "2", "0", "4", ",", "H", "ll", "▁w", "or", "▁wor", "he",
              "ello", "Hello", "▁Hello", "ld", "▁world", "é", "▁▁", "lo", "el", "llo"]  # fmt: skip
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return tokens, types, [0.0] * 259 + [-float(place) for place in range(len(pieces))]


def spoken(lists, tmp_path):
    theirs = gguf_files.made(llama(vocab_size=len(lists["add_token_list"])))
    path = gguf_files.write(tmp_path / "model.gguf", theirs, lists=LISTS | lists)
    return regard.load(path, device="cpu"), path


def oracle(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hf.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize("split", ["gpt-2", "llama-bpe", "qwen2"])
def test_merges_are_made_as_transformers_makes_them(split, tmp_path):
    tokens, merges = byte_pairs()
    lists = dict(add_tokenizer_model="gpt2", add_tokenizer_pre=split, add_token_list=tokens, add_token_merges=merges,
                 add_token_types=[3, 3, 3, *[1] * (len(tokens) - 3)])  # fmt: skip
    ours, path = spoken(lists, tmp_path)
    theirs = oracle(path)

    for text in TEXTS:
        assert ours.tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text
    assert ours.tokenizer.special_ids == {"pad": 0, "bos": 1, "eos": 2}
    assert ours.tokenizer.leading_ids == ([1] if split == "llama-bpe" else [])


def test_digits_of_smollm_stand_alone(tmp_path):
    tokens, merges = byte_pairs()
    tokens, merges = [*tokens, "12"], [*merges, "1 2"]
    lists = dict(add_tokenizer_model="gpt2", add_token_list=tokens, add_token_merges=merges,
                 add_token_types=[3, 3, 3, *[1] * (len(tokens) - 3)])  # fmt: skip
    apart, _ = spoken(lists | dict(add_tokenizer_pre="smollm"), tmp_path)
    usual, _ = spoken(lists | dict(add_tokenizer_pre="gpt-2"), tmp_path)

    assert [apart.tokenizer.token_text(id) for id in apart.tokenizer.encode("a 12")] == ["a", "·", "1", "2"]
    assert usual.tokenizer.token_text(usual.tokenizer.encode("12")[0]) == "12"


def test_scores_are_used_as_sentencepiece_uses_them(tmp_path):
    tokens, types, scores = scored()
    lists = dict(add_tokenizer_model="llama", add_token_list=tokens, add_token_types=types, add_token_scores=scores)
    ours, path = spoken(lists, tmp_path)
    theirs = oracle(path)
    told = [ours.tokenizer.token_text(id) for id in ours.tokenizer.encode("Hello world é日")]

    assert told == ["▁Hello", "▁world", "▁", "é", "<0xE6>", "<0x97>", "<0xA5>"]
    for text in ["Hello world", "hello  hello", "2024, Hello\n", "日本 é"]:
        assert ours.tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text
    assert ours.tokenizer.leading_ids == [1]


def test_a_file_with_words_and_a_chat_template_speaks_and_keeps_both(tmp_path):
    tokens, merges = byte_pairs()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    lists = dict(add_tokenizer_model="gpt2", add_tokenizer_pre="gpt-2", add_token_list=tokens, add_token_merges=merges,
                 add_token_types=[3, 3, 3, *[1] * (len(tokens) - 3)], add_chat_template=template)  # fmt: skip
    ours, path = spoken(lists, tmp_path)
    ours.save(tmp_path / "out")
    again = regard.load(tmp_path / "out", device="cpu")

    assert ours.generate("Hello", max_new_tokens=5, seed=1, temperature=0) == again.generate(
        "Hello", max_new_tokens=5, seed=1, temperature=0
    )
    assert hf.AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == template
    assert ours.tokenizer.text() == again.tokenizer.text()


@pytest.mark.parametrize(
    "lists, told",
    [
        (dict(add_tokenizer_model="gpt2", add_tokenizer_pre="gpt-9"), "no pre-tokenizer 'gpt-9'; did you mean"),
        (dict(add_tokenizer_model="bert"), "no kind 'bert'; known are gpt2, llama"),
        (dict(), "no kind 'none'"),
        (dict(add_tokenizer_model="llama", add_token_types=[1]), "53 tokens and 1 types"),
        (dict(add_tokenizer_model="gpt2", add_tokenizer_pre="gpt-2", add_token_merges=["w1 w2"]), "merge 'w1 w2'"),
        (dict(add_tokenizer_model="gpt2", add_tokenizer_pre="gpt-2", add_token_merges=["w1"]), "merge 'w1'"),
    ],
)
def test_without_a_tokenizer_that_is_known_it_says_so_and_takes_ids(lists, told, tmp_path):
    usual = {"add_token_list": [f"w{i}" for i in range(decoder_cases.V)]}
    with pytest.warns(UserWarning, match=told) as warned:
        ours, path = spoken(usual | lists, tmp_path)

    assert str(path) in str(warned[0].message) and "takes ids" in str(warned[0].message)
    assert ours.tokenizer is None and ours.generate(ids()[0], max_new_tokens=1).shape == (1,)
    with pytest.raises(DataError, match="no tokenizer"):
        ours.generate("Hello")


# ---------------------------------------------------------------- what is not read

EDGES = {
    "nothing": (lambda raw: b"", "empty"),
    "other letters": (lambda raw: b"GGML" + raw[4:], "GGUF"),
    "another version": (lambda raw: raw[:4] + struct.pack("<I", 9) + raw[8:], "version is 9"),
    "the other byte order": (lambda raw: raw[:4] + struct.pack(">I", 3) + raw[8:], "version"),
    "cut in the facts": (lambda raw: raw[:200], "200 bytes|bytes left"),
    "cut in the numbers": (lambda raw: raw[:-100], "is not in it"),
    "2^62 tensors": (lambda raw: raw[:8] + struct.pack("<Q", 2**62) + raw[16:], "promises|ends at|no UTF-8|axes"),
    "2^62 facts": (lambda raw: raw[:16] + struct.pack("<Q", 2**62) + raw[24:], "promises"),
    "a long name": (lambda raw: raw[:24] + struct.pack("<Q", 2**60) + raw[32:], "promises"),
}


@pytest.mark.parametrize("name", EDGES)
def test_a_file_that_is_not_whole_is_one_sentence(name, tmp_path):
    spoil, told = EDGES[name]
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.made(llama()))
    path.write_bytes(spoil(path.read_bytes()))

    with pytest.raises(DataError, match=told) as error:
        regard.load(path, device="cpu")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_lists_that_promise_more_than_the_file_has_are_refused_at_once(tmp_path):
    facts = b"".join(struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, kind, 2**61)
                     for key, kind in ((b"a", 0),))  # fmt: skip
    (tmp_path / "list.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + facts + b"\0" * 64)

    with pytest.raises(DataError, match="promises 2,305,843,009,213,693,952 things"):
        read_folder.read_model_folder(tmp_path / "list.gguf")


def test_every_file_that_is_cut_short_is_refused_in_a_sentence(tmp_path):
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.made(llama()))
    raw = path.read_bytes()
    for length in range(0, len(raw), len(raw) // 97):
        path.write_bytes(raw[:length])
        with pytest.raises(DataError) as error:
            read_folder.read_model_folder(path)
        assert "\n" not in str(error.value)


REFUSED = {
    "another architecture": (lambda file: file.add_string("general.architecture", "mamba"), "mamba"),
    "experts": (lambda file: file.add_expert_count(8), "llama.expert_count is 8"),
    "a window": (lambda file: file.add_sliding_window(8), "llama.attention.sliding_window is 8"),
    "a scaling": (lambda file: file.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
    "a scaling's word": (lambda file: file.add_float32("llama.rope.scaling.yarn_beta_fast", 4.0), "yarn_beta_fast"),
    "a tensor too many": (lambda file: file.add_tensor("blk.7.strange.weight", gguf_files.np.zeros((3, 4), "f4")),
                          "blk.7.strange.weight"),
    "heads that differ": (lambda file: file.add_array("llama.attention.head_count", [6, 3, 6]), "head_count"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_here_is_refused_by_its_name(name, tmp_path):
    more, told = REFUSED[name]
    theirs = gguf_files.made(llama())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = tmp_path / "model.gguf"
        try:
            gguf_files.write(path, theirs, more=more)
        except ValueError:  # said twice: the writer refuses, so the file is told another way
            path = reworded(path, theirs, name)

    with pytest.raises(DataError, match=told) as error:
        regard.load(path, device="cpu")
    assert str(path) in str(error.value)


def reworded(path, theirs, name):
    gguf_files.write(path, theirs)
    raw = path.read_bytes()
    if name == "another architecture":
        raw = raw.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"mamba", 1)
    else:
        key = b"llama.attention.head_count"
        old = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 6)
        assert old in raw
        raw = raw.replace(old, struct.pack("<Q", len(key)) + key + struct.pack("<If", 6, 6.5))
    path.write_bytes(raw)
    return path


def test_without_the_package_a_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.made(llama()))
    monkeypatch.setitem(sys.modules, "gguf", None)

    with pytest.raises(DataError, match=r"pip install 'regard\[gguf\]'"):
        regard.load(path, device="cpu")


def test_no_such_file_is_a_sentence(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        regard.load(tmp_path / "none.gguf", device="cpu")


@pytest.mark.slow
def test_files_with_other_bytes_in_them_are_read_or_refused_in_a_sentence(tmp_path):
    tokens, merges = byte_pairs()
    lists = dict(add_tokenizer_model="gpt2", add_tokenizer_pre="qwen2", add_token_list=tokens, add_token_merges=merges,
                 add_token_types=[3, 3, 3, *[1] * (len(tokens) - 3)], **LISTS)  # fmt: skip
    theirs = gguf_files.made(llama(vocab_size=len(tokens), num_hidden_layers=1))
    path = gguf_files.write(tmp_path / "model.gguf", theirs, lists=lists)
    raw, chance, refused = path.read_bytes(), random.Random(5), 0
    for _ in range(300):
        at, spoilt = chance.randrange(raw.index(b"output_norm.weight") + 40), bytearray(raw)
        spoilt[at : at + chance.randint(0, 9)] = chance.choice(
            [b"", b"\xff" * 8, chance.randbytes(chance.randint(1, 8))]
        )
        path.write_bytes(spoilt)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                regard.load(path, device="cpu")
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)

    assert 200 < refused < 300
