"""Vectors from files: every format read back to the bit, words found by what they are, mistakes named by their line."""

import gzip
import itertools

import numpy
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

import regard
from regard import config, tasks, text
from regard.training.init import word_vectors

D = 5
TABLE = {"the": [0.418, 0.24968, -0.41242, 0.1217, 0.34527], "cat": [1, -2, 3.5, 0, 1e-7], "mat": [9, 8, 7, 6, 5],
         "at home": [0.25, 0.5, 1, 2, 4], "über": [-1, -2, -3, -4, -5]}  # fmt: skip
PROSE = ["the cat sat on the mat", "The owl met a cat"] * 9


def line(word, numbers):
    return f"{word} {' '.join(map(repr, numbers))}"


def glove(path, table=TABLE, header=False, end="\n"):
    first = [f"{len(table)} {D}"] if header else []
    path.write_text(end.join([*first, *(line(*each) for each in table.items())]) + end, encoding="utf8")
    return path


def word2vec(path, table=TABLE, end=b"\n"):
    """As word2vec.c does it: fprintf of a word, which has no space, and a space; fwrite of the floats; a line end."""
    table = {word: numbers for word, numbers in table.items() if " " not in word}
    blocks = [word.encode() + b" " + numpy.array(numbers, "<f4").tobytes() + end for word, numbers in table.items()]
    path.write_bytes(f"{len(table)} {D}\n".encode() + b"".join(blocks))
    return path


def words(kind="word", **settings):
    made = config.WordTokenizer if kind == "word" else config.SubwordTokenizer
    return text.train_tokenizer(made(kind=kind, vocab=560 if kind == "wordpiece" else 300, **settings), PROSE)


def sentencepiece():
    """A vocabulary as T5 and Llama have it, with its mark before words."""
    pieces = ["▁the", "▁The", "▁cat", "▁mat", "▁owl", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    inner = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *((piece, -1.0) for piece in pieces)], unk_id=0))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    inner.add_special_tokens(["<unk>"])
    return text.Tokenizer(inner)


def model(tokenizer):
    trunk = config.Trunk(dim=D, depth=1, attention=config.Attention(heads=1), position=config.NoPosition())
    return regard.build(config.Transformer(embed=config.TextEmbedding(vocab=len(tokenizer)), trunk=trunk,
                                           head=config.PoolingHead(out=2)))  # fmt: skip


def assert_read(found, wanted):
    assert found.keys() == set(wanted)
    for word in wanted:
        assert torch.equal(found[word], torch.tensor(TABLE[word], dtype=torch.float32))


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize("name, write", [
    ("glove.txt", glove),
    ("words.vec", lambda path: glove(path, header=True, end=" \n")),  # fastText leaves a space at the end of a line
    ("dos.txt", lambda path: glove(path, end="\r\n")),
    ("google.bin", lambda path: word2vec(path)),
    ("gensim.bin", lambda path: word2vec(path, end=b"")),
])  # fmt: skip
def test_wanted_words_are_read_and_no_others(tmp_path, name, write):
    path = write(tmp_path / name)

    assert_read(word_vectors.read_vectors(path, {"cat", "über", "the", "dog"}, D), ["cat", "über", "the"])


@pytest.mark.parametrize("write", [glove, word2vec])
def test_packed_files_are_unpacked_on_the_way(tmp_path, write):
    plain = write(tmp_path / ("x.txt" if write is glove else "x.bin"))
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert_read(word_vectors.read_vectors(packed, set(TABLE) - {"at home"}, D), ["the", "cat", "mat", "über"])


def test_words_of_glove_may_hold_spaces(tmp_path):
    assert_read(word_vectors.read_vectors(glove(tmp_path / "x.txt"), {"at home", "mat"}, D), ["at home", "mat"])


def test_of_a_word_that_comes_twice_the_first_counts(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("cat 1 -2 3.5 0 1e-7\ncat 0 0 0 0 0\n")

    assert_read(word_vectors.read_vectors(path, {"cat"}, D), ["cat"])


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xff\xfe 0 0 0 0 0\n" + line("mat", TABLE["mat"]).encode() + b"\n")

    assert_read(word_vectors.read_vectors(path, {"mat"}, D), ["mat"])


def test_a_large_binary_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "MAX_LINE", 16)  # shorter than a word with its numbers
    path = word2vec(tmp_path / "x.bin")

    assert_read(word_vectors.read_vectors(path, {"mat", "über"}, D), ["mat", "über"])


