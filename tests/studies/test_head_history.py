"""When heads took their roles: a run set by hand, whose heads take and lose them at known steps."""

import json

import pytest
import torch
from lens import planted_circuit as planted
from lens.small_models import SHAPES

from regard import config as C
from regard import lens
from regard.cli import main
from regard.inference.model import Model
from regard.studies.head_history import first_lasting, role_history, track_head_roles
from regard.studies.training_sweep import sweep_training
from regard.training.api import fit

TEXT = torch.tensor([[3, 5, 7, 2, 5, 1, 9, 4]])
STEPS = (0, 1, 2, 4, 8, 16)
PREVIOUS, INDUCTION = {1, 4, 8, 16}, {8, 16}  # the steps at which each head does it
LOSSES = {1: 2.5, 2: 2.25, 3: 2.0, 5: 1.5, 9: 1.0, 16: 0.5}


def circuit(previous, induction):
    """The planted circuit with norms that change nothing; a head that is not there yet looks everywhere alike."""
    norm = C.Norm(kind="rms", eps=1e8)  # 1e4 · x / sqrt(mean square + 1e8) is x
    trunk = C.Trunk(
        dim=planted.DIM, depth=2, mask="causal", position=C.LearnedPosition(length=planted.LENGTH), norm=norm,
        attention=C.Attention(heads=planted.HEADS, head_dim=planted.VOCAB, scale=1.0), mlp=C.MLP(hidden=5),
        final_norm=False, dropout=C.NO_DROPOUT,
    )  # fmt: skip
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=planted.VOCAB), trunk=trunk, head=C.LMHead(tied=False)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1e4 if "norm" in name else 0.0)
        model.embed.tokens.weight[:, : planted.VOCAB] = torch.eye(planted.VOCAB)
        places = slice(planted.PLACE, planted.PLACE + planted.LENGTH)
        model.trunk.position.tables[0][:, places] = torch.eye(planted.LENGTH)
        planted.plant_circuit(model)
        for (layer, head), there in {planted.PREVIOUS: previous, planted.INDUCTION: induction}.items():
            if not there:
                query = model.trunk.blocks[layer].attn.qkv.named_parts()["q"][0]
                query[head * planted.VOCAB : (head + 1) * planted.VOCAB] = 0
    return model.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = tmp_path_factory.mktemp("planted")
    for step in STEPS:
        circuit(step in PREVIOUS, step in INDUCTION).save(made / "snapshots" / f"step-{step:06d}")
    lines = [{"step": step, "loss": loss} for step, loss in LOSSES.items()] + [{"step": 2, "eval_loss": 9.0}]
    (made / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 99, "lo')
    return made


@pytest.fixture(scope="module")
def history(run):
    return track_head_roles(run, TEXT)


def test_a_head_took_its_role_where_it_was_planted_and_what_it_lost_before_does_not_count(history):
    heads = {(head.where, head.head): head for head in history.heads}
    previous, induction = heads["trunk.0.attn", 1], heads["trunk.1.attn", 2]

    assert (previous.role, previous.since) == ("previous", 4)
    assert [each.role == "previous" for each in previous.summaries] == [step in PREVIOUS for step in STEPS]
    assert (induction.role, induction.since) == ("induction", 8)
    rows = {row[0]: row[1:] for row in history.head_table().rows}
    assert rows["trunk.0.attn 1"][:2] == ("previous", 4) and rows["trunk.1.attn 2"][:2] == ("induction", 8)
    assert rows["trunk.1.attn 2"][2] > 0.8


def test_induction_appears_at_its_step_with_its_head_and_score(history):
    found = dict(zip(STEPS, history.induction, strict=True))

    assert history.induction_since == 8 and "Induction heads from step 8 on." in str(history)
    # of four tokens that come again the first is found twice: token 0 has only itself to look back at
    assert all(found[step][0] == pytest.approx(3.5 / 4, abs=1e-3) for step in INDUCTION)
    assert all(found[step][2] == "trunk.1.attn 2" for step in INDUCTION)
    assert all(found[step][1] < lens.heads.NAMED for step in STEPS if step not in INDUCTION)


def test_the_table_has_the_losses_of_the_batches_that_came_next(history):
    rows = history.table().to_json()["rows"]

    assert [row["step"] for row in rows] == list(STEPS)
    assert [row["loss"] for row in rows] == [2.5, 2.25, 2.0, 1.5, 1.0, 0.5]
    assert [row["previous"] >= 1 for row in rows] == [step in PREVIOUS for step in STEPS]


def test_the_picture_shows_every_head_that_ever_had_a_role(history):
    picture = history.picture()
    row = list(picture.rows).index("trunk.1.attn 2 induction")

    assert picture.kind == "grid" and list(picture.columns) == ["0", "1", "2", "4", "8", "16"]
    assert [picture.cells[row][place] for place in (4, 5)] == ["ind", "ind"]
    assert picture.values[row, 4:].min() > 0.8 > 0.2 > picture.values[row, :4].max()
    assert "trunk.0.attn 1 previous" in picture.rows


def test_json_and_html_have_both_tables(history):
    told = json.loads(json.dumps(history.to_json()))

    assert told["induction_since"] == 8 and len(told["rows"]) == len(STEPS) and len(told["heads"]) == 6
    assert history._repr_html_().count("<table>") == 2


@pytest.mark.parametrize("holds, since", [
    ([True, True, True], 1), ([False, True, True], 2), ([True, False, True], 4), ([True, True, False], None),
    ([False, False, False], None),
])  # fmt: skip
def test_what_holds_to_the_end_has_a_first_step(holds, since):
    assert first_lasting((1, 2, 4), holds) == since


@pytest.mark.parametrize("name", ["encoder", "t5", "vit"])
def test_models_of_other_shapes_have_histories_too(tmp_path, name):
    shape = SHAPES[name]
    for seed in (0, 1):
        shape.model(seed).save(tmp_path / "snapshots" / f"step-{seed:06d}")
    text = {"vit": torch.randn(1, 3, 6, 6)}.get(name, torch.arange(1, 9)[None])
    source = {"source": torch.arange(2, 9)[None]} if name == "t5" else {}
    found = track_head_roles(tmp_path, text, **source)

    assert {head.where for head in found.heads} == set(shape.places) and found.steps == (0, 1)
    assert all(loss is None for loss in found.losses)
    asked = any(best is not None for best in found.induction)
    assert asked == (name == "t5")  # whose decoder sees no later token
    assert asked or "Induction is not measured" in str(found)


def test_a_sweep_of_summaries_is_a_history_too(run, history):
    sweep = sweep_training(run, lambda model: lens.summarize_heads(model, TEXT))
    made = role_history(sweep, LOSSES)

    assert made.losses == history.losses and [head.since for head in made.heads if head.role == "previous"] == [4]


def test_the_command_prints_what_python_finds(desk, recipe, capsys):
    fit(recipe("train.snapshots=log"), "run", quiet=True)
    found = track_head_roles("run", "a cat s")
    assert main(["lens", "over-training", "run", "a cat s"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert main(["lens", "over-training", "run", "a cat s", "--step", "2", "--step", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in told["rows"]] == [2, 4] and len(told["heads"]) == 6
    assert main(["lens", "over-training", "run", "a cat s", "--step", "3"]) != 0
    assert "steps: 3 is not kept; there are 0, 1, 2, 4, 6" in capsys.readouterr().err
