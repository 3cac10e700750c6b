"""regard generate: what it prints is what the model says, to people, to pipes and to scripts."""

import io
import json
import subprocess
import sys

import pytest
import torch

from regard.cli import main
from regard.inference.load import load_model
from regard.lens import SteeringVector, steering


def test_stdout_is_exactly_what_the_model_generates(say, checkpoint):
    told = say("generate", checkpoint, "the cat", "--max-new-tokens", 9, "--seed", 3)

    assert (told.code, told.err) == (0, "")
    assert told.out == load_model(checkpoint).generate("the cat", max_new_tokens=9, seed=3)


def test_every_setting_reaches_the_model(say, checkpoint):
    settings = {"max_new_tokens": 9, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05,
                "repetition_penalty": 1.3, "seed": 4}  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]

    assert say("generate", checkpoint, "the", *words).out == load_model(checkpoint).generate("the", **settings)


def test_stop_may_be_given_several_times(say, checkpoint):
    whole = load_model(checkpoint).generate("the", max_new_tokens=12, seed=3)
    told = say("generate", checkpoint, "the", "--max-new-tokens", 12, "--seed", 3, "--stop", "zzzz", "--stop", whole[5])

    assert told.out == whole[: whole.index(whole[5])]


@pytest.mark.parametrize("words", [["-"], ["--file", "-"], ["--file", "prompt.txt"]], ids=" ".join)
def test_a_prompt_may_come_from_a_file_or_standard_input(say, checkpoint, desk, words):
    (desk / "prompt.txt").write_bytes(b"a dog\n")
    told = say("generate", checkpoint, *words, "--max-new-tokens", 5, "--seed", 3, "--json", stdin=b"a dog\n")

    assert json.loads(told.out)["prompt"] == "a dog\n"


def test_json_says_all_that_is_needed_to_make_the_text_again(say, checkpoint):
    told = json.loads(
        say("generate", checkpoint, "the", "--max-new-tokens", 9, "--count", 3, "--top-k", 4, "--json").out
    )
    first = told["texts"][0]

    assert len(told["texts"]) == 3 and first["reason"] == "length" and first["tokens"] == 9
    assert load_model(checkpoint).generate(told["prompt"], **told["sampling"]) == first["text"]


def test_the_first_of_several_texts_is_the_one_text(say, checkpoint):
    one = say("generate", checkpoint, "the", "--max-new-tokens", 9, "--seed", 3).out
    told = say("generate", checkpoint, "the", "--max-new-tokens", 9, "--seed", 3, "--count", 2)
    first, second = told.out.split("\n---\n")

    assert first == one and second != one


def test_text_is_shown_while_it_is_made(checkpoint, monkeypatch):
    """After every token that is a character, stdout has been flushed with it."""

    class Watched(io.StringIO):
        seen: list[str] = []

        def flush(self):
            self.seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Watched())
    assert main(["generate", str(checkpoint), "the", "--max-new-tokens", "5", "--seed", "3"]) == 0
    assert [len(seen) for seen in dict.fromkeys(Watched.seen)] == [1, 2, 3, 4, 5]


def test_a_terminal_shows_the_prompt_before_the_text(say, checkpoint, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    told = say("generate", checkpoint, "the cat", "--max-new-tokens", 5, "--seed", 3)

    assert told.err == "the cat"
    assert told.out == load_model(checkpoint).generate("the cat", max_new_tokens=5, seed=3) + "\n"


def test_a_text_longer_than_the_context_is_noted_in_one_line(say, checkpoint):
    told = say("generate", checkpoint, "the cat", "--max-new-tokens", 19, "--seed", 3)

    assert told.code == 0 and len(told.out) == 19
    assert told.err.startswith("regard: note: ") and told.err.count("\n") == 1


@pytest.mark.slow
def test_a_note_waits_until_the_text_is_whole(checkpoint):
    """On a terminal, where both streams meet, it does not stand in the middle of a line."""
    words = [sys.executable, "-m", "regard", "generate", checkpoint, "the cat", "--max-new-tokens", "19", "--seed", "3"]
    both = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60).stdout

    assert both.index("regard: note: ") == 19


@pytest.mark.parametrize("strength", ["", ":-2.5", ":0"])
def test_a_saved_vector_steers_the_text(say, checkpoint, strength):
    model = load_model(checkpoint)
    vector = SteeringVector("trunk.1.residual", 9 * torch.randn(model.c.trunk.dim))
    vector.save("v.safetensors")
    words = ["generate", checkpoint, "the cat", "--max-new-tokens", 9, "--temperature", 0]
    with steering(model, vector, float(strength[1:] or 1)):
        wanted = model.generate("the cat", max_new_tokens=9, temperature=0)

    assert say(*words, "--steer", f"v.safetensors{strength}").out == wanted
    assert (wanted == say(*words).out) == (strength == ":0")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--steer", "none.safetensors:2"], "none.safetensors: no such file"),
        (["--steer", "v.safetensors:nan"], "expected finite numbers"),
        (["--steer", "v.safetensors", "--interactive"], "--steer: a text in turns is not steered"),
    ],
)
def test_a_vector_that_cannot_steer_is_refused(say, checkpoint, words, problem):
    SteeringVector("trunk.1.residual", torch.ones(12)).save("v.safetensors")
    told = say("generate", checkpoint, "the cat", *words)

    assert told.code and problem in told.err and not told.out
