"""Sound as Whisper hears it: the spectrogram of its feature extractor, and two convolutions over it."""

import numpy as np
import pytest
import torch
from hub.encoder_decoder_cases import whisper
from hub.published import pair
from torch.testing import assert_close
from transformers import WhisperFeatureExtractor

import regard
from regard import config as C
from regard.data.batching import seeded_generator
from regard.data.records import Record
from regard.inputs.audio import log_mel_spectrogram, normalize_spectrogram
from regard.inputs.audio_processor import AudioProcessor

RATE = 16_000


def front(seconds=0.5, mels=80, **more):
    torch.manual_seed(0)
    c = C.AudioEmbedding(
        sample_rate=RATE, max_seconds=seconds, features=C.ConvSpectrogram(n_mels=mels), **{"normalize": "peak", **more}
    )
    trunk = C.Trunk(dim=24, depth=1, attention=C.Attention(heads=3), position=C.LearnedPosition(length=c.count))
    return regard.build(C.Transformer(embed=c, trunk=trunk, head=C.PoolingHead(pooling="mean", out=5))).eval()


def wave(seconds, loud=0.3):
    """Two tones that grow and some noise, so that bands differ and some are quiet."""
    t = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(3).standard_normal(len(t))
    return (loud * t * np.sin(2 * np.pi * 440 * t) + 0.1 * np.sin(2 * np.pi * 3000 * t**2) + 1e-3 * noise).astype("f4")


@pytest.mark.spec("S080")
@pytest.mark.parametrize("mels, heard, seconds", [(80, 30, 2.17), (128, 5, 5.0), (23, 1, 0.001), (80, 1, 0.37)])
def test_the_spectrogram_is_that_of_whispers_feature_extractor(mels, heard, seconds):
    theirs = WhisperFeatureExtractor(feature_size=mels, chunk_length=heard)
    want = theirs(wave(seconds), sampling_rate=RATE, return_tensors="pt").input_features
    got = front(seconds=heard, mels=mels).embed.way.spectrogram(torch.from_numpy(wave(seconds))[None])

    assert got.shape == want.shape == (1, mels, 100 * heard)
    assert_close(got, want, atol=1e-4, rtol=0)
    assert want.std() > 0.01


def test_silence_is_heard_as_whisper_hears_it():
    want = WhisperFeatureExtractor(chunk_length=1)(np.zeros(777, "f4"), sampling_rate=RATE, return_tensors="pt")

    assert_close(front(seconds=1).embed.way.spectrogram(torch.zeros(1, 777)), want.input_features, atol=1e-4, rtol=0)


@torch.no_grad()
def test_samples_and_their_spectrogram_have_one_answer():
    model, x = front(), torch.from_numpy(wave(0.41))[None]

    assert_close(model(x), model(model.embed.way.spectrogram(x)))


@torch.no_grad()
def test_a_sound_means_the_same_beside_a_longer_one():
    model = front()
    short, long = torch.from_numpy(wave(0.2)), torch.from_numpy(wave(0.5, loud=0.9))
    beside = torch.stack([torch.nn.functional.pad(short, (0, len(long) - len(short))), long])

    assert_close(model(beside)[:1], model(short[None]))


@torch.no_grad()
def test_a_whisper_of_transformers_hears_raw_samples_as_we_do(tmp_path):
    of = pair(lambda: whisper(num_mel_bins=80, max_source_positions=50), tmp_path)
    sound, ids = wave(0.63), torch.randint(3, 50, (1, 5))
    features = WhisperFeatureExtractor(chunk_length=1)(sound, sampling_rate=RATE, return_tensors="pt").input_features
    want = of.theirs(input_features=features, decoder_input_ids=ids).logits

    assert_close(of.ours(ids, source=torch.from_numpy(sound)[None]), want, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 7777), (2, 80, 50)])
@torch.no_grad()
def test_it_is_one_graph(shape):
    model, x = front(), torch.randn(shape)

    assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


@torch.no_grad()
def test_a_batch_of_records_is_what_the_front_end_takes():
    model = front()
    sense = AudioProcessor(model.c.embed)
    examples = [sense.example(Record({"sound": wave(seconds)}, where="row"), "sound") for seconds in (0.2, 0.45)]
    batch = sense.collate(examples, None)
    alone = torch.cat([model(example["sound"][None]) for example in examples])

    assert batch["real"].all() and sense.length(examples[0]) == model.c.embed.count == 25
    assert_close(model(batch["ids"], real=batch["real"]), alone)


@torch.no_grad()
def test_parts_of_the_spectrogram_can_be_hidden():
    model = front(augment=C.AudioAugment(time_masks=2, freq_masks=3))
    x, made = torch.from_numpy(wave(0.45))[None], AudioProcessor(model.c.embed)
    example = made.example(Record({"sound": x[0].numpy()}, where="row"), "sound")
    hide = made.collate([example], seeded_generator(5, "test"))["hide"]
    table = model.embed.way.spectrogram(x)
    for first, long, low, wide in hide[0].tolist():
        table[:, low : low + wide, first : first + long] = 0

    assert_close(model(x, hide=hide), model(table))
    assert not torch.equal(model(x, hide=hide), model(x))


@pytest.mark.parametrize("shape", [(2, 8001), (2, 0), (2, 79, 40), (2, 80, 51), (2, 80, 0), (3,)])
def test_what_is_no_sound_is_refused_with_what_would_be(shape):
    with pytest.raises(ValueError) as error:
        front()(torch.zeros(shape))
    for word in ("8,000", "(batch, 80, 1 to 50)", str(tuple(shape))):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "said, words",
    [
        (dict(features=C.RawFrames(), normalize="peak"), ("normalize", "peak", "mel")),
        (dict(features=C.ConvSpectrogram(), max_seconds=0.0125), ("max_seconds", "200", "400", "201")),
        (dict(features=C.RawFrames(), augment=C.AudioAugment(time_masks=1)), ("augment.time_masks",)),
    ],
)
def test_settings_that_make_no_sense_are_refused(said, words):
    with pytest.raises(ValueError) as error:
        C.AudioEmbedding(**said)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("tokens", range(200, 420, 3))
def test_as_many_tokens_are_heard_as_there_are_places(tokens):
    """Seconds are a quotient, and no sample is lost by it."""
    assert C.AudioEmbedding(max_seconds=tokens * 320 / RATE, features=C.ConvSpectrogram()).count == tokens


def test_twenty_decibels_are_half_a_unit_and_eighty_below_the_loudest_is_the_floor():
    x, c = torch.from_numpy(wave(0.3)).repeat(2, 1), C.MelSpectrogram()
    x[:, 1600:3200] = 0  # silence, between sounds
    x[1] *= 10
    once, louder = normalize_spectrogram(log_mel_spectrogram(x, c, RATE, c.windows(4800)), "peak")

    assert_close(louder, once + 0.5, atol=1e-4, rtol=0)  # bands of noise alone lose a few bits
    assert_close(once.max() - once.min(), torch.tensor(2.0))
