"""Compiling is speed and not meaning: the same losses, and without a compiler the run goes on as written."""

import json
import os
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from sizes import in_full
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from training.builders import advanced, assert_same, bits, lines

from regard.training import compile_cache
from regard.training.api import fit
from regard.training.loop import MIN_COMPILED_STEPS, StepRunner, should_compile, train_steps
from regard.training.parallel.wrap import model_blocks
from regard.training.run import Run
from regard.training.validation import validate

# torch looks at the .grad of what comes into a block when it compiles it alone, and warns itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
WAYS = {"whole": [], "block by block": ["train.minutes=5"]}  # a run of minutes is compiled in less time


def losses_of(run, told, steps=3):
    return [float(step.loss) for step, _ in zip(train_steps(run, told.append), range(steps), strict=False)]


@pytest.fixture(autouse=True)
def fresh():
    """What was compiled before is forgotten."""
    torch.compiler.reset()


@pytest.fixture
def broken(monkeypatch):
    """A machine on which compiling fails."""

    def fail(*given, **settings):
        raise RuntimeError("no compiler here\nand a page of what it tried")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)


@pytest.fixture
def auto(recipe):
    """A run that is long enough to be compiled."""
    return lambda *changes: Run.from_recipe(recipe("train.compile=auto", "train.steps=200", *changes))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_without_a_compiler_a_run_goes_on_as_written_and_says_so_in_a_line(auto, broken, way, kind):
    told, changes = [], [*WAYS[way], f"train.optimizer.kind={kind}"]
    straight = auto("train.compile=false", *changes)
    expected = losses_of(straight, told)
    assert told == []
    run = auto(*changes)

    assert losses_of(run, told) == expected
    assert_same(bits(run), bits(straight))
    assert len(told) == 1 and told[0].startswith("not compiled") and "\n" not in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_line_tells_the_reason(auto, broken, way):
    told = []
    losses_of(auto(*WAYS[way]), told, steps=1)

    assert "no compiler here" in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_who_asks_for_compiling_hears_why_it_failed(auto, broken, way):
    with pytest.raises(Exception, match="no compiler here"):
        losses_of(auto("train.compile=true", *WAYS[way]), [])


@pytest.mark.parametrize("changes, expected", [
    (["train.compile=auto", f"train.steps={MIN_COMPILED_STEPS - 1}"], False),
    (["train.compile=auto", f"train.steps={MIN_COMPILED_STEPS}"], True),
    (["train.compile=auto", "train.steps=none", "train.minutes=3"], True),
    (["train.compile=auto", "train.steps=none", "train.minutes=0.1"], False),
    (["train.compile=true", "train.steps=1"], True),
    (["train.compile=false", "train.steps=100000"], False),
])  # fmt: skip
def test_auto_compiles_what_is_long_enough(recipe, changes, expected):
    run = Run.from_recipe(recipe(*changes))
    advance = StepRunner(run, print)

    assert should_compile(run) == (not advance.settled) == expected
    advance.uncompile()


@pytest.mark.parametrize("changes", [["train.steps=300"], ["train.steps=none", "train.minutes=3"]])
def test_what_is_left_of_a_run_does_not_decide(recipe, changes):
    run = Run.from_recipe(recipe("train.compile=auto", *changes))
    run.step = 250

    assert should_compile(run)


def test_after_training_the_model_runs_as_written(recipe):
    run = Run.from_recipe(recipe("train.compile=true", "train.steps=0", *WAYS["block by block"]))
    list(train_steps(run))

    assert all(block._compiled_call_impl is None for block in model_blocks(run.model))


@pytest.fixture
def traced(monkeypatch):
    """Compiling looks at all that is done, as ever, and then does it as written."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))


@pytest.mark.slow
def test_a_run_is_compiled_once_whatever_is_asked_between_its_steps(recipe, traced):
    run = Run.from_recipe(recipe("train.compile=true", "train.steps=6"))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in train_steps(run):
            if step.number % 2:
                run.model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3)
                validate(run.model, [torch.ones(2, 7, dtype=torch.long)])

    assert run.step == 6


@pytest.mark.slow
def test_every_run_is_compiled_however_many_came_before(recipe, traced):
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for heads in (1, 2, 4):
            run = Run.from_recipe(recipe("train.compile=true", "train.steps=2", f"model.trunk.attention.heads={heads}"))
            assert len(advanced(run)) == 2


# ---------------------------------------------------------------- with a real compiler


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("precision, way", [
    ("fp32", "block by block"),
    pytest.param("fp32", "whole", marks=in_full),
    pytest.param("mixed", "block by block", marks=in_full),
    pytest.param("mixed", "whole", marks=in_full),
])  # fmt: skip
def test_compiled_and_eager_runs_learn_the_same(recipe, precision, way):
    changes = ["model.dropout=0.0", f"train.precision={precision}", "train.optimizer.lr=0.003", "train.steps=12"]
    eager, compiled = (advanced(Run.from_recipe(recipe(*changes, *WAYS[way], f"train.compile={word}"))) for word in
                       ("false", "true"))  # fmt: skip

    assert compiled == pytest.approx(eager, abs=1e-4 if precision == "fp32" else 5e-3)
    assert compiled[-1] < compiled[0]


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("way", ["block by block", pytest.param("whole", marks=in_full)])
def test_a_compiled_run_goes_on_bit_for_bit_with_dropout(recipe, tmp_path, way):
    straight = Run.from_recipe(recipe("train.compile=true", *WAYS[way]))
    losses = advanced(straight)
    half = Run.from_recipe(recipe("train.compile=true", *WAYS[way]))
    begun = advanced(half, 3)
    half.save(tmp_path / "half")
    again = Run.from_recipe(recipe("train.compile=true", *WAYS[way]))
    again.load(tmp_path / "half")

    assert begun + advanced(again) == losses
    assert_same(bits(again), bits(straight))


COMMAND = """
import torch
torch.set_num_threads(1)
from regard import zoo
from regard.training import fit
made = fit(zoo.read_recipe("recipe.toml", ["train.compile=auto", "train.steps=200", "train.minutes=99"]), "run")
print(made.steps)
"""


@pytest.mark.slow
def test_a_machine_whose_compiler_fails_trains_all_the_same(desk):
    settings = {**os.environ, "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(desk / "inductor")}
    made = subprocess.run([sys.executable, "-c", COMMAND], env=settings, text=True, capture_output=True, timeout=300)

    assert made.returncode == 0, made.stderr
    assert made.stdout == "200\n" and made.stderr.count("not compiled") == 1 and "Traceback" not in made.stderr
    assert len(lines(desk / "run/log.jsonl")) == 201
    assert json.loads((desk / "run/run.json").read_text())["seconds"] > 0


TWICE = """
import os, sys, torch, torch._inductor.compile_fx
from itertools import islice
from regard.training import Run, train_steps as train, validate as evaluate

