"""What Python is told is what the command line prints, number for number: every modality, every form of an input."""

import json
import math
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard import config as C
from regard import text

RATE = 800
FRONTS = {
    "images": C.PatchEmbedding(patch_size=4, image_size=8, channels=1),
    "colours": C.PatchEmbedding(patch_size=4, image_size=8),
    "sounds": C.AudioEmbedding(sample_rate=RATE, max_seconds=1.0, features=C.RawFrames(frame_size=20)),
    "graphs": C.GraphEmbedding(num_tags=3, max_nodes=9),
    "series": C.SeriesEmbedding(channels=2, length=16, patch_length=4, stride=4, channel_mixing="mixed"),
    "films": C.VideoEmbedding(frames=4, image_size=8, channels=1, tubelet_size=2, patch_size=4),
}
CLASSES = ("no", "perhaps", "yes")


def built(front, task=None, **more):
    torch.manual_seed(1)
    trunk = C.Trunk(dim=12, depth=1, position=C.NoPosition(), attention=C.Attention(heads=3), mask="full")
    head = C.PoolingHead(pooling="mean", out=1 if isinstance(task, C.Regression) else len(CLASSES))
    model = regard.build(C.Transformer(embed=front, trunk=trunk, head=head)).eval()
    for part in model.parameters():
        torch.nn.init.normal_(part, std=0.3)
    model.task = task or C.Classification(classes=CLASSES, **more)
    return model


def words(task):
    from regard.tasks.task import add_task_tokens

    return add_task_tokens(task, text.train_tokenizer(C.CharTokenizer(), ["the cat sat on a mat, and it was good."]))


