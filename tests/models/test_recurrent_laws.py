"""What holds for every stack and mixer that is older than attention: the laws of causality, caches and padding."""

from dataclasses import replace

import pytest
import torch
from models.recurrent_models import ROOM, B, N, V, every, model
from torch.testing import assert_close

import regard

CAUSAL = list(every())
BOTH = list(every("full"))
# Fourier's convolution rounds: what comes later changes the last bits of what came before.
ROUNDS = ("mixer ssm",)


def ids(rows=B, count=N):
    return torch.randint(V, (rows, count))


@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_cannot_change_the_past(name):
    made, first = model(name), ids()
    other = first.clone()
    other[:, 6:] = (first[:, 6:] + 1) % V

    ours, theirs = made(first)[:, :6], made(other)[:, :6]

    assert_close(ours, theirs) if name in ROUNDS else assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_what_was_read_before_matters_but_where_tokens_never_meet(name):
    made, first = model(name), ids()
    other = first.clone()
    other[:, 4] = (first[:, 4] + 1) % V

    after = (made(first) - made(other))[:, 5:].abs().amax()

    assert (after > 1e-4) == (name not in ("mixer none", "mixer 1x1"))


@pytest.mark.parametrize("name", [name for name in BOTH if name not in ("mixer none", "mixer 1x1")])
def test_both_ways_means_that_the_next_token_is_seen(name):
    made, first = model(name, "full"), ids()
    other = first.clone()
    other[:, 6] = (first[:, 6] + 1) % V

    assert (made(first) - made(other))[:, 5].abs().amax() > 1e-4


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("pieces", [(N,), (4, 1, 6), (1,) * N])
def test_reading_in_pieces_is_reading_at_once(name, pieces):
    made, given = model(name), ids()
    cache = made.cache(B, ROOM)

    parts = [made(part, cache=cache) for part in given.split(pieces, 1)]

    assert_close(torch.cat(parts, 1), made(given))


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_read(name, side):
    made, given = model(name), ids()
    real = torch.arange(N) >= torch.tensor([4, 0, N - 1])[:, None]
    real = real if side == "left" else real.flip(1)

    out = made(given, real=real)

    for row in range(B):
        assert_close(out[row, real[row]], made(given[row, real[row]][None])[0])


@pytest.mark.parametrize("name", BOTH)
def test_padding_is_not_read_from_behind_either(name):
    made, given = model(name, "full"), ids()
    real = torch.arange(N) < torch.tensor([4, N, 1])[:, None]

    out = made(given, real=real)

    for row in range(B):
        assert_close(out[row, real[row]], made(given[row, real[row]][None])[0])


@pytest.mark.parametrize("name", CAUSAL)
def test_padding_changes_no_state(name):
    made, given = model(name), ids()
    real = torch.arange(N) >= torch.tensor([4, 0, N - 1])[:, None]  # of the third row the first piece has nothing
    cache = made.cache(B, ROOM)

    out = torch.cat([made(given[:, part], real=real[:, part], cache=cache) for part in (slice(5), slice(5, N))], 1)

    for row in range(B):
        assert_close(out[row, real[row]], made(given[row, real[row]][None])[0])


@pytest.mark.parametrize("name", CAUSAL)
def test_a_text_goes_on_alone_as_it_does_beside_others(name):
    made, texts = model(name), [[1, 2, 3, 4, 5], [6]]
    session = made.session(texts, max_new_tokens=7, temperature=0.0)

    together = made.collect_ids(session)

    for text, said in zip(texts, together, strict=True):
        assert made.generate(torch.tensor(text), max_new_tokens=7, temperature=0.0).tolist() == said


@pytest.mark.parametrize("name", CAUSAL)
def test_one_beam_is_the_greedy_text(name):
    made, prompt = model(name), torch.tensor([1, 2, 3])

    assert_close(
        made.generate(prompt, max_new_tokens=6, num_beams=1), made.generate(prompt, max_new_tokens=6, temperature=0.0)
    )


@pytest.mark.parametrize("name", ["stack lstm", "stack cnn", "mixer ssm", "mixer gru"])
def test_beams_score_what_the_model_says(name):
    made = model(name)

    [found] = made.beam_search([[1, 2, 3]], max_new_tokens=5, num_beams=3, length_penalty=0.0)

    whole = torch.tensor([[1, 2, 3, *found[0].ids]])
    logs = made(whole[:, :-1]).log_softmax(-1)[0, 2:].gather(-1, whole[0, 3:, None])
    assert found[0].score == pytest.approx(float(logs.sum().detach()), abs=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_saved_model_says_the_same(name, tmp_path):
    made, given = model(name), ids()

    made.save(tmp_path / "kept")

    assert_close(regard.load(tmp_path / "kept", device="cpu")(given), made(given), rtol=0, atol=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_looking_changes_no_bit_and_editing_does(name):
    made, given = model(name), ids()
    address = "trunk.1.state" if name.startswith("stack") else "trunk.1.attn.out"

    with regard.looking(made, address) as seen:
        watched = made(given)
    with regard.looking(made, address, edit=lambda name, x: x + torch.randn_like(x)):
        edited = made(given)

    assert_close(watched, made(given), rtol=0, atol=0)
    assert seen[address].shape[:2] == given.shape
    assert (edited - watched).abs().amax() > 1e-3


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
@pytest.mark.parametrize("name", CAUSAL)
def test_sixteen_bits_say_nearly_the_same(name, precision):
    full, given = model(name), ids()
    half = regard.build(replace(full.c, precision=precision)).eval()
    half.load_state_dict(full.state_dict())

    ours, theirs = half(given).float(), full(given)

    assert (ours - theirs).norm() < 0.06 * theirs.norm()


@pytest.mark.parametrize("name", CAUSAL)
def test_packed_documents_are_refused(name):
    document = torch.zeros(B, N, dtype=torch.long)

    if name == "mixer none":
        model(name)(ids(), document=document)  # tokens never meet, so nothing can leak
        return
    with pytest.raises(ValueError, match="train.pack"):
        model(name)(ids(), document=document)


def test_who_looks_both_ways_has_no_cache():
    with pytest.raises(ValueError, match="causal"):
        model("stack lstm", "full").cache(B, ROOM)
