"""Tuned lens: untrained it is the logit lens, at the end it is the identity, and a fit comes nearer to the model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from lens.small_models import SHAPES, VOCAB, B, N, ragged
from lens.test_logit_lens import DECODES, every, shaped
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.hub.weights import save_tensors
from regard.inference.model import Model
from regard.lens.prompt import read_prompt
from regard.lens.stream import predictions
from regard.lens.stream.logit_lens import logit_lens
from regard.lens.stream.tuned_lens import TunedLens, tune_lens

NUMBERS = ("top_ids", "top_probs", "entropy", "kl", "norm")


@every
def test_an_untrained_lens_is_the_logit_lens_to_the_bit(name):
    model, prompt = shaped(name)
    lens = tune_lens(model, [], steps=0)

    plain, tuned = logit_lens(model, prompt), logit_lens(model, prompt, lens=lens)

    assert lens.places == plain.places[:-2]
    assert all(torch.equal(getattr(plain, field), getattr(tuned, field)) for field in NUMBERS)


@every
def test_a_step_moves_every_map_but_never_the_end(name):
    model, prompt = shaped(name)
    lens = tune_lens(model, [prompt], steps=3, lr=0.1)

    plain, tuned = logit_lens(model, prompt), logit_lens(model, prompt, lens=lens)

    assert torch.equal(plain.kl[-2:], tuned.kl[-2:]) and torch.equal(plain.top_probs[-2:], tuned.top_probs[-2:])
    assert all((plain.kl[place] != tuned.kl[place]).any() for place in range(len(lens.places)))
    assert_close(lens.kl[0], plain.mean_kl()[:-2], atol=1e-4, rtol=1e-4)  # the fit begins as the logit lens


def test_a_map_is_x_plus_a_x_plus_b_before_the_final_norm_and_the_head():
    model, prompt = shaped("decoder")
    lens = tune_lens(model, [], steps=0, halves=False)
    lens.weight.copy_(torch.randn_like(lens.weight))
    lens.bias.copy_(torch.randn_like(lens.bias))
    with torch.no_grad(), looking(model, "trunk.0.residual") as seen:
        model(prompt.first)
        x = seen["trunk.0.residual"]
        moved = x + torch.einsum("bnd,ed->bne", x, lens.weight[1]) + lens.bias[1]
        by_hand = (model.trunk.final_norm(moved) @ model.embed.tokens.weight.T).softmax(-1)

    read = logit_lens(model, prompt, lens=lens, halves=False, watch=range(VOCAB))

    assert_close(read.watch_probs[1], by_hand)
    assert torch.equal(read.norm[1], x.norm(dim=-1))  # of the stream itself


# ---------------------------------------------------------------- a fit of a model that has learned something


def count_up(rows, seed):
    """Ids that go up by a step of their own, from 1 to VOCAB - 1 and round again: two of them tell all the others."""
    draw = torch.Generator().manual_seed(seed)
    start, step = (torch.randint(1, VOCAB - 1, (rows, 1), generator=draw) for _ in range(2))
    return (start + step * torch.arange(N)) % (VOCAB - 1) + 1


def hide(ids, seed):
    """Three of each row's ids as the mask token, 0."""
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)).argsort(1) < 3
    return ids.masked_fill(hidden, 0)


def trained(mask, steps):
    torch.manual_seed(0)
    trunk = C.Trunk(dim=32, depth=2, mask=mask, attention=C.Attention(heads=4), mlp=C.MLP(hidden=96),
                    position=C.LearnedPosition(length=N), dropout=C.NO_DROPOUT)  # fmt: skip
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        ids = count_up(48, step)
        logits, goal = (model(ids[:, :-1]), ids[:, 1:]) if mask == "causal" else (model(hide(ids, step)), ids)
        loss = F.cross_entropy(logits.flatten(0, 1), goal.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["causal", "full"], ids=["decoder", "masked language model"])
