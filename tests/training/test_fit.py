"""A run in its folder: what stands there, how often it is saved and evaluated, and what it refuses to begin."""

import json
import os
import signal
import sys
import tomllib

import pytest
import torch
import transformers as hf
from training.builders import KINDS, assert_same, copied, lines

import regard
from regard import config, zoo
from regard.files import manifest
from regard.files.folder_lock import lock_folder
from regard.training.api import fit, resume_fit
from regard.training.loop import train_steps
from regard.training.run import Run
from regard.training.validation import validate

CHECKPOINT = {
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "README.md", "MANIFEST.json", "train/optim.safetensors", "train/guard.safetensors", "train/rng.safetensors",
    "train/state.json",
}  # fmt: skip


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def steps(run):
    return [path.name for path in sorted((run / "checkpoints").iterdir())]


# ---------------------------------------------------------------- files


def test_a_run_makes_these_files_and_no_others(desk, recipe):
    fit(recipe("train.eval_every=2"), desk / "run", quiet=True)

    assert files(desk / "run") == {"config.toml", "run.json", "log.jsonl", "samples.jsonl"} | {
        f"checkpoints/step-000006/{name}" for name in CHECKPOINT}  # fmt: skip
    assert manifest.verify_manifest(desk / "run/checkpoints/step-000006") == ""


def test_each_step_is_a_line_of_the_log_with_times_last(desk, recipe):
    fit(recipe(), desk / "run", quiet=True)
    found = [json.loads(line) for line in (desk / "run/log.jsonl").read_text().splitlines()]

    assert [list(line) for line in found[:-1]] == [["step", "loss", "lr", "norm", "clipped", "tokens", "seconds"]] * 6
    assert list(found[-1]) == ["step", "eval_loss", "eval_tokens", "whole", "seconds"]
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5, 6, 6]


def test_losses_are_logged_in_full_precision(desk, recipe):
    fit(recipe("model.dropout=0.0"), desk / "run", quiet=True)
    losses = [float(step.loss) for step in train_steps(Run.from_recipe(recipe("model.dropout=0.0")))]

    assert [line["loss"] for line in lines(desk / "run/log.jsonl")[:-1]] == losses


def test_the_learning_rate_is_logged_as_it_was_said(desk, recipe):
    fit(recipe(), desk / "run", quiet=True)

    assert [line["lr"] for line in lines(desk / "run/log.jsonl")[:-1]] == [5e-5] + [1e-4] * 5


