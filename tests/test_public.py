"""The names that others rely on, and what they do when they are used as the design page uses them."""

import subprocess
import sys

import pytest
import torch

import regard
from regard import config as C

NAMES = {
    "DualEncoderModel", "Engine", "KERNELS", "Model", "Run", "TextEngine", "Tokens", "Transformer", "UserError",
    "__version__", "attention", "build", "config", "estimate", "evaluate", "explain", "fit", "from_pretrained",
    "grid_tokens", "inputs", "lens", "load", "looking", "mask", "plot", "preset", "register_kernel", "resume",
    "sequence_tokens", "train",
}  # fmt: skip
SETTINGS = [
    "model.dim", "model.depth", "model.heads", "train.steps", "train.minutes", "train.seed", "train.save_every",
    "train.eval_every", "train.precision", "train.parallel", "train.compile",
]  # fmt: skip
VALUES = {"train.precision": "fp32", "train.parallel": "none", "train.compile": "false", "model.dim": "64"}


def test_the_public_names_are_these():
    assert set(regard.__all__) == NAMES
    assert all(getattr(regard, name) is not None for name in NAMES)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothere"):
        print(regard.nothere)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_others_rely_on_can_be_said(name):
    from regard.zoo.recipe import read_recipe

    assert read_recipe("shakespeare", [f"{name}={VALUES.get(name, 4)}"])


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert regard.__version__ == version("regard")


def test_importing_regard_does_not_import_torch():
    code = "import sys, regard; regard.preset('gpt2'); regard.config.Recipe(); sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_the_model_brings_no_compiler():
    # half of torch's compiler takes as long to import as torch itself
    code = "import sys, regard; regard.Model; regard.load; sys.exit('torch._dynamo' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_collector_rests_while_modules_are_imported_and_goes_on_as_it_was():
    code = """
import gc, sys
full = []
gc.callbacks.append(lambda phase, about: full.append(about["generation"] == 2))
import regard
regard.load
went_on, rested = gc.isenabled() and not gc.get_freeze_count(), not any(full)
gc.disable()
regard.Engine
sys.exit(not (went_on and rested and not gc.isenabled() and "torch" in sys.modules))
"""

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_surface_of_the_design_page(tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    small = ["model.dim=32", "model.heads=2", "model.depth=2", "train.steps=2", "train.compile=false",
             "train.batch_size=2"]  # fmt: skip
    run = regard.Run.from_recipe("shakespeare-nano", small)
    numbers = [step.number for step in regard.train(run)]
    run.model.save(tmp_path / "out")
    model = regard.load(tmp_path / "out")
    ids = torch.tensor([model.tokenizer.encode("ROMEO:")])

    assert numbers == [1, 2]
    assert model(ids).shape == (1, 6, 65)
    assert len(model.generate("ROMEO:", max_new_tokens=20, temperature=0.8, top_p=0.95, seed=0)) == 20
    assert "".join(model.stream("ROMEO:", max_new_tokens=20, seed=0)) == model.generate(
        "ROMEO:", max_new_tokens=20, seed=0
    )
    with regard.looking(model, "trunk.*.attn.pattern") as seen:
        model(ids)
    assert list(seen) == ["trunk.0.attn.pattern", "trunk.1.attn.pattern"]


def test_a_preset_keeps_the_width_of_its_heads():
    model = regard.build(regard.preset("gpt2", depth=4, dim=128))

    assert model.c.trunk.heads == (2, 2, 2, 2) and model.c.trunk.head_width == 64


def test_estimate_and_explain_answer_for_a_config_and_a_model():
    c = regard.preset("gpt2")
    small = regard.build(regard.preset("gpt2", dim=64, depth=1, vocab=11))

    assert regard.estimate(c).parameters == 124_439_808
    assert "124,439,808" in regard.explain(c)
    assert "fused" in regard.explain(small, 16)


def test_presets_that_configs_can_say_are_the_files_there_are():
    from importlib.resources import files

    there = {path.name.removesuffix(".toml") for path in files("regard.zoo").joinpath("presets").iterdir()
             if path.name.endswith(".toml")}  # fmt: skip

    assert there == set(C.PRESETS)
