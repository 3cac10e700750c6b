"""The names that scripts and people rely on. Adding one is a line here; renaming one breaks somebody's script."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.main import get_command

import regard.cli
from regard.cli.app import app
from regard.config.generation import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
SURFACE = {
    "": "--version --install-completion --show-completion",
    "train": "recipe overrides --out --init-from --dry-run --quiet --json",
    "resume": "run overrides --quiet --json",
    "evaluate": "checkpoint files --limit --out --num-beams --length-penalty --bleu-tokenize --lowercase --by-group "
                "--json",
    "generate": "checkpoint prompt --file --count --interactive --explain --steer --weights --dtype --specials "
                "--json --max-new-tokens --min-new-tokens --temperature --top-k --top-p --min-p --typical-p "
                "--repetition-penalty --frequency-penalty --presence-penalty --no-repeat-ngram-size --logit-bias "
                "--regex --json-schema --stop --seed --num-beams --num-return-sequences --length-penalty "
                "--draft-model --prompt-lookup --num-speculative-tokens",
    "translate": "words --model --num-beams --length-penalty --max-new-tokens --num-return-sequences --source-prefix "
                 "--align --file --skip --cut --weights --dtype --specials --json",
    "classify": "checkpoint things --file --pair --top-k --skip --weights --dtype --specials --json --labels "
                "--template --separator --examples --shots --seed --example-order --score-per --calibration-prompt",
    "likelihood": "model words --file --tokens --skip --cut --weights --dtype --specials --json",
    "tag": "checkpoint words --all-words --file --skip --weights --dtype --specials --json",
    "embed": "checkpoint things --file --normalize --no-normalize --out --skip --weights --dtype --specials --json",
    "fill": "checkpoint words --top-k --file --skip --weights --dtype --specials --json",
    "answer": "checkpoint question --context --file --skip --weights --dtype --specials --json",
    "caption": "checkpoint pictures --num-beams --max-new-tokens --weights --dtype --json",
    "match": "checkpoint pictures --text --weights --dtype --json",
    "explain": "thing overrides --heads --text --json",
    "doctor": "thing overrides --steps --quiet --json",
    "estimate": "thing overrides --calibrate --json --params --batch --context --dtype --ranks --tokens --device "
                "--utilization --price --tokens-per-parameter",
    "draw": "checkpoint --out --text --count --temperature --top-k --top-p --seed --prefix-image --prefix-rows --json",
    "forecast": "checkpoint table overrides --out --json",
    "serve": "checkpoints --host --port --api-key --api-key-file --slots --max-context --max-queue --specials --body "
             "--weights --dtype --device",
    "chat": "checkpoint --system --template --weights --dtype --json --max-new-tokens --min-new-tokens --temperature "
            "--top-k --top-p --min-p --typical-p --repetition-penalty --frequency-penalty --presence-penalty "
            "--no-repeat-ngram-size --logit-bias --regex --json-schema --stop --seed",
    "compare": "thing keys --seeds --minutes --out --tune --quick --json",
    "scale": "recipe overrides --sizes --family --seeds --out --json",
    "check": "thing --dtype --tokens --layer-diff --device --quick --json",
    "convert": "source target --dtype --as --json",
    "check-kernel": "thing --max-length --max-exponent --json",
    "report": "run",
    "models": "name --json",
    "schema": "",
    "lens": "",
    "lens scan": "model text --source --dtype --json",
    "lens logit-lens": "model text --source --watch --top-k --halves --no-halves --tuned --dtype --out --json",
    "lens tune": "model file --out --steps --lr --halves --no-halves --dtype",
    "lens attribute": "model text --source --token --against --position --neurons --dtype --out --json",
    "lens inputs": "model text --source --method --token --position --dtype --out --json",
    "lens agreement": "model file --limit --ablation --dtype --out --json",
    "lens patch": "model clean corrupted --token --against --part --source --corrupted-source --noise --dtype "
                  "--out --json",
    "lens trace": "model text --subject --token --source --part --window --dtype --out --json",
    "lens over-training": "run text --source --step --dtype --out --json",
    "lens induction": "model --length --texts --seed --ablation --dtype --out --json",
    "lens neurons": "model file --where --unit --top-k --dtype --out --json",
    "lens census": "model files --out --tokens --context --top-k --dtype --json",
    "lens neuron": "model layer unit --top-k --dtype --out --json",
    "lens context": "model first second --word --dtype --out --json",
    "lens steer": "model file --address --out --dtype --json",
    "tokenize": "",
    "tokenize train": "kind files --out --vocab-size --lowercase --json",
    "tokenize encode": "tokenizer words --specials --json",
    "tokenize decode": "tokenizer ids --json",
}  # fmt: skip


def surface(command, name=""):
    """Each verb with its arguments and options, walked from the top."""
    words = (word for known in command.params for word in (*known.opts, *known.secondary_opts))
    yield name, " ".join(word for word in words if word != "--help")
    for inner in getattr(command, "commands", {}).values():
        yield from surface(inner, f"{name} {inner.name}".strip())


def test_the_command_line_is_the_one_people_know():
    assert dict(surface(get_command(app))) == SURFACE


def test_every_setting_of_sampling_is_an_option_of_generate():
    options = SURFACE["generate"].split()

    assert all(f"--{name.replace('_', '-')}" in options for name in SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize("verb", SURFACE)
def test_every_verb_explains_itself(say, verb):
    told = say(*verb.split(), "--help")

    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("Usage: regard") and "Show this message" in told.out


def test_every_argument_and_option_has_a_word_of_help():
    def walk(command):
        yield from (known for known in command.params if known.name != "help")
        for inner in getattr(command, "commands", {}).values():
            yield from walk(inner)

    assert [known.name for known in walk(get_command(app)) if not known.help] == []


def test_regard_alone_shows_the_help(say):
    assert say() == say("--help")


def test_the_version_is_the_package_s(say):
    assert say("--version").out == f"regard {regard.__version__}\n"
    assert metadata.version("regard") == regard.__version__


def test_the_script_and_the_module_are_this_command():
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["regard"]
    module = subprocess.run([sys.executable, "-m", "regard", "--version"], capture_output=True, text=True, timeout=60)

    assert script == f"{regard.cli.main.__module__}:{regard.cli.main.__name__}"
    assert (module.returncode, module.stdout) == (0, f"regard {regard.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_the_verbs_that_begin_so(shell, monkeypatch):
    """As the script of --show-completion asks for them: typer's own protocol."""
    words = {"COMP_WORDS": "regard ge", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "regard ge",
             "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_REGARD_COMPLETE": f"complete_{shell}"}  # fmt: skip
    asked = subprocess.run([sys.executable, "-m", "regard"], capture_output=True, text=True, timeout=60,
                           env=os.environ | words)  # fmt: skip

    assert "generate" in asked.stdout and "train" not in asked.stdout and asked.stderr == ""