@pytest.mark.slow
def test_a_run_in_a_folder_learns_what_the_loop_alone_does(desk, recipe, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(desk)
    monkeypatch.setenv("REGARD_CACHE", str(desk / "cache"))
    fit(recipe(), desk / "run", quiet=True)
    losses = [float(step.loss) for step in train_steps(Run.from_recipe(recipe()))]

    assert [line["loss"] for line in lines(desk / "run/log.jsonl")[:-1]] == losses


def test_run_json_tells_the_circumstances_and_what_was_measured(desk, recipe):
    fit(recipe(), desk / "run", command="regard train recipe.toml", quiet=True)
    told = json.loads((desk / "run/run.json").read_text())

    assert {"format", "regard", "torch", "python", "platform", "processor", "device", "threads", "started", "precision",
            "seed", "kernels", "parameters", "predicted", "command", "seconds", "measured", "parallel",
            "ranks", "trained"} == told.keys()  # fmt: skip
    assert (told["torch"], told["threads"], told["command"]) == (torch.__version__, 1, "regard train recipe.toml")
    assert told["parameters"] == told["trained"] == sum(w.numel() for w in regard.load(desk / "run").parameters())
    assert told["measured"]["peak_memory"] > 1e6 and told["measured"]["seconds"] == told["seconds"] > 0


def test_samples_are_kept_with_the_step_the_temperature_and_the_prompt(desk, recipe):
    fit(recipe("train.eval_every=4", "report.temperatures=[0.5, 1.0]"), desk / "run", quiet=True)
    found = lines(desk / "run/samples.jsonl")

    assert [list(line) for line in found] == [["step", "temperature", "prompt", "text"]] * 3
    assert [(line["step"], line["temperature"], len(line["text"])) for line in found] == [
        (4, 0.8, 200), (6, 0.5, 5), (6, 1.0, 5)]  # fmt: skip
    assert found[-1]["text"] == regard.load(desk / "run").generate("a ", max_new_tokens=5, temperature=1.0, seed=0)


@pytest.mark.spec("S089")
@pytest.mark.parametrize("kind", KINDS)
def test_config_toml_reads_back_as_the_recipe_and_gives_the_run_again(desk, recipe, kind):
    fit(recipe(*KINDS[kind], "train.eval_every=4"), desk / "first", quiet=True)
    kept = config.read_toml(config.Recipe, desk / "first/config.toml")
    fit(kept, desk / "second", quiet=True)

    assert kept == Run.from_recipe(recipe(*KINDS[kind], "train.eval_every=4")).recipe
    assert lines(desk / "first/log.jsonl") == lines(desk / "second/log.jsonl")
    assert lines(desk / "first/samples.jsonl") == lines(desk / "second/samples.jsonl")
    assert (desk / "first/config.toml").read_text() == (desk / "second/config.toml").read_text()
    for name in ("model.safetensors", "train/optim.safetensors", "train/rng.safetensors"):
        first, second = ((desk / run / "checkpoints/step-000006" / name).read_bytes() for run in ("first", "second"))
        assert first == second, name


def test_config_toml_holds_every_setting(desk, recipe):
    fit(recipe("train.steps=0"), desk / "run", quiet=True)
    told = tomllib.loads((desk / "run/config.toml").read_text())

    assert told["model"]["embed"]["vocab"] > 1 and told["model"]["trunk"]["position"]["length"] == 7
    assert told["train"].keys() == {name for name in config.Train.__dataclass_fields__}


# ---------------------------------------------------------------- how often


def test_checkpoints_are_saved_every_so_often_and_the_newest_kept(desk, recipe):
    fit(recipe("train.steps=7", "train.save_every=2", "train.keep_checkpoints=3"), desk / "run", quiet=True)

    assert steps(desk / "run") == ["step-000004", "step-000006", "step-000007"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_last_step_that_is_also_a_saving_one_is_saved_once(desk, recipe, keep):
    fit(recipe("train.save_every=3", f"train.keep_checkpoints={keep}"), desk / "run", quiet=True)

    assert steps(desk / "run") == ["step-000003", "step-000006"][-keep:]


def test_evaluations_come_every_so_often_and_the_last_reads_all(desk, recipe):
    fit(recipe("train.eval_every=2", "train.eval_tokens=13"), desk / "run", quiet=True)
    found = [line for line in lines(desk / "run/log.jsonl") if "eval_loss" in line]

    assert [(line["step"], line.get("whole", False)) for line in found] == [(2, False), (4, False), (6, True)]
    assert [line["eval_tokens"] for line in found[:2]] == [13, 13] and found[2]["eval_tokens"] > 13


def test_the_last_evaluation_is_that_of_the_saved_model(desk, recipe):
    made = fit(recipe(), desk / "run", quiet=True)
    run = Run.from_recipe(recipe())
    text = run.validation.shards.ids()
    whole = [text[start : min(start + 7, len(text) - 1) + 1][None] for start in range(0, len(text) - 1, 7)]

    assert validate(regard.load(desk / "run"), whole).loss == pytest.approx(made.eval_loss, abs=1e-6)
    assert sum(block.numel() - 1 for block in whole) == len(text) - 1


@pytest.mark.slow
def test_looking_at_a_run_does_not_change_it(desk, recipe):
    fit(recipe(), desk / "blind", quiet=True)
    fit(recipe("train.eval_every=1", "train.save_every=2"), desk / "seen", quiet=True)
    blind, seen = (lines(desk / run / "log.jsonl") for run in ("blind", "seen"))

    assert [line for line in blind if "loss" in line] == [line for line in seen if "loss" in line]


def test_no_steps_is_a_run_with_a_beginning(desk, recipe):
    made = fit(recipe("train.steps=0"), desk / "run", quiet=True)

    assert (made.steps, made.loss) == (0, None) and made.eval_loss is not None
    assert steps(desk / "run") == ["step-000000"]
    assert_same(copied(regard.load(desk / "run").state_dict()), copied(Run.from_recipe(recipe()).model.state_dict()))


def test_without_a_validation_text_there_are_no_evaluations(desk, recipe):
    made = fit(recipe("data.validation=0", "train.eval_every=2"), desk / "run", quiet=True)

    assert made.eval_loss is None and not any("eval_loss" in line for line in lines(desk / "run/log.jsonl"))
    assert [line["step"] for line in lines(desk / "run/samples.jsonl")] == [2, 4, 6]


def test_a_tiny_budget_of_time_ends(desk, recipe):
    made = fit(recipe("train.steps=none", "train.minutes=1e-5"), desk / "run", quiet=True)

    assert made.steps >= 1 and made.seconds >= 6e-4 and steps(desk / "run") == [f"step-{made.steps:06d}"]


# ---------------------------------------------------------------- nothing is lost


def test_a_prompt_that_cannot_be_said_is_refused_before_the_first_step(desk, recipe):
    with pytest.raises(config.ConfigError, match="report.prompt"):
        fit(recipe("report.prompt=ROMEO:"), desk / "run", quiet=True)


def test_what_was_learned_is_kept_though_the_last_evaluation_fails(desk, recipe, monkeypatch):
    def fail(*asked, **how):
        raise config.RunError("the disk of the validation text has failed")

    monkeypatch.setattr(sys.modules["regard.training.trainer"], "validate", fail)
    with pytest.raises(config.RunError, match="disk"):
        fit(recipe(), desk / "run", quiet=True)

    assert steps(desk / "run") == ["step-000006"]


@pytest.mark.parametrize("place", ["text.txt", "text.txt/run"])
def test_a_place_that_cannot_be_written_is_named(desk, recipe, place):
    with pytest.raises(config.RunError, match=f"{place}.*another folder"):
        fit(recipe("train.steps=1"), desk / place, quiet=True)


# ---------------------------------------------------------------- what others open


@pytest.mark.parametrize("kind", ["adamw", "llama", "bf16"])
def test_transformers_opens_a_checkpoint_and_agrees(desk, recipe, kind):
    fit(recipe(*KINDS[kind], "train.optimizer.lr=0.05", "train.steps=9"), desk / "run", quiet=True)
    path = desk / "run/checkpoints/step-000009"
    ours = regard.load(path)
    theirs = hf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.randint(len(ours.tokenizer), (3, 7))
    with torch.no_grad():
        assert type(theirs).__name__ == {"llama": "LlamaForCausalLM"}.get(kind, "GPT2LMHeadModel")
        torch.testing.assert_close(ours.float()(ids), theirs(ids).logits, atol=1e-4, rtol=0)
    words = hf.AutoTokenizer.from_pretrained(path)
    assert words.encode("a cat", add_special_tokens=False) == ours.tokenizer.encode("a cat")


# ---------------------------------------------------------------- refusals


def test_a_folder_with_a_run_is_not_written_over(desk, recipe):
    fit(recipe("train.steps=1"), desk / "run", quiet=True)

    with pytest.raises(config.ConfigError, match="run.*resume"):
        fit(recipe("train.steps=2"), desk / "run", quiet=True)
    assert steps(desk / "run") == ["step-000001"]


@pytest.mark.parametrize("changes, where, remedy", [
    (["model.mask=full"], "model.trunk.mask", "causal"),
    (["model.mask=window(3)"], "model.trunk.mask", "causal & window(3)"),
    (["model.mask=causal | global_tokens(2)"], "model.trunk.mask", "causal"),
    (['model.mask=["causal", "full"]'], "model.trunk.mask", "causal"),
    (["model.position.length=5"], "train.context", "model.trunk.position.length"),
    (["model.vocab=9"], "model.embed.vocab", "leave it out"),
    (["model.head.kind=none"], "model.head.kind", "lm"),
    (["model.trunk.cross=last", "model.encoder.trunk.dim=12", "model.encoder.trunk.attention.heads=3"], "model.encoder",
     "model.encoder"),
    (["model.precision=bf16", "train.precision=mixed"], "model.precision", "train.precision alone"),
    (["train.device=cuda"], "train.device", "cpu"),
])  # fmt: skip
def test_a_model_that_does_not_go_with_the_run_is_refused_by_path(recipe, changes, where, remedy):
    if torch.cuda.is_available() and "train.device=cuda" in changes:
        pytest.skip("there is one here")
    with pytest.raises(config.ConfigError) as told:
        Run.from_recipe(recipe(*changes))

    assert str(told.value).startswith(f"{where}: ") and remedy in str(told.value)


def test_a_text_shorter_than_the_context_is_refused_with_a_context_that_fits(recipe):
    with pytest.raises(config.DataError, match=r"text.txt.*train.context=(\d+)") as told:
        Run.from_recipe(recipe("train.context=99999"))
    fits = str(told.value).partition("train.context=")[2].split()[0]
    Run.from_recipe(recipe(f"train.context={fits}"))


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)", "causal & (window(3) | global_tokens(1))"])
def test_masks_that_never_look_ahead_are_trained(recipe, mask):
    assert Run.from_recipe(recipe(f"model.mask={mask}")).recipe.model.trunk.mask == mask


# ---------------------------------------------------------------- names and defaults


@pytest.mark.parametrize("setting", [
    "model.dim=24", "model.depth=1", "model.heads=2", "train.steps=9", "train.minutes=0.5", "train.seed=3",
    "train.save_every=4", "train.eval_every=4", "train.precision=mixed", "train.parallel=none", "train.compile=true",
])  # fmt: skip
def test_settings_that_others_rely_on_are_there(recipe, setting):
    assert recipe(setting) != recipe() or setting == "train.parallel=none"


@pytest.mark.spec("S096")
def test_the_defaults_are_the_lecture_s():
    c = config.Recipe()
    rates, trunk = c.model.trunk.dropout, c.model.trunk

    assert (c.train.optimizer.lr, c.train.schedule.warmup, c.train.batch_size) == (1e-4, 4000, 32)
    assert (trunk.depth, trunk.heads[0], trunk.dim, trunk.mlp.hidden or 4 * trunk.dim) == (6, 8, 512, 2048)
    assert (rates.embed, rates.residual) == (0.1, 0.1)


@pytest.mark.spec("S096")
def test_a_packaged_recipe_says_all_of_them():
    c = zoo.read_recipe("transformer")
    for trunk in (c.model.trunk, c.model.encoder.trunk):
        assert (trunk.depth, trunk.heads[0], trunk.dim, trunk.mlp.hidden) == (6, 8, 512, 2048)
        assert trunk.dropout.embed == trunk.dropout.residual == 0.1
    assert (c.train.optimizer.lr, c.train.schedule.warmup, c.train.batch_size) == (1e-4, 4000, 32)


@pytest.mark.spec("S097")
@pytest.mark.parametrize(("name", "kind"), [
    ("classify", "classification"), ("tag", "token_classification"), ("answer", "question_answering"),
    ("regress", "regression"),
])  # fmt: skip
def test_fine_tuning_is_three_epochs_of_adamw_and_a_new_head(name, kind):
    c = zoo.read_recipe(f"finetune-{name}")
    assert (c.train.optimizer.kind, c.train.optimizer.lr, c.train.epochs, c.train.steps) == ("adamw", 2e-5, 3, None)
    assert c.task.kind == kind and c.model.head.kind in ("pooling", "token")


@pytest.mark.spec("S096")
def test_a_recipe_that_says_nothing_of_the_model_can_be_trained(desk):
    (desk / "bare.toml").write_text('[data]\nsource = "text.txt"\n[train]\ncontext = 7\n')

    assert Run.from_recipe("bare.toml").recipe.model.trunk.depth == 6


# ---------------------------------------------------------------- what a newcomer met


def test_two_processes_do_not_train_in_one_folder(desk, recipe):
    (desk / "run").mkdir()
    with lock_folder(desk / "run"), pytest.raises(config.ConfigError, match="run: another process"):
        fit(recipe(), desk / "run", quiet=True)

    assert fit(recipe(), desk / "run", quiet=True).steps == 6


def test_a_text_without_line_breaks_can_be_trained_on(desk, recipe):
    (desk / "text.txt").write_text("to be or not to be " * 30)
    done = fit(recipe("report.prompt=none"), desk / "run", quiet=True)

    assert done.steps == 6 and len(lines(desk / "run/samples.jsonl")[0]["prompt"]) == 1


def test_a_run_that_diverges_says_so_and_comes_to_its_end(desk, recipe, capsys):
    done = fit(recipe("train.optimizer.lr=1e30", "train.schedule.warmup=0"), desk / "run")
    told = capsys.readouterr().err

    assert done.steps == 6
    assert "lower train.optimizer.lr" in told and "no sample" in told
    assert (desk / "run/checkpoints/step-000006").is_dir()


def test_a_warm_up_longer_than_the_run_is_said_aloud(desk, recipe, capsys):
    fit(recipe("train.schedule.warmup=40"), desk / "run")

    assert "train.schedule.warmup: 40 steps are longer than the run of 6" in capsys.readouterr().err


def test_fewer_steps_than_were_taken_are_refused(desk, recipe):
    fit(recipe(), desk / "run", quiet=True)

    with pytest.raises(config.ConfigError, match="train.steps: 4, and .* has done 6"):
        resume_fit(desk / "run", ["train.steps=4"], quiet=True)
    assert "steps = 6" in (desk / "run/config.toml").read_text()


def test_a_config_that_was_edited_is_not_resumed_in_silence(desk, recipe):
    fit(recipe(), desk / "run", quiet=True)
    path = desk / "run/config.toml"
    path.write_text(path.read_text().replace("batch_size = 5", "batch_size = 4"))

    with pytest.raises(config.ConfigError, match="config.toml: its settings are not those"):
        resume_fit(desk / "run", quiet=True)


def test_a_torn_log_is_cut_back_to_a_whole_line(desk, recipe, capsys):
    fit(recipe("train.save_every=3"), desk / "run", quiet=True)
    log = desk / "run/log.jsonl"
    log.write_bytes(log.read_bytes()[:150])
    resume_fit(desk / "run", ["train.steps=8"])

    assert [line["step"] for line in lines(log)] == [1, 7, 8, 8]
    assert "lines are missing" in capsys.readouterr().err


def test_a_second_signal_does_not_break_a_checkpoint(desk, recipe, monkeypatch):
    from regard.training import checkpoint

    write = checkpoint.save_checkpoint

    def nervous(*arguments):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "save_checkpoint", nervous)
    done = fit(recipe("train.save_every=2"), desk / "run", quiet=True)

    assert done.interrupted == signal.SIGINT and done.steps == 2
    assert (desk / "run/checkpoints/step-000002/MANIFEST.json").is_file()
