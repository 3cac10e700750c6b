"""Logit lens: the last place is what the model says, and every number is that of the whole distribution."""

import pytest
import torch
import transformers as hf
from lens.small_models import DEPTH, DIM, SHAPES, VOCAB, B, N, ragged
from torch.testing import assert_close

import regard
from regard import config as C
from regard.config.errors import ConfigError
from regard.core.hooks import looking
from regard.inference.model import Model
from regard.lens.prompt import read_prompt
from regard.lens.stream.logit_lens import logit_lens
from regard.text import train_tokenizer

TEXT = "the cat sat on the mat and the dog sat on the log. " * 20
DECODES = [name for name in SHAPES if name != "towers"]
every = pytest.mark.parametrize("name", DECODES)


def shaped(name):
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    return model, read_prompt(model, first, **shape.named)


def logits_of(model, prompt):
    with torch.no_grad():
        out = prompt.run(model)
    out = out[0] if isinstance(out, tuple) else out
    return out if out.dim() == 3 else out[:, None]


@every
def test_the_last_place_is_to_the_bit_what_the_model_says(name):
    model, prompt = shaped(name)
    said = logits_of(model, prompt).log_softmax(-1).exp()

    read = logit_lens(model, prompt, watch=range(said.shape[-1]))

    assert read.places[-1] == "final"
    assert torch.equal(read.watch_probs[-1], said)
    assert not read.kl[-1].any()
    assert_close(read.watch_probs[-2], said)  # the last block's place, through the final norm
    assert read.kl[-2].max() < 1e-5


@every
def test_every_number_is_that_of_the_whole_distribution(name):
    model, prompt = shaped(name)

    read = logit_lens(model, prompt, watch=range(logits_of(model, prompt).shape[-1]), top_k=3)
    probs = read.watch_probs.double()

    assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]), atol=1e-5, rtol=0)
    assert_close(read.entropy.double(), -(probs * probs.log2()).sum(-1), atol=1e-4, rtol=1e-4)
    assert_close(read.kl.double(), (probs[-1] * (probs[-1] / probs).log2()).sum(-1), atol=1e-4, rtol=1e-4)
    assert read.kl.min() >= 0 and read.mean_kl()[0] > 1e-3
    assert torch.equal(read.top_ids, read.watch_probs.topk(3).indices)
    assert torch.equal(read.watch_probs.gather(-1, read.top_ids), read.top_probs)
    assert (read.watch_ranks.gather(-1, read.top_ids) == torch.arange(1, 4)).all()


def test_the_first_place_is_the_embedding_through_the_final_norm_and_the_head():
    model, prompt = shaped("decoder")
    x = model.embed.tokens(prompt.first) + model.trunk.position.tables[0][:N]
    normed = torch.nn.functional.layer_norm(
        x, (DIM,), model.trunk.final_norm.weight, model.trunk.final_norm.bias, model.c.trunk.norm.eps
    )
    by_hand = (normed @ model.embed.tokens.weight.T).softmax(-1)

    read = logit_lens(model, prompt, watch=range(VOCAB))

    assert_close(read.watch_probs[0], by_hand.detach())
    assert_close(read.norm[0], x.norm(dim=-1).detach())


def test_places_are_those_of_the_walk_and_halves_leave_the_others_as_they_are():
    model, prompt = shaped("translator")

    both, whole = logit_lens(model, prompt), logit_lens(model, prompt, halves=False)

    assert both.places == ("embed", "0.attn", "0.cross", "0.mlp", "1.attn", "1.cross", "1.mlp", "final")
    assert whole.places == ("embed", "0.mlp", "1.mlp", "final")
    assert torch.equal(both.kl[[0, 3, 6, 7]], whole.kl)
    assert both.norm.shape == (8, B, N)


