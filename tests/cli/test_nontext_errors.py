"""The table of mistakes in what is no text: damaged pictures, sounds, graphs and series, and kernels asked too much.

A row: a recipe, what is changed in it, the exit code, and words that the one sentence on stderr must have.
"""

import json
import struct
import wave
import zlib

import pytest
from PIL import Image

USAGE, DATA = 2, 3
COMMON = """
[data]
source = "{source}"
validation = 0.0
[task]
{task}
[model]
{model}
dim = 12
depth = 1
heads = 3
[train]
steps = 2
batch_size = 2
device = "cpu"
compile = false
eval_every = "none"
save_every = "none"
"""
POOLED = 'head = {kind = "pooling", pooling = "mean"}\n'
RECIPES = {
    "image": ("images", 'kind = "classification"',
              POOLED + 'embed = {kind = "patches", patch_size = 4, image_size = 8}'),
    "sound": ("sounds", 'kind = "classification"',
              POOLED + 'embed = {kind = "audio", sample_rate = 8000, max_seconds = 0.2, '
                       'features = {kind = "raw", frame_size = 80}}'),
    "graph": ("graphs.jsonl", 'kind = "classification"',
              POOLED + 'position = {kind = "none"}\nembed = {kind = "graph", num_tags = 3}'),
    "series": ("series.csv", 'kind = "forecasting"\ndate_column = "when"',
               'head = {kind = "forecast", horizon = 4}\n'
               'embed = {kind = "series", length = 16, patch_length = 4, stride = 4}'),
    "text": ("text.txt", 'kind = "next_token"', 'mask = "causal"'),
}  # fmt: skip


def png(wide: int, high: int) -> bytes:
    """The header of a picture of any size, and hardly a pixel of it."""

    def chunk(name: bytes, said: bytes) -> bytes:
        return struct.pack(">I", len(said)) + name + said + struct.pack(">I", zlib.crc32(name + said))

    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))
            + chunk(b"IEND", b""))  # fmt: skip


def sound(path, count=800, rate=8000, cut=0):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((b"\x01\x20\xf0\xe0" * count)[: 2 * count])
    path.write_bytes(path.read_bytes()[: -cut or None])


def rated(path, rate):
    sound(path)
    raw = bytearray(path.read_bytes())
    raw[24:28] = struct.pack("<I", rate)
    path.write_bytes(raw)


SPOILT = {  # one file more, beside good ones
    "bomb": ("images", lambda folder: (folder / "z.png").write_bytes(png(60_000, 60_000))),
    "corrupt": ("images", lambda folder: (folder / "z.png").write_bytes(png(8, 8)[:-30])),
    "no picture": ("images", lambda folder: (folder / "z.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")),
    "broken numbers": ("images", lambda folder: Image.new("F", (8, 8)).save(folder / "z.tif")),
    "no samples": ("sounds", lambda folder: sound(folder / "z.wav", 0)),
    "torn": ("sounds", lambda folder: sound(folder / "z.wav", cut=301)),
    "no header": ("sounds", lambda folder: (folder / "z.wav").write_bytes(b"RIFF\x10\0\0\0WAVEfm")),
    "no rate": ("sounds", lambda folder: rated(folder / "z.wav", 0)),
    "a slow rate": ("sounds", lambda folder: rated(folder / "z.wav", 1)),
    "no sound": ("sounds", lambda folder: (folder / "z.wav").write_bytes(b"hello")),
}
GOOD = [{"tags": [0, 1, number % 3], "edges": [[0, 1]], "label": "ab"[number % 2]} for number in range(9)]
GRAPHS = {
    "dangling": {"tags": [0, 1], "edges": [[0, 7]], "label": "a"},
    "negative": {"tags": [0, 1], "edges": [[0, -1]], "label": "a"},
    "empty": {"tags": [], "edges": [], "label": "a"},
    "untagged": {"edges": [[0, 1]], "label": "a"},
    "strange": {"tags": [0, 9], "edges": [[0, 1]], "label": "a"},
}


def rows(count, **changed):
    """A table of hours, some of its numbers replaced."""
    said = "".join(f"2024-01-{1 + n // 24:02d} {n % 24:02d}:00,{changed.get(f'n{n}', (n * 7) % 13)},{(n * 5) % 11}\n"
                   for n in range(count))  # fmt: skip
    return "when,a,b\n" + said


SERIES = {"gaps": rows(90, n50=""), "words": rows(90, n50="high"), "short": rows(19)}
SERIES["skipped"] = "".join(line for n, line in enumerate(rows(90).splitlines(True)) if n != 40)
SERIES["endless"] = rows(90, n50="inf")


@pytest.fixture
def shelf(desk):
    for kind, (source, task, model) in RECIPES.items():
        (desk / f"{kind}.toml").write_text(COMMON.format(source=source, task=task, model=model))
    for name, (kind, spoil) in SPOILT.items():
        for label in "ab":
            folder = desk / name.replace(" ", "-") / label
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 8), (number, 9, 9)).save(folder / f"{number}.png") if kind == "images" else sound(
                    folder / f"{number}.wav", 400 + number)  # fmt: skip
        spoil(desk / name.replace(" ", "-") / "a")
    for name, graph in GRAPHS.items():
        (desk / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*GOOD, graph]))
    for name, table in SERIES.items():
        (desk / f"{name}.csv").write_text(table)
    (desk / "text.txt").write_text("abcdefghijklmnop " * 40)
    return desk


