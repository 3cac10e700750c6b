"""The examples as modules, and as a reader runs them."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example(request):
    """The example that a test file is named after: test_routing.py has examples/routing.py."""
    name = Path(request.path).stem.removeprefix("test_")
    spec = spec_from_file_location(f"examples_{name}", ROOT / "examples" / f"{name}.py")
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def printed(example):
    """What `python examples/....py` prints with these arguments; a warning or an error fails the test."""

    def printed(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf8"}
        done = subprocess.run(
            [sys.executable, "-W", "error", example.__file__, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            encoding="utf8",
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return printed