@pytest.mark.parametrize("name", ["decoder", "encoder", "vit"])
def test_a_table_of_logits_in_pieces_gives_the_same_numbers(name, monkeypatch):
    model, prompt = shaped(name)
    once = logit_lens(model, prompt, watch=[1])
    monkeypatch.setattr("regard.lens.stream.logit_lens.TABLE", 2 * B * VOCAB)
    monkeypatch.setattr("regard.lens.stream.logit_lens.TOGETHER", 2)

    pieces = logit_lens(model, prompt, watch=[1])

    for field in ("top_ids", "top_probs", "watch_probs", "watch_ranks", "entropy", "kl", "norm"):
        assert_close(getattr(pieces, field), getattr(once, field))


def test_an_edit_of_the_logits_around_the_lens_is_what_the_model_says():
    model, prompt = shaped("decoder")
    said = logits_of(model, prompt)
    with looking(model, "logits", edit=lambda address, x: 2 * x):
        read = logit_lens(model, prompt, watch=range(VOCAB))

    assert_close(read.watch_probs[-1], (2 * said).softmax(-1))


def test_padding_counts_in_no_mean():
    model = SHAPES["encoder"].model()
    (rows,) = ragged()
    read = logit_lens(model, rows)
    alone = [logit_lens(model, rows[row : row + 1, :length]) for row, length in enumerate((N, 8, 5))]

    assert read.real.sum(1).tolist() == [N, 8, 5]
    assert_close(read.mean_kl(), torch.cat([each.kl[:, 0] for each in alone], 1).mean(1))


def test_a_head_that_pools_has_one_prediction_and_a_length_for_every_token():
    model, prompt = shaped("vit")
    read = logit_lens(model, prompt)

    assert read.positions == ("cls",)
    assert read.top_ids.shape == (2 * DEPTH + 2, B, 1, 5)
    assert read.norm.shape == (2 * DEPTH + 2, B, 10)
    assert read.table().rows[0][6] == pytest.approx(float(read.norm[0, 0].mean()))


def test_classes_are_called_as_in_training():
    model, prompt = shaped("vit")
    model.task = C.Classification(classes=("ant", "bee", "cow", "dog", "eel"))

    read = logit_lens(model, prompt, watch=["cow", 4], top_k=9)

    assert read.watched == ("cow", "eel")
    assert sorted(read.names.values()) == ["ant", "bee", "cow", "dog", "eel"]
    with pytest.raises(ConfigError, match="^watch: 'cat' is not among .* below 5, or one of ant, bee, cow, dog, eel$"):
        logit_lens(model, prompt, watch=["cat"])


def test_classes_of_tokens_are_decoded_at_every_token():
    trunk = C.Trunk(dim=DIM, depth=1, attention=C.Attention(heads=3))
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk, head=C.TokenHead(out=3)))

    read = logit_lens(model, torch.randint(VOCAB, (N,)), halves=False)

    assert read.top_ids.shape == (3, 1, N, 3)
    assert read.names == {0: "0", 1: "1", 2: "2"}


def test_a_narrow_embedding_is_looked_at_after_its_map_to_the_width_of_the_trunk():
    model, prompt = shaped("shared")
    x = model.trunk.project(model.embed.tokens(prompt.first))

    assert model.embed.tokens.weight.shape[1] != DIM
    assert_close(logit_lens(model, prompt).norm[0], x.norm(dim=-1).detach())


# ---------------------------------------------------------------- texts


def reader(mask="causal"):
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)),
                                trunk=C.Trunk(dim=8, depth=1, mask=mask, attention=C.Attention(heads=2))))  # fmt: skip
    model.tokenizer = tokenizer
    return model


def test_a_text_and_a_watched_word_are_read_with_the_models_tokenizer():
    model = reader()
    read = logit_lens(model, "the cat sat", watch=[" dog"], top_k=2)
    table = read.table()

    assert read.positions == read_prompt(model, "the cat sat").labels
    assert table.columns[-2:] == (f"p({read.watched[0]})", f"rank({read.watched[0]})")
    assert [row[0] for row in table.rows] == ["embed", "0.attn", "0.mlp", "final"]
    assert table.rows[-1][1] == read.top_words()[-1][-1]
    assert read.to_json()["rows"][-1]["KL to final (bits)"] == 0
    assert repr(read.positions[-1]) in table.title
    with pytest.raises(ConfigError, match="name one token"):
        logit_lens(model, "the cat", watch=["xyz"])


