"""Many processes, one run: the losses of one process, on any number of ranks, stopped and resumed on any other."""

import json
import os
import pickle
import signal

import pytest
import torch
from torch.testing import assert_close
from training.builders import RECIPE, TEXT, assert_same, lines
from training.launcher import Launcher, children, gone

import regard
from regard import config
from regard.files import manifest
from regard.hub import locate, weights
from regard.tasks.task import LossPart, combine_losses
from regard.training.parallel.process_group import join_process_group, read_rank_env
from regard.training.parallel.ranks import SINGLE_PROCESS, ProcessRanks

pytestmark = pytest.mark.xdist_group("parallel")  # what its tests share is made once

CLOSE = 1e-6  # of losses and norms
SOON = 30.0  # seconds
LINES = TEXT.splitlines()
STEPS = ["model.dropout=0", "train.steps=20", "train.gradient_accumulation=2", "train.optimizer.lr=1e-3",
         "train.max_grad_norm=0.5",
         "train.eval_every=10", "train.save_every=7", "report.max_new_tokens=3"]  # fmt: skip
REVERSE = """
[data]
source = "pairs.jsonl"
validation = 0.1
[tokenizer]
kind = "char"
[task]
kind = "translation"
[model]
preset = "transformer-base"
dim = 12
depth = 2
heads = 3
[train]
steps = 6
batch_tokens = 70
context = 16
compile = false
device = "cpu"
[train.schedule]
kind = "constant"
warmup = 2
"""
CLASSIFY = """
[data]
source = "said.jsonl"
validation = 0.2
[tokenizer]
kind = "char"
[task]
kind = "classification"
[model]
preset = "bert-base"
dim = 12
depth = 2
heads = 3
head = {kind = "pooling", pooling = "mean"}
[train]
steps = 6
batch_size = 7
context = 32
compile = false
device = "cpu"
[train.schedule]
kind = "constant"
warmup = 2
"""
KINDS = {
    "a text": ("recipe.toml", []),
    "one row for two ranks": ("recipe.toml", ["train.batch_size=1"]),
    "records of several lengths": ("reverse.toml", []),
    "classes": ("classify.toml", []),
    "all at "
    "once": ("recipe.toml", ["train.activation_checkpointing=true", "train.ema_decay=0.9", "train.keep_best=true",
                                    'train.freeze=["trunk.blocks.0.mlp"]']),
}  # fmt: skip


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("processes are watched as only Linux can")
    place = tmp_path_factory.mktemp("group")
    (place / "text.txt").write_text(TEXT)
    said = [{"text": line, "label": line.split()[0]} for line in LINES]
    pairs = [{"source": line[: 5 + i % 13], "target": line[4 + i % 13 :: -1]} for i, line in enumerate(LINES)]
    for name, records in (("said", said), ("pairs", pairs)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, text in (("recipe", RECIPE), ("reverse", REVERSE), ("classify", CLASSIFY)):
        (place / f"{name}.toml").write_text(text)
    made = Launcher(place)
    yield made
    made.close()


@pytest.fixture(scope="module")
def one(group):
    """A run of one process, made once for each kind."""
    made = {}

    def run(kind):
        if kind not in made:
            made[kind] = train(group, kind, f"one {kind}", size=1)
        return made[kind]

    return run


def train(group, kind, out, *changes, size=2, **befalls):
    recipe, more = KINDS[kind]
    end = group.run("train", recipe, *STEPS, *more, *changes, "--out", out, size=size, **befalls)
    assert end.codes == [0] * size, end
    assert end.out[1:] == [""] * (size - 1), "only the first rank speaks"
    return group.place / out


def assert_same_numbers(run, other):
    """Losses, norms, validation and scores are those of the other run, line for line."""
    ours, theirs = ([line for line in lines(path / "log.jsonl") if "health" not in line] for path in (run, other))
    assert [set(line) for line in ours] == [set(line) for line in theirs]
    for mine, line in zip(ours, theirs, strict=True):
        for key, value in line.items():
            if isinstance(value, float):
                assert abs(mine[key] - value) <= CLOSE, (run, mine, line)
            else:
                assert mine[key] == value, (run, mine, line)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_have_the_losses_of_one_process(group, one, kind, way):
    run = train(group, kind, f"{way} {kind}", f"train.parallel={way}")

    assert_same_numbers(run, one(kind))


@pytest.mark.slow
def test_three_ranks_have_the_losses_of_one_process(group, one):
    assert_same_numbers(train(group, "a text", "three", size=3), one("a text"))


@pytest.mark.slow
def test_ranks_that_were_brought_together_by_others_train_as_well(group, one):
    assert_same_numbers(train(group, "a text", "found", found="gloo"), one("a text"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_run_goes_on_with_fewer_ranks_and_with_more_again(group, one, way):
    """2 -> 1 -> 2, each time after a signal; with a running mean, which is saved in parts as well."""
    kind, out = "all at once", f"{way} often"
    ends = [group.run("train", "recipe.toml", *STEPS, *KINDS[kind][1], f"train.parallel={way}",
                      "train.snapshots=8", "--out", out, stop=6)]  # fmt: skip
    ends.append(group.run("resume", out, "train.steps=11", size=1))
    ends.append(group.run("resume", out, "train.steps=20"))

    assert [end.codes for end in ends] == [[143, 143], [0], [0, 0]], ends
    ours, theirs = (lines(path / "log.jsonl") for path in (group.place / out, one(kind)))
    steps = {line["step"]: line["loss"] for line in theirs if "loss" in line}
    assert {line["step"] for line in ours if "loss" in line} == set(steps)
    assert all(abs(line["loss"] - steps[line["step"]]) <= CLOSE for line in ours if "loss" in line)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    assert_close(regard.load(group.place / out)(ids), regard.load(one(kind))(ids), atol=1e-5, rtol=0)
    kept = [group.place / out / "snapshots" / f"step-{step:06d}" for step in (0, 8, 11, 16, 20)]
    assert locate.list_snapshots(group.place / out) == kept and not any(map(manifest.verify_manifest, kept))
    last = [kept[-1], group.place / out / "checkpoints" / "step-000020"]
    assert (last[0] / "model.safetensors").read_bytes() == (last[1] / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_dropout_differs_between_ranks_and_a_resume_repeats_it(group):
    changes = ["train.steps=9", "train.save_every=4", "train.eval_every=none"]
    whole, parts = "drops", "drops twice"
    assert group.run("train", "recipe.toml", *changes, "--out", whole).codes == [0, 0]
    assert group.run("train", "recipe.toml", *changes, "--out", parts, stop=6).codes == [143, 143]
    assert group.run("resume", parts).codes == [0, 0]

    assert lines(group.place / parts / "log.jsonl") == lines(group.place / whole / "log.jsonl")
    ours, theirs = (weights.load_tensors_lazy(group.place / run / "checkpoints/step-000009/model.safetensors")
                    for run in (parts, whole))  # fmt: skip
    assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_what_is_no_number_on_one_rank_is_learned_by_none(group, way):
    run = train(group, "a text", f"{way} poisoned", f"train.parallel={way}", "train.eval_every=none", poison=5)
    skipped = [line["step"] for line in lines(run / "log.jsonl") if "skipped" in line]
    last = lines(run / "log.jsonl")[-1]

    assert skipped == [5] and last["eval_loss"] < 10
    assert all(
        tensor.isfinite().all()
        for tensor in weights.load_tensors_lazy(locate.newest_checkpoint(run) / "model.safetensors").values()
    )


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_they_saved(group):
    end = group.run("train", "recipe.toml", *STEPS, "--out", "stopped", stop=4)

    assert end.codes == [143, 143]
    assert [line for line in end.sentences if "which is saved" in line] == end.sentences[-1:]
    assert locate.newest_checkpoint(group.place / "stopped").name == "step-000004"


@pytest.mark.slow
def test_a_signal_that_comes_while_the_ranks_agree_is_not_lost(group):
    """Each has told the others that none came, so it counts when they next ask."""
    end = group.run("train", "recipe.toml", *STEPS, "--out", "agreeing", stop_while_agreeing=6)

    assert end.codes == [143, 143]
    assert 0 < int(locate.newest_checkpoint(group.place / "agreeing").name.removeprefix("step-")) < 20


# ---------------------------------------------------------------- checkpoints of a model in parts


@pytest.mark.slow
def test_a_model_trained_in_parts_is_saved_like_any_other(group, one):
    """The same files, opened by us and by transformers."""
    from transformers import AutoModelForCausalLM

    run = train(group, "a text", "parts", "train.parallel=fsdp")
    ours, theirs = locate.newest_checkpoint(run), locate.newest_checkpoint(one("a text"))
    files = [{path.relative_to(place).as_posix() for path in place.rglob("*")} for place in (ours, theirs)]
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    with torch.no_grad():
        logits = regard.load(ours)(ids)

        assert_close(logits, regard.load(theirs)(ids), atol=1e-5, rtol=0)
        assert_close(AutoModelForCausalLM.from_pretrained(ours)(ids).logits, logits, atol=1e-5, rtol=0)
    assert files[0] == files[1]
    assert (
        weights.load_tensors_lazy(ours / "train/optim.safetensors").keys()
        == weights.load_tensors_lazy(theirs / "train/optim.safetensors").keys()
    )
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.slow
def test_no_metadata_is_unpickled(group):
    """PyTorch's usual reader of such checkpoints would."""
    assert group.run("train", "recipe.toml", *STEPS, "train.parallel=fsdp", "--out", "hostile", stop=6).codes[0] == 143
    newest, trap = locate.newest_checkpoint(group.place / "hostile"), group.place / "trap"
    bait = pickle.dumps(Hostile(trap))
    for place in (newest, newest / "train"):
        (place / ".metadata").write_bytes(bait)

    assert group.run("resume", "hostile").codes == [0, 0]
    assert not trap.exists()
    pickle.loads(bait)
    assert trap.exists(), "the trap works"


# ---------------------------------------------------------------- mistakes

MISTAKES = {
    "a setting": (["train.stepps=3"], 2, "stepps"),
    "a file": (["data.source=gone.txt"], 3, "gone.txt"),
    "one process alone": (["train.parallel=none"], 2, "train.parallel: none, and there are 2 processes"),
    "whole matrices": (["train.parallel=fsdp", "train.optimizer.kind=muon"], 2, "muon needs whole matrices"),
    "compiled parts": (["train.parallel=fsdp", "train.compile=true"], 2, "train.compile: a sharded model"),
    "a spoken text": (["data.source=-"], 2, "data.source: standard input"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_once_and_ends_all(group, mistake):
    changes, code, words = MISTAKES[mistake]
    end = group.run("train", "recipe.toml", *changes, "--out", f"never {mistake}")

    assert end.codes == [code, code], end
    assert len(end.sentences) == 1 and words in end.sentences[0], end
    assert not (group.place / f"never {mistake}").exists() and end.seconds < SOON


@pytest.mark.slow
def test_a_folder_in_use_is_told_once(group):
    run = train(group, "a text", "used", "train.steps=2")
    from regard.files.folder_lock import lock_folder

    with lock_folder(run):
        end = group.run("resume", "used", "train.steps=4")

    assert end.codes == [2, 2] and len(end.sentences) == 1 and "another process is training there" in end.sentences[0]


@pytest.mark.slow
def test_what_goes_wrong_on_another_rank_is_told_by_the_first(group):
    end = group.run("train", "recipe.toml", *STEPS, "--out", "failed", fail="far.txt: not on this machine")

    assert end.codes == [3, 3], end
    assert end.sentences == ["regard: far.txt: not on this machine"] and end.said[1] == "", end
    assert end.seconds < SOON


@pytest.mark.slow
def test_a_rank_that_falls_silent_is_noticed_by_the_others(group):
    """It is not dead, so nothing is closed, and a collective would wait for it."""
    end = group.run("train", "recipe.toml", *STEPS, "--out", "silent", freeze=4)

    assert end.codes == [1, 1], end
    told = ("rank 1 has been silent", "another process of this run failed")  # whichever is noticed first
    assert len(end.sentences) == 1 and any(words in end.sentences[0] for words in told), end
    assert group.run("resume", "silent").codes == [0, 0]


# ---------------------------------------------------------------- PyTorch's launcher


@pytest.mark.slow
def test_torchrun_trains_and_a_signal_to_it_saves(group):
    """SIGTERM to the launcher, as a cluster sends it, once the first steps are logged."""
    launcher = group.torchrun("train", "recipe.toml", *STEPS, "train.steps=100000", "--out", "launched")
    log = group.place / "launched" / "log.jsonl"
    while not gone(launcher.pid, 0.05) and not (log.exists() and log.stat().st_size):
        pass
    ranks = children(launcher.pid)
    launcher.send_signal(signal.SIGTERM)
    said = launcher.communicate(timeout=SOON)[1]

    assert len(ranks) == 2 and all(gone(rank, 0) for rank in ranks)
    assert said.count("which is saved") == 1 and said.count("saving after this step") == 1, said
    newest = locate.newest_checkpoint(group.place / "launched")
    assert f"step-{lines(log)[-1]['step']:06d}" == newest.name


@pytest.mark.slow
def test_torchrun_shows_a_mistake_and_its_code(group):
    launcher = group.torchrun("train", "recipe.toml", "train.stepps=3", "--out", "launched wrong")
    said = launcher.communicate(timeout=SOON)[1]

    assert said.count("regard: train.stepps") == 1 and "exitcode  : 2" in said


# ---------------------------------------------------------------- laws that need no processes


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_the_shares_of_all_ranks_are_the_whole_batch(size):
    batch = {"ids": torch.arange(35).view(5, 7), "label": torch.arange(5)}
    parts = {"loss": LossPart(5)}
    losses, seen = [], []
    for rank in range(size):
        rows, mine = ProcessRanks(rank, size).share(batch, parts)
        losses.append(combine_losses({"loss": rows["label"].sum() * 1.0}, mine))
        seen += rows["label"].tolist() if mine["loss"].weight else []
        assert len(rows["ids"]) >= 1

    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert_close(torch.stack(losses).mean(), torch.tensor(10 / 5))


def test_one_process_takes_the_batch_as_it_is():
    batch, parts = torch.arange(6).view(2, 3), {"loss": LossPart(4)}

    assert (
        SINGLE_PROCESS.share(batch, parts) == (batch, parts)
        and SINGLE_PROCESS.gather_lists([1]) == [1]
        and SINGLE_PROCESS.max(3) == 3
    )


def test_without_a_launcher_there_is_one_rank(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for way in ("auto", "none", "ddp", "fsdp"):
        with join_process_group(config.Train(parallel=way)) as ranks:
            assert ranks is SINGLE_PROCESS


@pytest.mark.parametrize("said, words", [
    ({"WORLD_SIZE": "2"}, "RANK=: expected a number"),
    ({"WORLD_SIZE": "many"}, "WORLD_SIZE=many: expected a number"),
    ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2: expected a number below WORLD_SIZE=2"),
    ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK=-1: expected a number"),
    ({"WORLD_SIZE": "2", "RANK": "1"}, "MASTER_ADDR: not set"),
    ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here"}, "MASTER_PORT: not set"),
])  # fmt: skip
def test_an_environment_that_says_too_little_is_a_mistake(said, words):
    with pytest.raises(config.ConfigError, match=words):
        read_rank_env(said)