def test_a_file_of_any_size_takes_no_more_memory_than_its_wanted_words(tmp_path):
    path = tmp_path / "x.bin"
    one = b"word " + bytes(4 * D)
    path.write_bytes(b"200000 5\n" + one * 200_000)  # 5 MB
    with path.open("rb") as file:
        found = list(itertools.islice(word_vectors.parse_binary_vectors(file, path, D, lambda word: True), 3))

        assert len(found) == 3 and file.tell() <= 2 * word_vectors.MAX_LINE


# ---------------------------------------------------------------- into a model


@pytest.mark.spec("S075")
@pytest.mark.parametrize("kind", ["word", "bpe", "wordpiece", "sentencepiece"])
def test_tokens_find_their_words_whatever_marks_them(tmp_path, kind):
    tokenizer = sentencepiece() if kind == "sentencepiece" else words(kind)
    ours = model(tokenizer)
    before = ours.embed.tokens.weight.clone()
    found = word_vectors.load_word_vectors(ours, tokenizer, glove(tmp_path / "x.txt"))
    table = ours.embed.tokens.weight

    for word in ("the", "cat", "mat"):
        [id] = tokenizer.encode(f" {word}".removeprefix(" " * (kind == "sentencepiece")))  # it has a mark by itself
        assert torch.equal(table[id], torch.tensor(TABLE[word], dtype=torch.float32))
    [the] = tokenizer.encode("The")  # in small letters, where its own are not known
    assert torch.equal(table[the], torch.tensor(TABLE["the"]))
    owl = tokenizer.encode("owl")[0]
    assert torch.equal(table[owl], before[owl])
    changed = int((table != before).any(-1).sum())
    assert found.count == changed and found.of == len(tokenizer) - len(tokenizer.specials)


def test_a_token_that_the_file_has_as_it_is_comes_before_its_word(tmp_path):
    tokenizer = words("bpe")
    ours = model(tokenizer)
    word_vectors.load_word_vectors(
        ours, tokenizer, glove(tmp_path / "x.txt", {"the": [1] * 5, "Ġthe": [2] * 5, "The": [3] * 5})
    )
    rows = [ours.embed.tokens.weight[tokenizer.encode(said)[0], 0].item() for said in ("the", " the", "The")]

    assert rows == [1, 2, 3]


def test_special_tokens_have_no_word(tmp_path):
    tokenizer = words("wordpiece")
    ours = model(tokenizer)
    before = ours.embed.tokens.weight.clone()
    word_vectors.load_word_vectors(ours, tokenizer, glove(tmp_path / "x.txt", {"[MASK]": [1] * 5, "the": [2] * 5}))

    assert torch.equal(ours.embed.tokens.weight[tokenizer.special_ids["mask"]], before[tokenizer.special_ids["mask"]])


def test_what_one_model_learned_another_begins_with(tmp_path):
    tokenizer = words()
    theirs, ours = model(tokenizer), model(tokenizer)
    rows = {tokenizer.token(id).strip(): theirs.embed.tokens.weight[id].tolist() for id in range(len(tokenizer))
            if id not in tokenizer.specials and tokenizer.token(id).strip()}  # fmt: skip
    glove(tmp_path / "x.txt", rows)
    save_file({"weight": theirs.embed.tokens.weight.detach()}, tmp_path / "x.safetensors")
    found = word_vectors.load_word_vectors(ours, tokenizer, tmp_path / "x.txt")
    [cat] = tokenizer.encode(" cat")

    assert torch.equal(ours.embed.tokens.weight[cat], theirs.embed.tokens.weight[cat]) and found.count > 250
    assert word_vectors.load_word_vectors(ours, tokenizer, tmp_path / "x.safetensors") == word_vectors.VectorMatch(
        tmp_path / "x.safetensors", len(tokenizer), len(tokenizer))  # fmt: skip
    assert torch.equal(ours.embed.tokens.weight, theirs.embed.tokens.weight)


def test_an_encoder_with_words_of_its_own_reads_them(tmp_path):
    tokenizer = words()
    trunk = config.Trunk(dim=D, depth=1, attention=config.Attention(heads=1), position=config.NoPosition())
    ours = regard.build(config.Transformer(
        embed=config.TextEmbedding(vocab=11), trunk=config.Trunk(**vars(trunk) | {"cross": "last", "mask": "causal"}),
        encoder=config.Encoder(trunk=trunk, embed=config.TextEmbedding(vocab=len(tokenizer))),
    ))  # fmt: skip
    word_vectors.load_word_vectors(ours, tokenizer, glove(tmp_path / "x.txt"))
    [cat] = tokenizer.encode(" cat")

    assert ours.encoder_embed.tokens.weight[cat].tolist() == torch.tensor(TABLE["cat"]).float().tolist()


