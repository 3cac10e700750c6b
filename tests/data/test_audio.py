"""Sound files: every kind of WAV is what soundfile hears, other rates what scipy makes of them, bad ones a sentence."""

import gzip
import math
import struct
import warnings
import wave

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly
from torch.testing import assert_close

import regard.inputs  # noqa: F401  cuts enter themselves in the table of sources
from regard import config as C
from regard.data.readers.audio import MONO_NOTICE, open_audio, read_audio, resample
from regard.data.records import BadRecordPolicy
from regard.data.sources import find_records

RATE = 1000


def tone(size=701, channels=1, pitch=50.0):
    time = np.arange(size)[:, None] / RATE
    return 0.5 * np.sin(2 * math.pi * pitch * time * np.arange(1, channels + 1))


def plain(path, size=701, rate=RATE, channels=1):
    """A 16-bit WAV by the standard library."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((tone(size, channels) * 32767).astype("<i2").tobytes())
    return path


@pytest.mark.parametrize("kind", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("form", ["WAV", "WAVEX"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_wav_is_what_soundfile_hears(kind, form, channels, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(channels=channels), RATE, subtype=kind, format=form)
    theirs, _ = soundfile.read(path, dtype="float32", always_2d=True)

    with open_audio(path) as file:
        assert (file.rate, file.channels, file.count, type(file).__name__) == (RATE, channels, 701, "WavReader")
        assert_close(file.read(0, 701), torch.from_numpy(theirs), atol=1e-7, rtol=0)
        assert_close(file.read(33, 7), torch.from_numpy(theirs[33:40]), atol=1e-7, rtol=0)


@pytest.mark.parametrize("suffix", ["flac", "ogg"])
def test_other_files_are_read_by_soundfile(suffix, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(8001), 8000)

    assert_close(read_audio(path, 8000, 9.0), torch.from_numpy(tone(8001)[:, 0]).float(), atol=0.02, rtol=0)


def test_without_soundfile_a_flac_is_one_sentence_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")

    with pytest.raises(C.DataError, match=r"a\.flac: .*pip install 'regard\[data\]', or save it as 16-bit WAV"):
        read_audio(tmp_path / "a.flac", RATE, 1.0)


def test_odd_chunks_and_a_header_from_a_pipe_are_read(tmp_path):
    raw = plain(tmp_path / "a.wav").read_bytes()
    head, samples = raw[:36], raw[44:]
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # a chunk of three bytes fills four
    (tmp_path / "odd.wav").write_bytes(head + odd + raw[36:])
    (tmp_path / "pipe.wav").write_bytes(head + b"data" + b"\xff" * 4 + samples)

    for name in ("odd.wav", "pipe.wav"):
        assert_close(read_audio(tmp_path / name, RATE, 1.0), read_audio(tmp_path / "a.wav", RATE, 1.0))


def test_several_channels_are_their_mean_and_that_is_said(tmp_path):
    path = plain(tmp_path / "a.wav", channels=2)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        samples = read_audio(path, RATE, 1.0)

    assert [str(each.message) for each in heard] == [MONO_NOTICE]
    assert_close(samples, torch.from_numpy(tone(channels=2).mean(-1)).float(), atol=1e-4, rtol=0)


def test_a_recording_that_was_too_loud_is_said(tmp_path):
    path = tmp_path / "a.wav"
    pytest.importorskip("soundfile").write(path, np.clip(4 * tone(), -1, 1), RATE)

    with pytest.warns(UserWarning, match="a sound is clipped"):
        read_audio(path, RATE, 1.0)


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize("old, new", [(44_100, 8000), (8000, 16_000), (16_000, 11_025), (48_000, 44_100)])
def test_another_rate_keeps_what_both_can_hear(old, new):
    """Tones below a third of either rate; scipy's own filter is the yardstick for how exact that can be."""
    seconds, least = 0.5, min(old, new)
    pitches = [0.011 * least, 0.13 * least, 0.31 * least]

    def made(rate):
        time = torch.arange(int(seconds * rate), dtype=torch.float64) / rate
        return sum(torch.sin(2 * torch.pi * pitch * time) for pitch in pitches).float()

    ours, meant = resample(made(old), old, new), made(new)
    gcd = math.gcd(old, new)
    theirs = torch.from_numpy(resample_poly(made(old).numpy(), new // gcd, old // gcd))
    middle = slice(200, -200)

    assert abs(len(ours) - seconds * new) < 1
    error = float((ours[: len(meant)] - meant)[middle].abs().max())
    assert error < 0.003 and error < float((theirs[: len(meant)] - meant)[middle].abs().max())


def test_what_the_lower_rate_cannot_hear_is_not_folded_back():
    time = torch.arange(22_050) / 44_100

    assert float(resample(torch.sin(2 * torch.pi * 5000 * time), 44_100, 8000)[200:-200].abs().max()) < 0.002


def test_a_rate_without_a_small_ratio_is_refused(tmp_path):
    with pytest.raises(C.DataError, match="44,101 samples a second, which has no small ratio to 8,000"):
        resample(torch.zeros(99), 44_101, 8000)


# ---------------------------------------------------------------- bad files


def header(size, there, code=1, bits=16, rate=RATE, channels=1):
    form = struct.pack("<HHIIHH", code, channels, rate, rate * 2, 2, bits)
    return (b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<I", 16) + form + b"data"
            + struct.pack("<I", size) + b"\x01\x02" * (there // 2))  # fmt: skip


BAD = {
    "text.wav": (b"once upon a time there was a sound\n", "begins with b'once' and not as a WAV file does"),
    "empty.wav": (b"", "begins with b''"),
    "torn-header.wav": (header(40, 40)[:30], "whose header ends after 10 bytes of 16"),
    "no-samples.wav": (header(40, 40)[:36], "without its samples"),
    "no-header.wav": (b"RIFF\x04\0\0\0WAVE", "without its header"),
    "cut-short.wav": (header(4000, 400), "its header gives 4,000 bytes of samples, and has 400"),
    "zero.wav": (header(0, 0), "a sound without samples"),
    "silence.wav": (header(400, 0) + bytes(400), "silence from beginning to end"),
    "no-rate.wav": (header(40, 40, rate=0), "0 samples a second"),
    "long.wav": (header(60_000, 60_000), "30.0 seconds of sound, more than 2; .*model.embed.too_long=truncate"),
    "infinite.wav": (header(8, 0, code=3, bits=32) + struct.pack("<ff", 0.5, math.inf), "no samples"),
    "noise.flac": (bytes(range(256)) * 9, "not a whole sound file"),
    "text.ogg": (b"once upon a time", "not a whole sound file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_is_one_sentence_with_path_and_remedy(name, tmp_path):
    if not name.endswith(".wav"):
        pytest.importorskip("soundfile")
    content, says = BAD[name]
    (tmp_path / name).write_bytes(content)

    with pytest.raises(C.DataError, match=says) as caught:
        read_audio(tmp_path / name, RATE, 2.0)
    assert str(caught.value).startswith(str(tmp_path / name)) and "\n" not in str(caught.value)


def test_ten_hours_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "night.wav"
    size = 10 * 3600 * 16_000 * 2
    path.write_bytes(header(size, 0, rate=16_000))
    with path.open("r+b") as file:
        file.truncate(44 + size)  # a hole: no byte of it is on the disk

    with pytest.raises(C.DataError, match="36,000.0 seconds of sound, more than 10"):
        read_audio(path, 16_000, 10.0)
    with path.open("r+b") as file:
        file.seek(44)
        file.write(b"\x01\x02" * 8)
    assert len(read_audio(path, 16_000, 10.0, cut=True)) == 160_000


# ---------------------------------------------------------------- cuts


def long_one(folder):
    """A sound and the table of its cuts."""
    plain(folder / "all.wav", size=900)
    rows = "digit\tspeaker\tstart\tlength\n0\tann\t0\t300\n1\tbob\t300\t250\n0\tann\t550\t350\n"
    (folder / "all.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    return f"{folder / 'all.wav'} + {folder / 'all.tsv.gz'}"


def test_a_table_of_cuts_gives_each_its_stretch_of_the_sound(tmp_path):
    [table] = find_records([long_one(tmp_path)])
    records, whole = list(table.records(BadRecordPolicy())), read_audio(tmp_path / "all.wav", RATE, 2.0)

    assert [(record["digit"], record["speaker"]) for record in records] == [("0", "ann"), ("1", "bob"), ("0", "ann")]
    assert [len(read_audio(record["sound"], RATE, 2.0)) for record in records] == [300, 250, 350]
    assert_close(torch.cat([read_audio(record["sound"], RATE, 2.0) for record in records]), whole)
    assert records[1].where.endswith("all.tsv.gz:3")


def test_other_samples_or_other_cuts_are_other_data(tmp_path):
    def digest():
        return find_records([f"{tmp_path / 'all.wav'} + {tmp_path / 'all.tsv.gz'}"])[0].digest

    long_one(tmp_path)
    first = digest()
    (tmp_path / "all.tsv.gz").write_bytes(gzip.compress(b"start\tlength\n0\t300\n"))
    second = digest()
    plain(tmp_path / "all.wav", size=901)

    assert len({first, second, digest()}) == 3


@pytest.mark.parametrize("row, says", [
    ("900\t1", r"samples 900 to 901, and .*all\.wav has 900"), ("-1\t5", "'start' holds '-1'"),
    ("0\thalf", "'length' holds 'half'"),
])  # fmt: skip
def test_a_cut_that_is_not_there_is_named_by_its_line_or_passed_over(row, says, tmp_path):
    plain(tmp_path / "all.wav", size=900)
    (tmp_path / "all.tsv").write_text(f"start\tlength\n0\t300\n{row}\n")
    [table] = find_records([f"{tmp_path / 'all.wav'} + {tmp_path / 'all.tsv'}"])

    with pytest.raises(C.DataError, match=rf"all\.tsv:3: .*{says}"):
        list(table.records(BadRecordPolicy()))
    skipping = BadRecordPolicy("skip")
    assert len(list(table.records(skipping))) == 1 and skipping.count == 1


def test_a_sound_without_a_table_of_cuts_is_refused(tmp_path):
    plain(tmp_path / "a.wav")

    with pytest.raises(C.DataError, match=r"a\.tsv with columns start and length"):
        find_records([f"{tmp_path / 'a.wav'} + {tmp_path / 'a.wav'}"])


def test_sounds_are_found_beside_the_file_that_names_them(tmp_path):
    plain(tmp_path / "a.wav")

    assert len(read_audio("a.wav#3+50", RATE, 1.0, where=f"{tmp_path / 'list.jsonl'}:4")) == 50
    with pytest.raises(C.DataError, match=r"list\.jsonl:4: no sound file 'b\.wav', here or in "):
        read_audio("b.wav", RATE, 1.0, where=f"{tmp_path / 'list.jsonl'}:4")
