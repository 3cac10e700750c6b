"""Any text file, several, a folder, standard input; and what is no text is refused by its name."""

import gzip
import io
import os
import sys
from pathlib import Path

import pytest

from regard.config.errors import DataError
from regard.data import sources as module
from regard.data.sources import find_texts, read_texts


def write(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def texts(*names: str) -> list[str]:
    return [document.text for document in read_texts(names)]


def test_line_ends_and_odd_characters_stay_as_they_are(tmp_path):
    text = " \r\na\rb\n\n\x0c\x85\u2028é🙂 \ufeff"

    assert texts(write(tmp_path / "a.txt", text), write(tmp_path / "b.gz", text)) == [text, text]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    assert texts(write(tmp_path / "a.txt", b"\xef\xbb\xbfabc")) == ["abc"]


def test_a_folder_gives_its_texts_in_the_order_of_their_paths(tmp_path):
    for name in ("b.txt", "a/z.md", "a/c.txt.gz", "ignored.py", ".hidden.txt", ".git/no.txt", "a/empty.txt"):
        write(tmp_path / name, "" if "empty" in name else name)
    found = list(read_texts((str(tmp_path),)))

    assert [document.text for document in found] == ["a/c.txt.gz", "a/z.md", "b.txt"]
    assert [document.path for document in found] == [str(tmp_path / document.text) for document in found]


def test_a_file_of_any_name_can_be_named(tmp_path):
    assert texts(write(tmp_path / "poem", "x"), write(tmp_path / "poem.log", "y")) == ["x", "y"]


def test_standard_input_is_read_once_and_then_as_often_as_one_likes(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("añb\n".encode())))
    [source] = find_texts(["-"])

    assert ["".join(source.parts()) for _ in range(3)] == ["añb\n"] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_character_is_split_where_a_block_ends(size, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", size)
    text = "aé日🙂" * 5
    [source] = find_texts([write(tmp_path / "a.txt", b"\xef\xbb\xbf" + text.encode())])

    assert "".join(source.parts()) == text


def test_shakespeare_comes_with_the_package_unchanged():
    [source] = find_texts(["shakespeare"])

    assert source.digest == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"  # as published
    assert len("".join(source.parts())) == 1_115_394


LATIN = "Né à Genève, il aimait les fêtes.\n".encode("latin-1")
BAD = {  # what is written, and what the sentence must say besides the path
    "empty.txt": (b"", "empty"),
    "only-a-mark.txt": (b"\xef\xbb\xbf", "empty"),
    "empty.txt.gz": (b"", "empty"),
    "zero.txt": (b"some text\n\0\0\0", "byte 10 is zero; name a text file"),
    "picture.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is zero; name a text file"),
    "noise.txt": (bytes(range(128, 256)) * 9, "not a text: bytes from 0 on"),
    "latin.txt": (b"plain line\n" + LATIN, r"byte 0xE9 at 12 \(line 2\); .*iconv -f LATIN1 -t UTF-8"),
    "cut.txt": ("ab\né".encode()[:-1], r"byte 0xC3 at 3 \(line 2\)"),
    "utf16.txt": ("Hello\n".encode("utf-16"), "UTF-16, expected UTF-8; .*iconv -f UTF-16"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_text_is_one_sentence_with_path_and_remedy(name, tmp_path):
    content, says = BAD[name]
    path = write(tmp_path / name, content)

    with pytest.raises(DataError, match=says) as caught:
        texts(path)
    assert str(caught.value).startswith(path) and "\n" not in str(caught.value)


def test_the_place_of_a_wrong_byte_is_right_in_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbf" + "né\n".encode() * 50 + b"x\xe9y\n" + b"z" * 90)

    with pytest.raises(DataError, match=r"byte 0xE9 at 204 \(line 51\)"):
        texts(path)


def test_what_cannot_be_read_is_one_sentence_with_path_and_remedy(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "none").mkdir()
    write(tmp_path / "hollow" / "a.txt", "")
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"some text" * 99)[:-9])
    (tmp_path / "plain.gz").write_bytes(b"no gzip at all")
    cases = {
        "missing.txt": "no such file or folder", "pipe": "not a regular file.*standard input", "broken": "no such file",
        "none": r"no \.txt or \.md files", "hollow": "only empty texts", "torn.gz": "not a whole gzip file",
        "plain.gz": "not a whole gzip file",
    }  # fmt: skip
    for name, says in cases.items():
        with pytest.raises(DataError, match=f"{tmp_path / name}: .*{says}.*"):
            texts(str(tmp_path / name))
    with pytest.raises(DataError, match="did you mean 'shakespeare'"):
        texts("shakspeare")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match="standard input: empty"):
        texts("-")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("locked", ["a.txt", "inner"])
def test_what_may_not_be_read_is_not_passed_over(locked, tmp_path):
    write(tmp_path / "inner" / "b.txt", "b")
    write(tmp_path / "a.txt", "a")
    (tmp_path / locked).chmod(0)
    try:
        with pytest.raises(DataError, match=f"{tmp_path / locked}: permission denied"):
            texts(str(tmp_path))
    finally:
        (tmp_path / locked).chmod(0o700)
