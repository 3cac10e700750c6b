"""Sound as tokens: the spectrogram is everybody's, silence after a sound changes nothing, sounds can be told apart."""

import numpy as np
import pytest
import torch
from scipy.signal import stft
from torch.testing import assert_close
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

import regard
from regard import config as C
from regard.data.batching import seeded_generator
from regard.data.records import Record
from regard.inputs.audio import log_mel_spectrogram, mel_filterbank
from regard.inputs.audio_processor import AudioProcessor

RATE = 2000
FEATURES = {
    "mel": C.MelSpectrogram(win_length=64, hop_length=24, n_mels=15, frames_per_token=3),
    "grid": C.MelSpectrogram(win_length=64, hop_length=24, n_mels=15, frames_per_token=3, bands_per_token=5),
    "raw": C.RawFrames(frame_size=35),
    "multi_rate": C.MultiRateFrames(frame_size=7),
}


def sound(features, **more):
    return C.AudioEmbedding(sample_rate=RATE, max_seconds=1.5, features=FEATURES[features], **more)


def model(c, axes=1, out=5):
    trunk = C.Trunk(dim=24, depth=2, attention=C.Attention(heads=3), position=C.SinusoidalPosition(axes=axes))
    torch.manual_seed(0)
    return regard.build(C.Transformer(embed=c, trunk=trunk, head=C.PoolingHead(pooling="mean", out=out))).eval()


@pytest.mark.parametrize("mel_scale", ["slaney", "htk"])
@pytest.mark.parametrize("win_length", [200, 333])
def test_the_mel_bands_are_those_of_transformers(mel_scale, win_length):
    c = C.MelSpectrogram(win_length=win_length, hop_length=80, n_mels=23, mel_scale=mel_scale, f_min=20.0, f_max=700.0)
    theirs = mel_filter_bank(
        win_length // 2 + 1, 23, 20.0, 700.0, RATE, "slaney" if mel_scale == "slaney" else None, mel_scale
    )
    if win_length % 2 == 0:  # theirs has the last bin of an odd window at half the rate, where it is not
        assert_close(mel_filterbank(c, RATE), torch.from_numpy(theirs).float())
    frequencies = np.fft.rfftfreq(win_length, 1 / RATE)
    peaks = frequencies[mel_filterbank(c, RATE).numpy().argmax(0)]

    assert (np.diff(peaks) >= 0).all() and peaks[0] >= 20 and peaks[-1] <= 700


