"""Series as tokens: patches are those of unfold, what is taken on the way in is given back, channels stay apart."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import config as C
from regard.data.records import Record
from regard.inputs.series import SeriesProcessor, SeriesTokens

CHANNELS, LENGTH, HORIZON = 3, 41, 5


def series(**more):
    return C.SeriesEmbedding(**({"channels": CHANNELS, "length": LENGTH, "patch_length": 8, "stride": 5} | more))


def model(c, head=None):
    trunk = C.Trunk(dim=12, depth=2, attention=C.Attention(heads=3), dropout=C.NO_DROPOUT)
    torch.manual_seed(0)
    return regard.build(C.Transformer(embed=c, trunk=trunk, head=head or C.ForecastHead(horizon=HORIZON))).eval()


@pytest.mark.parametrize("channel_mixing, rows, width", [("independent", 2 * CHANNELS, 8), ("mixed", 2, 8 * CHANNELS)])
def test_patches_are_stretches_of_rows_with_the_last_row_repeated(channel_mixing, rows, width):
    c = series(channel_mixing=channel_mixing, normalize=False)
    x = torch.randn(2, LENGTH, CHANNELS)
    made = model(c).embed.patches(x)
    longer = torch.cat([x, x[:, -1:].expand(-1, c.padding, -1)], 1)

    assert made.shape == (rows, c.count, width)
    for place in range(c.count):
        meant = longer[:, 5 * place : 5 * place + 8].mT  # (B, C, patch)
        assert_close(made[:, place], meant.flatten(0, 1) if channel_mixing == "independent" else meant.flatten(1))


COUNTS = [(336, 16, 8, 42), (512, 16, 8, 64), (41, 8, 5, 9), (8, 8, 8, 2)]  # the first two are PatchTST/42 and /64


@pytest.mark.parametrize("length, patch_length, stride, count", COUNTS)
def test_there_are_as_many_patches_as_published(length, patch_length, stride, count):
    c = C.SeriesEmbedding(channels=1, length=length, patch_length=patch_length, stride=stride)

    assert c.count == count and c.length + c.padding == c.patch_length + (count - 1) * stride
    assert model(c).embed(torch.randn(1, length, 1)).count == count


@pytest.mark.parametrize("channel_mixing", ["independent", "mixed"])
def test_normalize_gives_back_the_level_and_the_spread_that_it_took(channel_mixing):
    """x -> a·x + b on every window moves the forecast in the same way, whatever a and b are."""
    forecaster, x = model(series(channel_mixing=channel_mixing)), torch.randn(2, LENGTH, CHANNELS)
    a, b = torch.tensor([2.0, 0.5, 7.0]), torch.tensor([3.0, -100.0, 40.0])

    assert_close(forecaster(a * x + b), a * forecaster(x) + b, atol=1e-2, rtol=1e-3)
    plain = model(series(channel_mixing=channel_mixing, normalize=False))
    assert not torch.allclose(plain(a * x + b), a * plain(x) + b, atol=1.0)


def test_the_trained_gain_and_shift_are_undone_too():
    forecaster, x = model(series()), torch.randn(2, LENGTH, CHANNELS)
    with torch.no_grad():
        forecaster.embed.gain.copy_(torch.tensor([2.0, 0.5, 1.5]))
        forecaster.embed.shift.copy_(torch.tensor([0.1, -0.7, 3.0]))
    tokens = forecaster.embed(x)
    inside = (x - tokens.level) / tokens.spread * forecaster.embed.gain + forecaster.embed.shift

    assert_close(forecaster.embed.restore(inside[:, :HORIZON], tokens), x[:, :HORIZON])


@pytest.mark.parametrize("normalize", [True, False])
def test_numbers_go_in_and_come_out_in_their_own_units(normalize):
    mean, std = (5.0, -3.0, 100.0), (2.0, 0.1, 30.0)
    x = torch.randn(2, LENGTH, CHANNELS)
    bare, dressed = (model(series(normalize=normalize, **units)) for units in ({}, {"mean": mean, "std": std}))
    there = x * torch.tensor(std) + torch.tensor(mean)

    assert_close((dressed(there) - torch.tensor(mean)) / torch.tensor(std), bare(x), atol=1e-3, rtol=1e-3)


def test_independent_channels_do_not_see_each_other_and_share_their_weights():
    forecaster, x = model(series(affine=False)), torch.randn(2, LENGTH, CHANNELS)
    other = x.clone()
    other[..., 1] = torch.randn(2, LENGTH)

    assert_close(forecaster(x)[..., [0, 2]], forecaster(other)[..., [0, 2]])
    assert_close(forecaster(x[..., [2, 0, 1]]), forecaster(x)[..., [2, 0, 1]])
    mixed = model(series(channel_mixing="mixed"))
    assert not torch.allclose(mixed(x)[..., 0], mixed(other)[..., 0])


@pytest.mark.parametrize("channel_mixing", ["independent", "mixed"])
def test_with_a_line_the_tokens_tell_the_rest(channel_mixing):
    """A head whose tokens say nothing is the straight map of the window, level and spread given back."""
    forecaster = model(
        series(channel_mixing=channel_mixing, affine=False), C.ForecastHead(horizon=HORIZON, linear_skip=True)
    )
    x = torch.randn(2, LENGTH, CHANNELS)
    torch.nn.init.zeros_(forecaster.head.out.weight)
    level, spread = x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    straight = forecaster.head.line(((x - level) / spread).mT).mT * spread + level

    assert_close(forecaster(x), straight)


def test_what_was_taken_travels_with_the_tokens_through_the_trunk():
    forecaster, x = model(series()), torch.randn(2, LENGTH, CHANNELS)
    tokens = forecaster.trunk(forecaster.embed(x))

    assert isinstance(tokens, SeriesTokens)
    assert_close(tokens.level[:, 0], x.mean(1))


def test_a_saved_forecaster_says_the_same(tmp_path):
    forecaster = model(series(mean=(5.0, -3.0, 100.0), std=(2.0, 0.1, 30.0), channel_names=("a", "b", "c")))
    forecaster.save(tmp_path / "kept")
    back, x = regard.load(tmp_path / "kept", device="cpu"), torch.randn(2, LENGTH, CHANNELS)

    assert torch.equal(back(x), forecaster(x)) and back.c == forecaster.c


@pytest.mark.slow
def test_a_forecaster_compiles_whole():
    forecaster, x = model(series()), torch.randn(2, LENGTH, CHANNELS)
    made = torch.compile(forecaster, fullgraph=True, backend="eager")

    assert_close(made(x), forecaster(x))


def test_a_window_of_another_size_is_refused_by_its_setting():
    with pytest.raises(ValueError, match=r"\(batch, 41, 3\) by embed.length and embed.channels, got .*\(2, 40, 3\)"):
        model(series())(torch.randn(2, 40, CHANNELS))


def test_a_forecast_is_of_series_alone():
    with pytest.raises(ValueError, match="head.kind: 'forecast' continues a time series"):
        model(C.PatchEmbedding(image_size=8, patch_size=4))


SETTINGS = {
    "patch_length": lambda: C.SeriesEmbedding(length=9, patch_length=10),
    "stride": lambda: C.SeriesEmbedding(patch_length=4, stride=5),
    "channel_names": lambda: C.SeriesEmbedding(channels=2, channel_names=("a",)),
    "std": lambda: C.SeriesEmbedding(channels=1, std=(0.0,)),
    "horizon": lambda: C.ForecastHead(horizon=0),
    "dropout": lambda: C.ForecastHead(dropout=1.0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be_are_refused(name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        SETTINGS[name]()


# ---------------------------------------------------------------- series of records


def test_lists_and_tables_of_numbers_are_series():
    sense, rows = SeriesProcessor(series(channel_mixing="mixed")), torch.randn(LENGTH, CHANNELS)

    assert_close(sense.example(Record({"series": rows.tolist()}, "a:1"), "series")["series"], rows)
    one = SeriesProcessor(C.SeriesEmbedding(channels=1, length=LENGTH, patch_length=8, stride=5))
    assert one.example(Record({"series": rows[:, 0].tolist()}, "a:1"), "series")["series"].shape == (LENGTH, 1)
    assert sense.collate([sense.blank(0)] * 2, None)["ids"].shape == (2, LENGTH, CHANNELS)


BAD = {
    "a word": ("up and down", "expected 41 rows of 3 numbers"),
    "too short": ([[1.0, 2.0, 3.0]] * 40, r"a series of \(40, 3\) numbers, expected \(41, 3\)"),
    "a gap": ([[1.0, 2.0, 3.0]] * 40 + [[1.0, float("nan"), 3.0]], "a gap in row 40"),
    "ragged": ([[1.0], [1.0, 2.0]], "expected 41 rows of 3 numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_series_is_one_sentence_with_its_place(name):
    given, says = BAD[name]

    with pytest.raises(C.DataError, match=f"^list.jsonl:7: column 'series' .*{says}"):
        SeriesProcessor(series(channel_mixing="mixed")).example(Record({"series": given}, "list.jsonl:7"), "series")


def test_one_answer_for_all_channels_is_asked_of_mixed_ones():
    with pytest.raises(C.ConfigError, match="model.embed.channel_mixing: .*set it to mixed"):
        SeriesProcessor(series()).example(Record({"series": []}, "a:1"), "series")


def waves(count, seed):
    """Three channels of noise; in half of the windows the third repeats the first, a few rows later."""
    luck = torch.Generator().manual_seed(seed)
    x, which = torch.randn(count, 32, 3, generator=luck), torch.arange(count) % 2
    x[which == 1, 4:, 2] = x[which == 1, :-4, 0]
    return x, which


@pytest.mark.slow
def test_a_small_model_learns_which_series_follow_each_other():
    c = C.SeriesEmbedding(channels=3, length=32, patch_length=8, stride=4, channel_mixing="mixed")
    learner = model(c, C.PoolingHead(pooling="mean", out=2)).train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    for step in range(250):
        x, which = waves(64, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(learner(x), which).backward()
        optimizer.step()
    x, which = waves(200, 10_000)

    assert float((learner.eval()(x).argmax(-1) == which).float().mean()) >= 0.9
