"""What must wait for what: a recurrent layer takes one step after the other, attention takes all of them at once."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import regard
from regard import config as C
from regard import lens
from regard.models.rnn import RNNLayer
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate
from regard.zoo.recipe import read_recipe

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", FUSED)
CELLS = {cell: C.RecurrentStack(cell=cell, dim=12, depth=1, dropout=0.0) for cell in ("rnn", "gru")}
AT_ONCE = {
    "attention": C.Trunk(dim=12, depth=1, mask="causal", attention=C.Attention(heads=3)),
    "convolution": C.RecurrentStack(cell="cnn", dim=12, depth=3, dropout=0.0),
}


def model(trunk):
    return regard.build(C.Transformer(embed=C.TextEmbedding(vocab=23, scale=3.5), trunk=trunk)).eval()


def calls(trunk, tokens):
    """How often torch is asked for products of matrices, one after the other, until all tokens are read."""
    made, ids = model(trunk), torch.randint(23, (1, tokens))
    made(ids)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
        made(ids)
    return sum(event.count for event in seen.key_averages() if event.key in PRODUCTS)


@pytest.mark.spec("S129")
@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_layer_takes_one_step_more_for_each_token(cell):
    few, more, most = (calls(CELLS[cell], tokens) for tokens in (7, 19, 43))

    assert (more - few) / (19 - 7) == (most - more) / (43 - 19) == 1


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_rows_that_are_all_full_are_read_as_they_stand(cell):
    """Packed rows are cut into steps, and each step's gradient is as large as all of them: n² on a CPU."""
    torch.manual_seed(0)
    reader, x = RNNLayer(cell, 5, 7), torch.randn(3, 11, 5)
    full = torch.ones(3, 11, dtype=torch.bool)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        out, state = reader(x, full)

    assert not any("pack_padded" in event.key for event in seen.key_averages())
    alone, left = reader(x)
    torch.testing.assert_close([out, *state], [alone, *left])
    less = full.clone()
    less[1, 8:] = False
    torch.testing.assert_close(reader(x, less)[0][1, :8], out[1, :8])


@pytest.mark.spec("S129")
@pytest.mark.parametrize("name", AT_ONCE)
def test_who_has_no_state_takes_as_many_steps_for_any_length(name):
    assert calls(AT_ONCE[name], 7) == calls(AT_ONCE[name], 43) > 0


@pytest.mark.spec("S194")
@pytest.mark.parametrize("distance", [10, 50, 100, 200, 500])
def test_news_of_any_distance_is_one_step_away_for_attention_and_lost_in_a_state(distance):
    """The pull of the first token on the last, beside that of the last but one, before any training."""
    ids = torch.randint(23, (5, distance + 1))

    def kept(trunk):
        pull = lens.jacobian_norms(model(trunk), ids)
        return float(pull[0] / pull[-2])

    assert kept(AT_ONCE["attention"]) > 0.1
    assert kept(CELLS["rnn"]) < 0.7**distance


def learned(tmp_path, trunk, distance, steps):
    """How many of new words' first letters are told after so many steps."""
    (tmp_path / "first.toml").write_text(f"""
        [data]
        source = "toy:first({distance}, 9000)"
        validation = 0.03
        [tokenizer]
        byte_fallback = false
        [task]
        kind = "classification"
        input = "source"
        label = "target"
        [model]
        embed = {{scale = 5.7}}
        head = {{kind = "pooling", pooling = "last"}}
        trunk = {trunk}
        [train]
        steps = {steps}
        batch_size = 32
        context = {distance + 4}
        device = "cpu"
        compile = false
        eval_every = "none"
        save_every = "none"
        [train.optimizer]
        lr = 3e-3
        betas = [0.9, 0.99]
        [train.schedule]
        kind = "constant"
        warmup = 30
    """)
    run = Run.from_recipe(read_recipe(str(tmp_path / "first.toml")), notice=lambda line: None)
    for _ in train_steps(run):
        pass
    return validate(run.model, run.validation.batches(), run.task, scores=True).scores["accuracy"]


@pytest.mark.slow
@pytest.mark.spec("S194")
def test_a_far_letter_is_kept_by_attention_when_a_state_still_keeps_only_a_near_one(tmp_path):
    state = '{kind = "recurrent", cell = "lstm", dim = 32, depth = 1, mask = "causal", dropout = 0.0}'
    looks = ('{dim = 32, depth = 1, mask = "causal", attention = {heads = 2}, position = {kind = "learned"}, '
             "dropout = {embed = 0.0, residual = 0.0}}")  # fmt: skip

    assert learned(tmp_path, state, 7, 300) > 0.95
    assert learned(tmp_path, state, 61, 300) < 0.25
    assert learned(tmp_path, looks, 61, 300) > 0.9