@pytest.mark.spec("S080")
def test_the_spectrogram_is_that_of_transformers_and_of_scipy():
    c, x = C.MelSpectrogram(win_length=200, hop_length=80, n_mels=23), torch.randn(2, 1111)
    count = c.windows(1111)
    padded = np.pad(x[0].numpy(), (0, (count - 1) * 80 + 200 - 1111))
    filters = mel_filter_bank(101, 23, 0.0, RATE / 2, RATE, "slaney", "slaney")
    theirs = spectrogram(padded, window_function(200, "hann"), 200, 80, power=2.0, center=False, mel_filters=filters,
                         mel_floor=1e-10, log_mel="log")  # fmt: skip
    ours = log_mel_spectrogram(x, c, RATE, count)

    assert_close(ours[0].mT, torch.from_numpy(theirs).float(), atol=1e-4, rtol=1e-5)
    _, _, waves = stft(padded, window="hann", nperseg=200, noverlap=120, boundary=None, padded=False)
    power = np.abs(waves * 100) ** 2  # scipy divides by the sum of the window, which is 100
    logs = torch.from_numpy(np.log(np.maximum(filters.T @ power, 1e-10))).float()
    assert_close(ours[0].mT, logs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_sound_means_the_same_alone_and_beside_longer_ones(features, normalize):
    c = sound(features, normalize=normalize)
    front, sense = model(c, 2 if features == "grid" else 1), AudioProcessor(c)
    sounds = [{"sound": torch.randn(size) / 9} for size in (501, 1333, 77)]
    batch = sense.collate(sounds, None)
    together = front(batch["ids"], real=batch["real"])

    for row, each in enumerate(sounds):
        assert_close(together[row], front(each["sound"][None])[0], atol=1e-5, rtol=1e-4)
        assert int(batch["real"][row].sum()) == sense.length(each)


@pytest.mark.parametrize("features", FEATURES)
def test_with_normalize_it_does_not_matter_how_loud_a_sound_is(features):
    front, x = model(sound(features), 2 if features == "grid" else 1), torch.randn(2, 1501) / 5

    assert_close(front(x), front(x / 7), atol=1e-3, rtol=1e-2)


def test_tokens_of_a_spectrogram_stand_in_time_and_in_time_and_frequency():
    x = torch.randn(2, 1400)
    flat, grid = (model(sound(features), axes).embed(x) for features, axes in (("mel", 1), ("grid", 2)))
    steps = FEATURES["mel"].steps(1400)

    assert flat.coords is None and flat.count == steps
    assert grid.grid == (steps, 3) and grid.count == 3 * steps


@pytest.mark.spec("S081")
def test_three_rates_read_every_hundredth_tenth_and_single_sample():
    c = sound("multi_rate", normalize=False)
    front, x = model(c).embed, torch.randn(1, 1400)
    tokens, counts = front(x), (2, 20, 200)  # 1,400 samples in stretches of 7

    assert c.features.each(1400) == counts and tokens.count == sum(counts) == c.features.tokens(1400)
    parts = tokens.x.split(counts, 1)
    for part, step, map, rate in zip(parts, (100, 10, 1), front.way.maps, front.way.rates.weight, strict=True):
        assert_close(part[0], map(x[0, ::step].view(-1, 7)) + rate)
    times = [part.flatten().tolist() for part in tokens.coords.split(counts, 1)]
    assert times[0] == [0, 100] and times[1] == list(range(0, 200, 10)) and times[2] == list(range(200))


def test_a_later_sample_moves_no_earlier_frame():
    front, x = model(sound("raw", normalize=False)).embed, torch.randn(1, 700)
    other = x.clone()
    other[0, 350:] = 0

    assert_close(front(x).x[:, :10], front(other).x[:, :10])
    assert not torch.allclose(front(x).x[:, 10:], front(other).x[:, 10:])


# ---------------------------------------------------------------- the sense


def test_training_varies_sounds_and_validation_never_does():
    vary = C.AudioAugment(speed=0.2, shift=0.3, noise=0.5, time_masks=2, freq_masks=1)
    sense = AudioProcessor(sound("mel", augment=vary))
    sounds = [{"sound": torch.randn(size)} for size in (901, 1333)]
    one, same, other = (sense.collate(sounds, seeded_generator(0, word)) for word in ("a", "a", "b"))
    plain = sense.collate(sounds, None)

    assert all(torch.equal(one[name], same[name]) for name in one)
    assert one["ids"].shape != other["ids"].shape or not torch.equal(one["ids"], other["ids"])
    assert "hide" not in plain and torch.equal(plain["ids"][1, :1333], sounds[1]["sound"])
    assert one["hide"].shape == (2, 3, 4) and one["ids"].shape[1] <= 1.5 * RATE


def test_what_is_hidden_is_not_heard():
    c = sound("mel")
    front, x = model(c), torch.randn(1, 1400)
    hide = torch.tensor([[[0, FEATURES["mel"].windows(1400) + 9, 0, 15]]])

    assert_close(front.embed(x, hide=hide).x, front.embed.way.map.bias.expand_as(front.embed(x).x))
    part = torch.tensor([[[0, 6, 0, 15]]])  # the windows of the first two tokens
    moved = (front.embed(x, hide=part).x - front.embed(x).x).abs().amax(-1)[0] > 1e-6
    assert moved[:2].all() and not moved[2:].any()


def test_samples_in_a_record_are_a_sound_too():
    sense, samples = AudioProcessor(sound("raw")), [0.5, -0.25, 0.125] * 99

    for given in (samples, torch.tensor(samples), torch.tensor(samples).numpy()):
        assert_close(sense.example(Record({"sound": given}, "a:1"), "sound")["sound"], torch.tensor(samples))


BAD = {
    "a word": ({"a": 1}, "expected the name of a sound file, or samples"),
    "no file": ("nowhere.wav", "no sound file 'nowhere.wav'"),
    "silence": ([0.0] * 50, "silence from beginning to end"),
    "nothing": ([], "without samples"),
    "a cube": (torch.zeros(2, 2, 2), r"table of \(2, 2, 2\) numbers"),
    "no number": ([0.5, float("nan")], "no samples"),
    "too long": ([0.5] * 3001, "3,001 samples, and 1.5 seconds are 3,000"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_is_one_sentence_with_its_place(name):
    given, says = BAD[name]

    with pytest.raises(C.DataError, match=says) as caught:
        AudioProcessor(sound("mel")).example(Record({"sound": given}, "list.jsonl:7"), "sound")
    assert str(caught.value).startswith("list.jsonl:7") and "\n" not in str(caught.value)


SETTINGS = {
    "a hop beyond the window": (lambda: C.MelSpectrogram(win_length=100, hop_length=101), "hop_length"),
    "bands that do not fill": (lambda: C.MelSpectrogram(n_mels=80, bands_per_token=3), "bands_per_token"),
    "a pitch that is not there": (
        lambda: C.AudioEmbedding(sample_rate=8000, features=C.MelSpectrogram(f_max=4001.0)),
        "features.f_max",
    ),
    "a day": (lambda: C.AudioEmbedding(max_seconds=86_400.0), "max_seconds"),
    "fine before coarse": (lambda: C.MultiRateFrames(strides=(1, 10)), "strides"),
    "hidden bands of samples": (
        lambda: C.AudioEmbedding(features=C.RawFrames(), augment=C.AudioAugment(freq_masks=1)),
        "augment.time_masks",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be_are_refused(name):
    make, says = SETTINGS[name]

    with pytest.raises(ValueError, match=f"^{says}: "):
        make()


def tones(count, seed):
    """Sounds that rise or fall, at any loudness and pitch, in noise: (samples, which)."""
    luck = torch.Generator().manual_seed(seed)
    for place in range(count):
        size = int(torch.randint(700, 1400, (), generator=luck))
        low, high = (float(torch.rand((), generator=luck)) * 300 + start for start in (100, 500))
        begin, end = (low, high) if place % 2 else (high, low)
        pitch = torch.linspace(begin, end, size)
        wave = torch.sin(2 * torch.pi * pitch.cumsum(0) / RATE) * (0.05 + float(torch.rand((), generator=luck)))
        yield {"sound": wave + 0.02 * torch.randn(size, generator=luck)}, place % 2


@pytest.mark.slow
@pytest.mark.spec("S136")
def test_a_small_model_learns_whether_a_tone_rises_or_falls():
    c = C.AudioEmbedding(
        sample_rate=RATE,
        max_seconds=1.0,
        features=C.MelSpectrogram(win_length=64, hop_length=32, n_mels=20, frames_per_token=2),
    )
    torch.manual_seed(0)
    learner, sense = model(c, out=2).train(), AudioProcessor(c)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    for step in range(40):
        sounds, which = zip(*tones(24, step), strict=True)
        loss = torch.nn.functional.cross_entropy(learner(**sense.collate(sounds, None)), torch.tensor(which))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sounds, which = zip(*tones(100, 10_000), strict=True)
    right = learner.eval()(**sense.collate(sounds, None)).argmax(-1) == torch.tensor(which)

    assert float(right.float().mean()) >= 0.95