def test_the_table_of_a_masked_text_is_about_the_mask():
    model, prompt = shaped("encoder")
    hidden = type("Words", (), {"special_ids": {"mask": 22}, "encode": list, "__len__": lambda self: 0})()
    model.tokenizer = hidden
    prompt.first[0, 4] = 22

    assert logit_lens(model, prompt).position == 4
    prompt.first[prompt.first == 22] = 1
    assert logit_lens(model, prompt).position == N - 1


def test_the_picture_has_a_word_in_every_cell():
    model, prompt = shaped("decoder")
    read = logit_lens(model, prompt)
    picture = read.picture()

    assert picture.values.shape == (len(read.places), N) == (len(picture.cells), len(picture.cells[0]))
    assert picture.cells[-1][2] == str(int(read.top_ids[-1, 0, 2, 0]))


# ---------------------------------------------------------------- beside transformers


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.spec("S153")
def test_the_lens_of_a_published_gpt2_is_its_hidden_states_through_its_own_norm_and_head(tied, tmp_path):
    sizes = hf.GPT2Config(
        vocab_size=53, n_embd=24, n_layer=3, n_head=4, n_positions=20, tie_word_embeddings=tied, initializer_range=0.3
    )
    theirs = hf.GPT2LMHeadModel(sizes).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(53, (2, 13))
    with torch.no_grad():
        states = theirs(ids, output_hidden_states=True).hidden_states  # the last has been through ln_f
        layers = [theirs.lm_head(theirs.transformer.ln_f(x)) for x in states[:-1]] + [theirs.lm_head(states[-1])]

    read = logit_lens(regard.load(tmp_path), ids, watch=range(53), halves=False)

    assert_close(read.watch_probs[[0, 1, 2, 4]], torch.stack(layers).softmax(-1), atol=1e-5, rtol=1e-4)
    assert_close(read.norm[:3], torch.stack(states[:-1]).norm(dim=-1), atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------- what is left alone, and what is refused


def test_a_model_is_left_as_it_was():
    model, prompt = shaped("encoder")
    model.train()
    model.head.eval()
    modes = [part.training for part in model.modules()]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}

    logit_lens(model, prompt)

    assert [part.training for part in model.modules()] == modes
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 0}, "^top_k: 0 returns no token"),
        ({"watch": "dog"}, "^watch: 'dog' is one word; give a list"),
        ({"watch": [VOCAB]}, f"^watch: {VOCAB} is not among .* below {VOCAB}$"),
        ({"watch": ["dog"]}, "this model has no tokenizer; give an id$"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_a_sentence(settings, words):
    model, prompt = shaped("decoder")
    with pytest.raises(ConfigError, match=words):
        logit_lens(model, prompt, **settings)


def test_a_position_that_is_not_there_is_refused():
    model, prompt = shaped("decoder")
    read = logit_lens(model, prompt)

    assert read.table(-1).rows == read.table(N - 1).rows != read.table(-1, row=1).rows
    with pytest.raises(ConfigError, match=f"^position: {N} in row 0 is not there; there are {N} positions in {B} rows"):
        read.table(N)


@pytest.mark.parametrize(
    ("head", "words"), [(C.NoHead(), "neither with words nor with classes"), (C.PoolingHead(out=1), "one number")]
)
def test_a_model_without_a_distribution_is_refused(head, words):
    trunk = C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2))
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=7), trunk=trunk, head=head))

    with pytest.raises(ConfigError, match=words):
        logit_lens(model, torch.tensor([1, 2, 3]))


def test_two_towers_have_no_stream_that_ends_in_a_prediction():
    with pytest.raises(ConfigError, match="no residual stream"):
        logit_lens(SHAPES["towers"].model(), torch.randn(B, 3, 6, 6))