def tone(path, pitch, size, rate):
    samples = [int(9000 * math.sin(2 * math.pi * pitch * place / rate)) for place in range(size)]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return torch.tensor(samples) / 32768, rate


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A small random model of every modality, and files that they read."""
    place = tmp_path_factory.mktemp("shelf")
    for name, front in FRONTS.items():
        built(front, input={"images": "pixels"}.get(name, "text")).save(place / name)
    for name, task in {"texts": C.Classification(classes=CLASSES), "number": C.Regression(),
                       "pairs": C.Classification(classes=CLASSES, input_pair="b")}.items():  # fmt: skip
        tokenizer = words(task)
        model = built(C.TextEmbedding(vocab=len(tokenizer), segments=2), task)
        model.tokenizer, model.context = tokenizer, 32
        model.save(place / name)
    return place


@pytest.fixture
def printed(shelf, say, monkeypatch):
    """The classes that `regard classify` prints for some words."""
    monkeypatch.chdir(shelf)

    def printed(model, *given):
        said = say("classify", model, *given, "--top-k", "9", "--json")
        assert said.code == 0, said.err
        return [each.get("classes", each.get("number")) for each in json.loads(said.out)["answers"]]

    return printed


def told(model, inputs, *more, **how):
    return regard.load(model, device="cpu").classify(inputs, *more, **how)


@pytest.mark.parametrize("name", ["images", "colours"])
def test_an_image_is_the_same_as_a_path_a_picture_an_array_a_tensor_and_a_record(printed, name):
    front, draw = FRONTS[name], torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (8, 8) if front.channels == 1 else (8, 8, 3), dtype=torch.uint8, generator=draw)
    picture = Image.fromarray(pixels.numpy())
    picture.save(f"{name}.png")
    column = "pixels" if name == "images" else "image"
    forms = [f"{name}.png", Path(f"{name}.png"), picture, pixels, pixels.numpy(), pixels.tolist(),
             {column: f"{name}.png"}, {column: pixels.tolist(), "label": "no"}, Path(f"{name}.png").read_bytes(),
             {"bytes": Path(f"{name}.png").read_bytes(), "path": None}]  # fmt: skip
    want = printed(name, *[f"{name}.png"] * len(forms))

    assert told(name, forms) == want and len(want) == len(forms) and all(each == want[0] for each in want)


def test_a_sound_is_the_same_as_a_path_as_samples_with_their_rate_and_as_the_hub_has_it(printed):
    low, high = tone("low.wav", 60, 300, RATE), tone("high.wav", 260, 900, 2 * RATE)  # the second is resampled
    want = printed("sounds", "low.wav", "high.wav")
    samples, rate = high

    assert told("sounds", ["low.wav", Path("high.wav")]) == want != want[::-1]
    assert told("sounds", [low, (samples.numpy(), rate)]) == want
    assert told("sounds", [low[0], {"array": samples.numpy(), "sampling_rate": rate}]) == want
    assert told("sounds", [{"sound": "low.wav"}, {"sound": high}]) == want


@pytest.mark.parametrize("name, records", [
    ("graphs", [{"tags": [0, 1, 2], "edges": [[0, 1], [1, 2]]}, {"tags": [2, 2], "edges": [[0, 1]], "label": "no"}]),
    ("series", [{"series": [[0.1 * row, 0.2 - row] for row in range(16)]}, {"series": [[1.0, 2.0]] * 16}]),
    ("films", [{"film": np.arange(256).reshape(4, 8, 8).tolist()}, {"film": [[[7] * 8] * 8] * 4}]),
])  # fmt: skip
def test_records_are_dicts_as_a_file_of_records_has_them(printed, name, records):
    want = printed(name, f"{name}.jsonl" if lines(Path(f"{name}.jsonl"), records) else "")

    assert told(name, records) == want != want[::-1]
    assert told(name, [f"{name}.jsonl"]) == told(name, [Path(f"{name}.jsonl")]) == want
    bare = [record.get({"films": "film"}.get(name, name), record) for record in records]
    assert told(name, bare) == want


def test_texts_are_strings_records_and_files(printed):
    said = ["the cat sat on a mat", "it was good", "a"]
    lines(Path("said.jsonl"), [{"text": each} for each in said])
    want = printed("texts", *said)

    assert told("texts", said) == told("texts", [{"text": each} for each in said]) == want
    assert told("texts", [Path("said.jsonl")]) == printed("texts", "said.jsonl") == want
    assert told("number", said) == printed("number", *said) and all(isinstance(each, float) for each in
                                                                    told("number", said))  # fmt: skip
    odd = "said.jsonl"  # in a program a string is a text, whatever files there are
    assert told("texts", [odd]) != told("texts", [Path(odd)])


def test_pairs_of_texts_are_a_second_list_or_columns(printed):
    want = printed("pairs", "the cat\ta mat", "it was\tgood")

    assert told("pairs", ["the cat", "it was"], ["a mat", "good"]) == want
    assert told("pairs", [{"text": "the cat", "b": "a mat"}, {"text": "it was", "b": "good"}]) == want


def test_the_likeliest_few_are_the_first_of_all(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    [every], [two] = told("texts", ["it was good"]), told("texts", ["it was good"], top_k=2)

    assert list(two.items()) == list(every.items())[:2] and len(every) == 3


def test_vectors_of_sounds_and_graphs_are_taken_in_the_same_forms(shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    sound, graph = tone("soft.wav", 60, 300, RATE), {"tags": [0, 1, 2], "edges": [[0, 1], [1, 2]]}
    heard = regard.load("sounds", device="cpu").embeddings(["soft.wav", Path("soft.wav"), sound, sound[0]])
    drawn = regard.load("graphs", device="cpu").embeddings([graph, {"graph": graph}])

    for vectors in (heard, drawn):
        assert torch.equal(vectors, vectors[:1].expand_as(vectors)) and float(vectors[0].norm()) == pytest.approx(1)


WRONG = {
    "one alone": ("texts", "a cat", {}, C.ConfigError, r"inputs: 'a cat' is one alone; give a list"),
    "no class": ("texts", ["a"], {"top_k": 0}, C.ConfigError, "top_k: 0 returns no class"),
    "a picture to read": ("texts", ["a", torch.zeros(3)], {}, C.DataError, "text 2: Tensor is no text"),
    "nothing to read": ("texts", ["a", " "], {}, C.DataError, "text 2: ' ' is empty; give it some words"),
    "no second text": ("pairs", ["a"], {}, C.DataError, "text: this model was trained on pairs of texts; give the sec"),
    "too few": ("pairs", ["a", "b"], {"pairs": ["b"]}, C.ConfigError, "pairs: 1 texts for 2 of inputs"),
    "pairs of images": ("colours", ["a.png"], {"pairs": ["b"]}, C.ConfigError, "takes 'patches' and no texts"),
    "no file": ("colours", ["none.png"], {}, C.DataError, "none.png: no such file"),
    "no image": ("colours", [torch.zeros(2, 2, 2, 2)], {}, C.DataError, r"image 1: .*an array of \(2, 2, 2, 2\)"),
    "no columns": ("graphs", [{"node": 1}], {}, C.DataError, "record 1: node is no graph"),
    "whole samples": ("sounds", [(torch.ones(9, dtype=torch.int16), 800)], {}, C.DataError, "holds whole numbers"),
    "no rate": ("sounds", [(torch.rand(9), 0)], {}, C.DataError, "a rate of 0 samples a second"),
    "too long": ("sounds", [(torch.rand(900), 800)], {}, C.DataError, "1.1 seconds of sound, more than 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_a_model_cannot_read_is_one_sentence(shelf, monkeypatch, case):
    monkeypatch.chdir(shelf)
    name, inputs, how, kind, sentence = WRONG[case]

    with pytest.raises(kind, match=sentence):
        told(name, inputs, **how)