def test_what_was_found_is_told_in_a_line(tmp_path):
    tokenizer = tasks.add_task_tokens(config.MaskedLM(), words("word", byte_fallback=False))
    told = word_vectors.describe_match(
        word_vectors.load_word_vectors(model(tokenizer), tokenizer, glove(tmp_path / "x.txt"))
    )

    assert told.startswith(f"vectors from {tmp_path / 'x.txt'}: for 5 of ") and "; without one: " in told


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name, content, said", [
    ("a.txt", b"the 1 2 3 4 5\ncat 1 2 3\n", r"a.txt:2: 3 numbers in 'cat 1 2 3'; expected a word and 5"),
    ("a.txt", b"the 1 2 3 4 5\ncat 1 2 x 4 5\n", r"a.txt:2: '1 2 x 4 5' is not all numbers"),
    ("a.txt", b"cat 1 2 nan 4 5\n", r"a.txt: the vector of 'cat' has a value that is not finite"),
    ("a.txt", b"cat 1 2 3\n",
     r"a.txt: its vectors have 3 numbers, and the model's words 5; set model.trunk.embed_dim=3"),
    ("a.vec", b"2 300\n", r"a.vec: its vectors have 300 numbers"),
    ("a.txt", b"cat\n", r"a.txt:1: 0 numbers in 'cat'"),
    ("a.bin", b"2 5\ncat " + bytes(20) + b"mat " + bytes(19), r"a.bin: ends in word 2 of 2; fetch it again"),
    ("a.bin", b"two five\n", r"a.bin: begins with 'two five\\n'; expected how many words"),
    ("a.bin", (793712314).to_bytes(4, "little") + bytes(9), r"a.bin: a whole model of fastText; name the .vec file"),
    ("a.txt.gz", b"no gzip", r"a.txt.gz: not a whole gzip file"),
    ("a.npz", b"", r"a.npz: unknown suffix; expected .txt, .vec, .bin or .safetensors"),
])  # fmt: skip
def test_a_mistake_in_a_file_is_one_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(config.DataError, match=said) as problem:
        word_vectors.read_vectors(tmp_path / name, {"cat"}, D)

    assert "\n" not in str(problem.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(config.DataError, match="nowhere.txt: no such file"):
        word_vectors.read_vectors(tmp_path / "nowhere.txt", {"cat"}, D)


def test_a_file_that_knows_no_word_of_ours_is_refused(tmp_path):
    tokenizer = words()
    with pytest.raises(config.DataError, match="has none of the 266 tokens, such as "):
        word_vectors.load_word_vectors(model(tokenizer), tokenizer, glove(tmp_path / "x.txt", {"Eule": [1] * 5}))


@pytest.mark.parametrize("tensors, said", [
    ({"weight": torch.zeros(7, D)}, r"weight is torch.float32 \(7, 5\); expected a row of numbers for each of the 269"),
    ({"weight": torch.zeros(269, 3)}, "its vectors have 3 numbers, and the model's words 5"),
    ({"a": torch.zeros(269, D), "b": torch.zeros(1)}, "holds 2 tensors; expected one"),
])  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(tmp_path, tensors, said):
    tokenizer = words()
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(config.DataError, match=said):
        word_vectors.load_word_vectors(model(tokenizer), tokenizer, tmp_path / "x.safetensors")


def test_a_model_of_images_has_no_words(tmp_path):
    ours = regard.build(regard.preset("vit-b16", dim=12, depth=1, heads=3))
    with pytest.raises(
        config.ConfigError, match="train.word_vectors: the front end is 'patches', which reads no words"
    ):
        word_vectors.load_word_vectors(ours, words(), tmp_path / "x.txt")


def test_a_run_begins_with_vectors(desk):
    glove(desk / "x.txt", {"cat": [1] * 12, "owl": [2] * 12})
    notes = []
    run = regard.Run.from_recipe("recipe.toml", ["train.word_vectors=x.txt", 'tokenizer={kind="word", vocab=300}'],
                                 notice=notes.append)  # fmt: skip
    [cat] = run.tokenizer.encode(" cat")

    assert run.model.embed.tokens.weight[cat].tolist() == [1] * 12
    assert any(note.startswith("vectors from x.txt: for ") for note in notes)