def losses(words):
    torch.set_num_threads(2)
    run = Run.from_recipe("shakespeare-nano", words)
    print([float(step.loss) for step in islice(train(run), 12)], flush=True)

assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot fork"
for _ in range(2):
    if not (child := os.fork()):
        losses(sys.argv[1].split())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
ON_THREADS = {"whole": "model.depth=2", "block by block": "train.minutes=9 model.preset=lab model.dim=64 model.depth=2"}


@pytest.mark.slow(seconds=20)
@pytest.mark.spec("S089")
@pytest.mark.skipif(sys.platform != "linux", reason="a warm process is forked, as only Linux can")
@pytest.mark.parametrize("way", ["block by block", pytest.param("whole", marks=in_full)])
def test_two_compiled_runs_on_two_threads_give_the_same_bits(tmp_path, way):
    """Each in a process of its own."""
    environment = {**os.environ, "REGARD_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}  # so it can fork
    words = f"train.compile=true train.steps=300 {ON_THREADS[way]}"
    told = subprocess.run([sys.executable, "-c", TWICE, words], env=environment, capture_output=True, text=True,
                          timeout=600)  # fmt: skip
    assert told.returncode == 0, told.stderr
    first, again = told.stdout.splitlines()

    assert first == again and first.count(",") == 11


# ---------------------------------------------------------------- the clock, and the cache


def test_a_step_that_compiles_is_counted_as_long_as_the_next(recipe):
    run = Run.from_recipe(recipe("train.compile=true"))
    advance = StepRunner(run, print)

    assert [advance.count(40.0, True), advance.count(2.0, False), advance.count(3.0, False)] == [0.0, 4.0, 3.0]
    assert run.compile_seconds == 38.0
    advance.uncompile()


@pytest.mark.slow
def test_compiling_is_said_and_takes_none_of_the_minutes(recipe, desk, monkeypatch, capfd):
    def slow(model, given, **settings):
        time.sleep(2.0)
        return model.forward

    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=slow))
    done = fit(recipe("train.compile=true", "train.steps=none", "train.minutes=0.02"), desk / "run")  # 1.2 seconds
    told, known = capfd.readouterr().err, json.loads((desk / "run/run.json").read_text())
    logged = [json.loads(line) for line in (desk / "run/log.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in logged if "loss" in line]

    assert done.steps > 3  # the clock began after it
    assert seconds[0] == 0.0 and seconds == sorted(seconds)
    assert known["measured"]["compile_seconds"] > 1.9 and known["seconds"] < 1.9
    assert told.count("compiling ...") == 1 and told.count("compiled in ") == 1


def test_every_instruction_set_and_torch_has_a_compile_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compile_cache.use_compile_cache()
    ours = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2 of another")
    other = compile_cache.compile_cache_folder()
    monkeypatch.setattr(torch, "__version__", "9.9")

    assert ours.startswith(str(tmp_path / "compiled")) and os.path.isdir(ours)
    assert len({ours, str(other), str(compile_cache.compile_cache_folder())}) == 3
    assert os.stat(ours).st_mode & 0o077 == 0


@pytest.mark.parametrize("case", ["chosen by the user", "chosen by torch", "not ours alone"])
def test_a_folder_that_the_user_chose_stays_and_one_that_others_write_is_not_used(tmp_path, monkeypatch, case):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    theirs = default_cache_dir() if case == "chosen by torch" else str(tmp_path / "theirs")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "" if case == "not ours alone" else theirs)
    if case == "not ours alone":
        compile_cache.compile_cache_folder().mkdir(parents=True)
        compile_cache.compile_cache_folder().chmod(0o777)
    compile_cache.use_compile_cache()
    ours = str(compile_cache.compile_cache_folder())

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == {"chosen by torch": ours, "not ours alone": ""}.get(case, theirs)