MISTAKES = {
    # -------- pictures
    "a bomb": ("image data.source=bomb", DATA, "bomb/a/z.png pixels 67,108,864 smaller"),
    "a picture cut short": ("image data.source=corrupt", DATA, "corrupt/a/z.png image"),
    "a picture that is none": ("image data.source=no-picture", DATA, "no-picture/a/z.png PNG JPEG"),
    "a picture of broken numbers": ("image data.source=broken-numbers", DATA, "broken-numbers/a/z.tif mode F 8 bits"),
    "a folder of no pictures": ("image data.source=no-samples", DATA, "no-samples"),
    "pictures that patches do not fill": ("image model.embed.patch_size=3", USAGE, "model.embed patch_size 3 8"),
    # -------- sounds
    "a sound without samples": (
        "sound data.source=no-samples",
        DATA,
        "no-samples/a/z.wav samples data.on_bad_record=skip",
    ),
    "a sound cut short": ("sound data.source=torn", DATA, "torn/a/z.wav 1,600 1,299 again"),
    "a sound without a header": ("sound data.source=no-header", DATA, "no-header/a/z.wav header again"),
    "a sound at no rate": ("sound data.source=no-rate", DATA, "no-rate/a/z.wav 0 again"),
    "a sound of one sample a second": ("sound data.source=a-slow-rate", DATA, "a-slow-rate/a/z.wav seconds cut"),
    "a sound that is a greeting": ("sound data.source=no-sound", DATA, "no-sound/a/z.wav"),
    "bands that cannot be heard": (
        'sound model.embed={kind="audio",sample_rate=8000,features={kind="mel",f_max=9000.0}}',
        USAGE,
        "f_max 9000 8,000",
    ),
    # -------- graphs
    "an edge to nowhere": ("graph data.source=dangling.jsonl", DATA, "dangling.jsonl:10 edge 7 mend"),
    "an edge to before the first": ("graph data.source=negative.jsonl", DATA, "negative.jsonl:10 edge -1 mend"),
    "a graph without nodes": ("graph data.source=empty.jsonl", DATA, "empty.jsonl:10 0 nodes"),
    "nodes without tags": ("graph data.source=untagged.jsonl", DATA, "untagged.jsonl:10"),
    "a tag too many": ("graph data.source=strange.jsonl", DATA, "strange.jsonl:10 tag 9 model.embed.num_tags"),
    "nodes in an order": ("graph model.position.kind=rotary", USAGE, "position.kind 'rotary' none graph_distance"),
    # -------- series
    "a gap": ("series data.source=gaps.csv", DATA, "gaps.csv:52 'a' task.fill_gaps"),
    "an hour that is not there": ("series data.source=skipped.csv", DATA, "skipped.csv"),
    "a word among numbers": ("series data.source=words.csv", DATA, "words.csv:52 'a' 'high' task.columns"),
    "a number without end": ("series data.source=endless.csv", DATA, "endless.csv:52 'a'"),
    "a table too short": ("series data.source=short.csv", DATA, "short.csv 19 16 4 model.embed.length"),
    "dates in another column": (
        "series data.source=gaps.csv task.date_column=date",
        DATA,
        "'date' when, task.date_column",
    ),
    # -------- kernels
    "linformer, causal": ("text model.kernel=linformer(4,512)", USAGE, "'linformer' full, causal 'auto'"),
    "linformer without a length": ("text model.kernel=linformer", USAGE, "'linformer' length linformer(256"),
    "linformer of another length": (
        'text model.kernel=linformer(4,12) model.mask=full task={kind="masked_lm"} train.context=16',
        USAGE,
        "'linformer' 12 16",
    ),  # fmt: skip
    "lsh with q and k": ("text model.kernel=lsh", USAGE, "'lsh' attention.projections"),
    "a sum through a window": (
        "text model.kernel=linear model.mask=causal&window(4)",
        USAGE,
        "'linear' window(4) 'auto'",
    ),
    "a sum with a bias": ("text model.kernel=performer model.position.kind=alibi", USAGE, "'performer' bias position"),
    "chunks without a window": ("text model.kernel=local", USAGE, "'local' causal 'auto'"),
    "image windows in a text": ("text model.kernel=window2d", USAGE, "'window2d' window2d(size, 'auto'"),
    "the best of none": ("text model.kernel=topk(0)", USAGE, "'topk' 0"),
    "half a feature": ("text model.kernel=performer(3)", USAGE, "'performer' even 3"),
    "numbers for a kernel without": ("text model.kernel=linear(4)", USAGE, "'linear' no numbers 4"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_lost(say, shelf, name):
    typed, code, parts = MISTAKES[name]
    kind, *changes = typed.split()
    before = {path: path.read_bytes() for path in shelf.rglob("*") if path.is_file()}
    told = say("train", f"{kind}.toml", *changes, "--out", "new")

    assert (told.code, told.out) == (code, ""), told.err
    assert told.err.startswith("regard: ") and told.err.count("\n") == 1, told.err
    assert "Traceback" not in told.err and "bug" not in told.err
    assert [part for part in parts.split() if part not in told.err] == [], told.err
    assert {path: path.read_bytes() for path in before} == before
    assert not list(shelf.glob("new/checkpoints/*"))


def test_what_is_bad_may_be_passed_over(say, shelf):
    told = say("train", "sound.toml", "data.source=torn", "data.on_bad_record=skip", "--out", "new")

    assert told.code == 0, told.err
    assert "1 " in told.err and "torn/a/z.wav" in told.err


def test_what_only_a_batch_shows_is_said_at_the_first(say, shelf):
    maps = 'model.trunk.attention.projections=["q","v","out"]'
    told = say("train", "text.toml", "model.kernel=lsh", maps, "train.pack=true", "--out", "new")

    assert told.code == USAGE and "Traceback" not in told.err
    assert told.err.splitlines()[-1].startswith("regard: attention.kernel 'lsh' ")