def test_a_fit_comes_nearer_to_the_model_on_text_that_it_has_not_seen(mask):
    model = trained(mask, 150)
    read = (lambda seed: count_up(48, seed)) if mask == "causal" else (lambda seed: hide(count_up(48, seed), seed))

    lens = tune_lens(model, (read(1000 + step) for step in range(60)), steps=60, lr=1e-2)
    held_out = read(5000)
    plain, tuned = logit_lens(model, held_out).mean_kl(), logit_lens(model, held_out, lens=lens).mean_kl()

    assert (tuned[:-2] < 0.8 * plain[:-2]).all(), (plain, tuned)
    assert lens.kl.shape == (60, len(lens.places))


def test_the_gradient_is_that_of_the_mean_divergence_over_real_positions(monkeypatch):
    """One step of Adam moves against the sign of the gradient: by hand, and with logits in pieces."""
    model = SHAPES["encoder"].model()
    (rows,) = ragged()
    lens = tune_lens(model, [rows], steps=1)

    here = lens.places.index("0.mlp")
    slopes = []  # of one entry of a bias, by differences
    for sign in (1, -1):
        moved = copy.copy(tune_lens(model, [], steps=0))
        moved.bias[here, 5] += sign * 1e-2
        slopes.append(sign * logit_lens(model, rows, lens=moved).mean_kl()[here])
    assert torch.sign(sum(slopes)) == -torch.sign(lens.bias[here, 5]) != 0
    whole = tune_lens(model, [rows], steps=2)
    monkeypatch.setattr(predictions, "MOST_LOGITS", 4 * B * VOCAB)
    assert_close(tune_lens(model, [rows], steps=2).kl, whole.kl)


def test_padding_takes_no_part_in_a_fit():
    model = SHAPES["encoder"].model()
    (rows,) = ragged()

    padded, bare = tune_lens(model, [rows[1:2]], steps=4), tune_lens(model, [rows[1:2, :8]], steps=4)

    assert_close(padded.kl, bare.kl, atol=1e-4, rtol=1e-4)


def test_the_same_batches_give_the_same_lens():
    model, prompt = shaped("decoder")
    first, second = (tune_lens(model, [prompt, prompt.first[:1]], steps=5) for _ in range(2))

    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)


def test_a_list_goes_round_and_an_iterator_ends():
    model, prompt = shaped("decoder")
    done = []

    lens = tune_lens(model, [prompt] * 2, steps=5, progress=lambda *told: done.append(told), halves=False)

    assert done == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)] and len(lens.kl) == 5
    assert len(tune_lens(model, iter([prompt] * 2), steps=5).kl) == 2
    assert lens.places == ("embed", "0.mlp")


def test_a_model_is_left_as_it_was_by_a_fit():
    model, prompt = shaped("t5")
    model.train()
    model.head.requires_grad_(False)
    wanted = [weight.requires_grad for weight in model.parameters()]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}

    tune_lens(model, [prompt], steps=2, lr=1.0)

    assert model.training and [weight.requires_grad for weight in model.parameters()] == wanted
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("steps", [0, 3])
def test_save_and_load_is_the_identity(steps, tmp_path):
    model, prompt = shaped("encoder")
    lens = tune_lens(model, [prompt], steps=steps, lr=0.1)
    lens.save(tmp_path / "lens.safetensors")

    again = TunedLens.load(tmp_path / "lens.safetensors")

    assert (again.places, again.model) == (lens.places, lens.model)
    assert all(torch.equal(getattr(again, part), getattr(lens, part)) for part in ("weight", "bias", "kl"))
    read = [logit_lens(model, prompt, lens=each) for each in (lens, again)]
    assert all(torch.equal(getattr(read[0], field), getattr(read[1], field)) for field in NUMBERS)


@pytest.mark.parametrize("name", [name for name in DECODES if name not in ("decoder", "pixels", "vit", "stages")])
def test_a_lens_of_another_model_is_refused_in_a_sentence(name):
    lens = tune_lens(SHAPES["decoder"].model(), [], steps=0)
    model, prompt = shaped(name)

    with pytest.raises(ConfigError, match=r"^lens: it was fitted for a model with (depth|unembedding) \w+, and here"):
        logit_lens(model, prompt, lens=lens)


