"""Activation patching: its exact laws for every shape, its metrics, a planted circuit, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from lens.pairs import PATCHABLE, pair, writer
from lens.planted_circuit import ANSWER, CLEAN, CORRUPTED, INDUCTION, OTHER, PREVIOUS, planted_model
from lens.small_models import SHAPES
from torch.testing import assert_close

from regard import config as C
from regard import lens
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.core.model import Trunk
from regard.inference.model import Model
from regard.lens.patching.logit_metrics import bind_metric, run_metric
from regard.lens.patching.patched_runs import PatchedRuns, record_activations, replace_where

METRIC = lens.logit_difference(1, 2)
EVERY = ("residual", "attn", "mlp", "heads", "head_positions")


def logits_of(model, prompt):
    with torch.no_grad():
        out = prompt.run(model)
    return out[0] if isinstance(out, tuple) else out


def trunks(model):
    return [name for name in ("encoder", "trunk") if getattr(model, name, None) is not None]


def runs_that_keep_logits(model, prompt):
    """Patched runs of a metric that puts what the model returned aside."""
    found = []
    metric = bind_metric(model, prompt, lambda logits: found.append(logits) or logits.flatten(1).sum(1))
    return PatchedRuns(model, prompt, metric), found


@pytest.mark.parametrize("name", PATCHABLE)
def test_clean_embeddings_at_all_positions_restore_the_clean_logits_to_the_bit(name):
    model, clean, corrupted = pair(name)
    runs, found = runs_that_keep_logits(model, corrupted)
    values = record_activations(model, clean, *(f"{trunk}.embed" for trunk in trunks(model)))
    edits = {at: replace_where(x, torch.ones(1, x.shape[1], dtype=torch.bool)) for at, x in values.items()}
    runs.measure(1, lambda rows: edits)

    assert not torch.equal(found[0], logits_of(model, clean))
    assert torch.equal(found[-1], logits_of(model, clean))


@pytest.mark.parametrize("name", PATCHABLE)
def test_patching_nothing_changes_no_bit(name):
    model, clean, corrupted = pair(name)
    runs, found = runs_that_keep_logits(model, corrupted)
    for address, value in record_activations(model, clean, "trunk.embed", "trunk.1.attn.out").items():
        nothing = replace_where(value, torch.zeros(1, value.shape[1], dtype=torch.bool))
        first = runs.first_block(address) if address != "trunk.embed" else 0
        runs.measure(1, lambda rows, address=address, nothing=nothing: {address: nothing}, first)

    assert len(found) == 3
    assert all(torch.equal(logits, logits_of(model, corrupted)) for logits in found)


@pytest.mark.parametrize("name", PATCHABLE)
def test_patching_with_the_same_prompt_has_no_effect(name):
    model, clean, _ = pair(name, torch.float64)
    parts = [part for part in EVERY if part != "mlp" or name != "attention only"]
    result = lens.patch_activations(model, clean, clean, metric=METRIC, parts=parts)

    assert result.clean == result.corrupted
    assert all(float(result.change(grid.part).nan_to_num().abs().max()) < 1e-12 for grid in result.grids)
    assert "no effect to speak of" in str(result)


@pytest.mark.parametrize("name", PATCHABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_patches_of_one_batch_are_those_one_by_one(name, dtype):
    model, clean, corrupted = pair(name, dtype)
    parts = ("trunk.residual",) if dtype == torch.float32 else ("heads",)
    batched, single = (
        lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=parts, batch_tokens=tokens)
        for tokens in (4096, 1)
    )

    for ours, theirs in zip(batched.grids, single.grids, strict=True):
        assert_close(ours.raw, theirs.raw, atol=2e-6 if dtype == torch.float32 else 1e-12, rtol=0)


@pytest.mark.parametrize("name", PATCHABLE)
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_heads_are_those_that_looking_replaces_by_hand(name, direction):
    model, clean, corrupted = pair(name, torch.float64)
    given, base = (clean, corrupted) if direction == "denoise" else (corrupted, clean)
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=("trunk.heads",), direction=direction)
    grid, bound = result.grid("heads"), bind_metric(model, base, METRIC)
    for place, row in zip(grid.rows, grid.raw, strict=True):
        address = f"trunk.{place}.result"
        value = record_activations(model, given, address)[address]
        for head, raw in enumerate(row):
            with (
                torch.no_grad(),
                looking(model, address, heads=[head], edit=lambda _, x, head=head, value=value: value[:, [head]]),
            ):
                assert_close(raw, run_metric(model, base, bound).mean(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("part", "name"),
    [(part, name) for part in ("residual", "attn", "mlp") for name in PATCHABLE if part != "mlp"
     or name != "attention only"],
)  # fmt: skip
def test_a_patch_at_one_position_is_the_edit_of_that_row(name, part):
    model, clean, corrupted = pair(name, torch.float64)
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=(f"trunk.{part}",))
    address = {"residual": "trunk.1.residual_attn", "attn": "trunk.1.attn.out", "mlp": "trunk.1.mlp.out"}[part]
    row = result.grid(part).raw[result.grid(part).rows.index("1.mlp" if part == "mlp" else "1.attn")]
    value, bound = record_activations(model, clean, address)[address], bind_metric(model, corrupted, METRIC)
    for position in (0, len(row) - 1):
        rows = slice(position, position + 1)
        with torch.no_grad(), looking(model, address, queries=rows, edit=lambda _, x, rows=rows: value[:, rows]):
            assert_close(row[position], run_metric(model, corrupted, bound).mean(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", PATCHABLE)
def test_patching_with_zeros_is_ablation(name):
    model, prompt, _ = pair(name)
    where, heads = next(iter(SHAPES[name].gone.items()))
    where = where.replace("*", "0")
    runs, found = runs_that_keep_logits(model, prompt)
    address = f"{where}.result"
    zeros = torch.zeros_like(record_activations(model, prompt, address)[address])
    rows = torch.zeros(1, zeros.shape[1], 1, dtype=torch.bool)
    rows[:, heads] = True
    runs.measure(1, lambda _: {address: replace_where(zeros, rows)})
    with lens.ablate(model, {where: heads}):
        assert torch.equal(found[-1], logits_of(model, prompt))


@pytest.mark.parametrize("name", [name for name in PATCHABLE if len(SHAPES[name].named) == 0])
def test_the_whole_stream_after_the_last_block_carries_everything(name):
    model, clean, corrupted = pair(name, torch.float64)
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC)
    noised = lens.patch_activations(model, clean, corrupted, metric=METRIC, direction="noise")

    if name not in ("encoder", "stages"):  # a token or the cls token is read alone, and no other
        last, rest = result.effect("residual")[-1], noised.effect("residual")[-1]
        at = 0 if name == "vit" else -1
        assert float(last[at]) == pytest.approx(1, abs=1e-12) and float(rest[at]) == pytest.approx(0, abs=1e-12)
        assert sorted(last.abs().tolist())[:-1] == pytest.approx([0] * (len(last) - 1), abs=1e-12)
    assert (noised.clean, noised.corrupted) == pytest.approx((result.clean, result.corrupted), abs=1e-12)


def test_running_later_blocks_alone_is_running_all_of_them():
    model, clean, corrupted = pair("windowed decoder")
    runs, found = runs_that_keep_logits(model, corrupted)
    value = record_activations(model, clean, "trunk.1.attn.out")["trunk.1.attn.out"]
    edits = {"trunk.1.attn.out": replace_where(value, torch.eye(11, dtype=torch.bool))}
    assert runs.first_block("trunk.1.attn.out") == 1
    assert torch.equal(runs.measure(11, lambda rows: edits, 1), runs.measure(11, lambda rows: edits, 0))
    assert torch.equal(found[-1], found[-2])


# ---------------------------------------------------------------- runs that begin at a later position

LATE = ["decoder", "windowed decoder", "attention only", "grouped", "relative", "shaw"]


@pytest.mark.parametrize("name", PATCHABLE)
def test_only_causal_models_of_plain_tokens_begin_at_a_later_position(name):
    model, clean, _ = pair(name)

    assert (PatchedRuns(model, clean, bind_metric(model, clean, METRIC)).keys is not None) == (name in LATE)


@pytest.mark.parametrize("name", LATE)
def test_runs_from_the_patched_position_on_are_whole_runs(name, monkeypatch):
    model, clean, corrupted = pair(name, torch.float64)
    parts = [part for part in EVERY if part != "mlp" or name != "attention only"]
    late = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=parts, batch_tokens=200)
    monkeypatch.setattr(PatchedRuns, "keys", None)
    whole = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=parts)

    for ours, theirs in zip(late.grids, whole.grids, strict=True):
        assert_close(ours.raw, theirs.raw, atol=1e-12, rtol=0)


def test_tokens_before_a_patch_are_not_run_again(monkeypatch):
    model, clean, corrupted = pair("decoder")
    ran, run_all = [], Trunk.stem
    monkeypatch.setattr(Trunk, "stem", lambda self, tokens: ran.append(tokens.order) or run_all(self, tokens))
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=("mlp",), batch_tokens=1)
    patches, tokens = result.grid("mlp").raw.shape
    alone = [order[0].tolist() for order in ran[-patches * tokens :]]

    assert alone == 2 * [list(range(start, tokens)) for start in range(tokens)]


def test_a_patch_after_the_position_that_is_asked_changes_nothing():
    model, clean, corrupted = pair("decoder", torch.float64)
    result = lens.patch_activations(model, clean, corrupted, metric=lens.logit_difference(1, 2, at=4), parts=EVERY)
    for part in ("residual", "attn", "mlp", "head_positions"):
        assert float(result.change(part)[:, 5:].abs().max()) < 1e-12
        assert float(result.change(part)[:, :5].abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["decoder", "t5", "vit"])
def test_a_model_is_left_as_it_was(name):
    model, clean, corrupted = pair(name)
    model.train()
    model.trunk.blocks[0].eval()
    modes, grads = ([part.training for part in model.modules()], [w.requires_grad for w in model.parameters()])
    lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=("heads",))

    assert modes == [part.training for part in model.modules()]
    assert grads == [w.requires_grad for w in model.parameters()] and all(w.grad is None for w in model.parameters())
    assert model.hooks == ()


# ---------------------------------------------------------------- a circuit that is known


def test_the_heads_of_a_planted_circuit_carry_everything_and_the_others_nothing():
    result = lens.patch_activations(
        planted_model(), CLEAN, CORRUPTED, metric=lens.logit_difference(ANSWER, OTHER), parts=("heads",)
    )
    wanted = torch.zeros(2, 3, dtype=torch.float64)
    wanted[PREVIOUS] = wanted[INDUCTION] = 1

    assert_close(result.effect("heads"), wanted, atol=1e-12, rtol=0)


def test_the_planted_circuit_passes_the_token_it_copies_and_then_the_last():
    result = lens.patch_activations(
        planted_model(), CLEAN, CORRUPTED, metric=lens.logit_difference(ANSWER, OTHER),
        parts=("residual", "head_positions"),
    )  # fmt: skip
    places, grid = result.effect("residual"), result.grid("head_positions")

    assert places.argmax(1).tolist() == [1, 2, 2, 4, 4]
    assert_close(places.sum(1), torch.ones(5, dtype=torch.float64), atol=1e-12, rtol=0)
    found = [(grid.rows[i], grid.columns[j]) for i, j in (grid.raw > 0.5).nonzero().tolist()]
    assert found == [("0.attn 1", "7"), ("1.attn 2", "5")]


# ---------------------------------------------------------------- metrics and results


@pytest.mark.parametrize("name", ["decoder", "encoder", "vit", "pixels"])
def test_metrics_are_what_they_say_of_the_logits(name):
    model, clean, _ = pair(name, torch.float64)
    logits = logits_of(model, clean)
    pooled = logits.dim() == 2
    each = logits if pooled else logits[:, -1]
    targets = torch.arange(logits[0].numel() // logits.shape[-1]) % logits.shape[-1]
    loss = F.cross_entropy(logits.flatten(0, -2), targets.repeat(3), reduction="none").view(3, -1).mean(1)
    for metric, wanted in (
        (lens.logit_difference(1, 3), each[:, 1] - each[:, 3]),
        (lens.logit_difference(1, 3, at=2), each[:, 1] - each[:, 3] if pooled else logits[:, 2, 1] - logits[:, 2, 3]),
        (lens.probability(4), each.softmax(-1)[:, 4]),
        (lens.target_loss(targets), loss),
        (lambda x: x.flatten(1)[:, 0], logits.flatten(1)[:, 0]),
    ):
        with torch.no_grad():
            assert_close(run_metric(model, clean, bind_metric(model, clean, metric)), wanted, atol=1e-12, rtol=0)


def test_a_loss_leaves_targets_out_and_takes_a_row_each():
    model, clean, corrupted = pair("decoder", torch.float64)
    targets = torch.full((3, 11), -100)
    targets[:, -1] = torch.tensor([4, 5, 6])
    result = lens.patch_activations(model, clean, corrupted, metric=lens.target_loss(targets), parts=("heads",))

    assert result.clean == pytest.approx(float(F.cross_entropy(logits_of(model, clean)[:, -1], targets[:, -1])))
    assert float(result.change("heads").abs().min()) > 0


def test_progress_counts_every_patch_up_to_the_total():
    model, clean, corrupted = pair("decoder")
    calls = []
    lens.patch_activations(
        model, clean, corrupted, metric=METRIC, parts=("residual", "heads"), batch_tokens=150,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip

    assert calls[-1] == (5 * 11 + 2 * 3, 61) and len(calls) > 10
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_a_result_is_a_table_of_the_largest_changes_and_a_picture():
    model, clean, corrupted = pair("decoder")
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=("residual", "heads"))
    table, drawn = result.table(), result.picture("heads")

    assert len(table.rows) == 20 and len(result.to_json()["rows"]) == 5 * 11 + 2 * 3
    sizes = [abs(row[5]) for row in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert (drawn.kind, tuple(drawn.rows), tuple(drawn.columns)) == ("grid", ("0.attn", "1.attn"), ("0", "1", "2"))
    assert tuple(result.picture().rows) == ("embed", "0.attn", "0.mlp", "1.attn", "1.mlp")
    first = [f"{x}/{y}" for x, y in zip(clean.labels, corrupted.labels, strict=True)]
    assert list(result.grid("residual").columns) == first


def test_an_image_is_patched_by_row_and_column_and_both_sides_of_an_encoder_decoder():
    model, clean, corrupted = pair("vit")
    grid = lens.patch_activations(model, clean, corrupted, metric=METRIC).grid("residual")
    assert grid.columns == ("cls", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2", "2,0", "2,1", "2,2")

    model, clean, corrupted = pair("translator")
    parts = ("residual", "cross", "encoder.heads")
    result = lens.patch_activations(model, clean, corrupted, metric=METRIC, parts=parts)
    assert [grid.part for grid in result.grids] == ["encoder.residual", "residual", "cross", "encoder.heads"]
    assert len(result.grid("encoder.residual").columns) == 7 and result.grid("cross").rows == ("0.cross", "1.cross")


# ---------------------------------------------------------------- what cannot be patched


def test_prompts_of_different_lengths_are_refused_with_both_lengths():
    model = writer()
    short, long = (len(model.tokenizer.encode(text)) for text in ("the cat", "the dog sat"))

    with pytest.raises(DataError, match=rf"clean has {short} tokens \(.*\) and corrupted {long} tokens"):
        lens.patch_activations(model, "the cat", "the dog sat", metric=METRIC)
    model, clean, _ = pair("translator")
    with pytest.raises(DataError, match="source: clean has 7 tokens in 3 rows .* and corrupted 5 tokens"):
        other = lens.prompt.read_prompt(model, clean.first, source=clean.given["source"][:, :5])
        lens.patch_activations(model, clean, other, metric=METRIC)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parts": ("heat",)}, "parts: no 'heat'; there are residual, attn"),
        ({"parts": ("cross",)}, "this model has no 'cross'; leave it out"),
        ({"parts": ("encoder.mlp",)}, "no 'encoder.mlp'"),
        ({"direction": "both"}, "neither 'denoise'"),
        ({"metric": 3}, "metric: 3 is none"),
        ({"metric": lens.probability(99)}, "outside the vocabulary of 23"),
        ({"metric": lens.probability(1, at=11)}, "at=11, and the prompt has 11 tokens"),
        ({"metric": lens.target_loss([1, 2])}, "2 ids, and the model answers at 11 places"),
        ({"metric": lambda logits: logits.sum()}, r"one number for each row, a tensor of shape \(3,\), got \(\)"),
    ],
)
def test_a_mistake_is_refused_in_a_sentence(settings, words):
    model, clean, corrupted = pair("decoder")
    with pytest.raises(ConfigError, match=words):
        lens.patch_activations(model, clean, corrupted, **{"metric": METRIC} | settings)


def test_models_without_a_stream_or_an_answer_are_refused():
    towers = SHAPES["towers"].model()
    with pytest.raises(ConfigError, match="no stack of blocks"):
        lens.patch_activations(towers, torch.zeros(1, 3, 6, 6), torch.zeros(1, 3, 6, 6), metric=METRIC)
    silent = Model(C.Transformer(embed=C.TextEmbedding(vocab=7), head=C.NoHead(),
                                 trunk=C.Trunk(dim=8, depth=1, attention=C.Attention(heads=2))))  # fmt: skip
    with pytest.raises(ConfigError, match="no vocabulary"):
        lens.patch_activations(silent, [1, 2], [1, 3], metric=METRIC)
    model, clean, corrupted = pair("vit")
    with pytest.raises(ConfigError, match="'cat' is no class of this model; give a number from 0 to 4"):
        lens.patch_activations(model, clean, corrupted, metric=lens.probability("cat"))