def test_a_lens_knows_its_model_by_final_norm_and_head_in_any_precision():
    model, prompt = shaped("decoder")
    lens = tune_lens(model, [], steps=0)

    logit_lens(copy.deepcopy(model).to(torch.bfloat16), prompt, lens=lens)
    with torch.no_grad():
        model.trunk.final_norm.weight[3] += 0.5
    with pytest.raises(ConfigError, match="^lens: it was fitted for a model with unembedding"):
        logit_lens(model, prompt, lens=lens)


def test_a_lens_without_halves_is_refused_where_they_are_looked_at():
    model, prompt = shaped("decoder")
    lens = tune_lens(model, [], steps=0, halves=False)

    assert len(logit_lens(model, prompt, lens=lens, halves=False).places) == 4
    with pytest.raises(ConfigError, match=r"^lens: it was fitted for embed, 0.mlp, and not for 0.attn; .* halves"):
        logit_lens(model, prompt, lens=lens)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (None, "not a tuned lens"),
        ("[" * 9999, "not a tuned lens"),
        ('{"format": 1, "places": ["embed"], "model": {"dim": "wide"}}', "not a tuned lens"),
        ('{"format": 2, "places": ["embed"], "model": {"dim": 4, "depth": 1, "logits": 9, "unembedding": "a"}}',
         "a tuned lens of format 2; this version reads 1"),
        ('{"format": 1, "places": ["embed"], "model": {"dim": 5, "depth": 1, "logits": 9, "unembedding": "a"}}',
         "not a whole tuned lens"),
    ],
    ids=["none", "deep", "no number", "newer", "other shapes"],
)  # fmt: skip
def test_a_file_that_is_no_lens_is_refused(header, words, tmp_path):
    path = tmp_path / "lens.safetensors"
    tensors = {"weight": torch.zeros(1, 4, 4), "bias": torch.zeros(1, 4)}
    save_tensors(path, tensors, None if header is None else {"tuned_lens": header})

    with pytest.raises(DataError, match=words):
        TunedLens.load(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="not whole safetensors"):
        TunedLens.load(path)


@pytest.mark.parametrize(
    ("batches", "settings", "words"),
    [
        ("the cat", {}, "^batches: str is one prompt; give a list"),
        ([], {}, "^batches: there was none"),
        ([torch.tensor([1, 2])], {"steps": -1}, "^steps: -1 and lr 0.001 fit nothing"),
        ([torch.tensor([1, 2])], {"lr": 0.0}, "^steps: 250 and lr 0 fit nothing"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_in_a_sentence(batches, settings, words):
    with pytest.raises((ConfigError, DataError), match=words):
        tune_lens(SHAPES["decoder"].model(), batches, **settings)


def test_a_prompt_is_not_a_list_of_prompts():
    model, prompt = shaped("translator")
    with pytest.raises(ConfigError, match="^batches: Prompt is one prompt"):
        tune_lens(model, prompt)
    assert len(tune_lens(model, [read_prompt(model, prompt)], steps=1).kl) == 1


def test_the_last_place_of_a_trunk_without_feed_forwards_is_its_last_attention(tmp_path):
    """Its map is the identity, also in a lens that was written and read."""
    model, ids = SHAPES["attention only"].model(), torch.randint(1, VOCAB, (B, N))
    fitted = tune_lens(model, [ids], steps=2, lr=0.1)
    fitted.save(tmp_path / "lens.safetensors")
    read = TunedLens.load(tmp_path / "lens.safetensors")
    x = torch.randn(B, N, model.c.trunk.dim)

    assert fitted.places == ("embed", "0.attn") and read.model == fitted.model
    assert torch.equal(read.translate("1.attn", x), x) and not torch.equal(read.translate("0.attn", x), x)
    assert float(logit_lens(model, ids, lens=read).mean_kl()[-1]) == pytest.approx(0, abs=1e-6)
