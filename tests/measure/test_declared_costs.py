"""Costs are declared where a kernel, a front end or a mixer is defined: deleting its file deletes its cost too."""

import ast

import pytest

import regard.inference.model  # noqa: F401  everything enters itself
from regard.attention.cost import KERNEL_COSTS, AttentionField, charged_pairs
from regard.core.kernels import KERNELS
from regard.core.masks import mask
from rooms import PACKAGE, parse

SHARED = {"cost", "causal_scan", "pairwise", "__init__"}  # of the room: what several kernels use
KERNEL_FILES = sorted(path.stem for path in (PACKAGE / "attention").glob("*.py") if path.stem not in SHARED)
ON_A_GPU = {"flex": "local", "varlen": "flex"}  # where a kernel hands the work on to another one


def imports(path):
    """What a file imports from the room of kernels."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard.attention"):
            module = node.module.removeprefix("regard.attention").lstrip(".")
            yield from [module] if module else [each.name for each in node.names]


@pytest.fixture(scope="module")
def imported():
    """What each file of the package imports from the room of kernels."""
    return {path.relative_to(PACKAGE).as_posix(): set(imports(path)) for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("name", KERNEL_FILES)
def test_no_other_file_needs_a_kernel_s_file(name, imported):
    users = {path for path, names in imported.items() if name in names}

    assert users - {"attention/__init__.py", f"attention/{ON_A_GPU.get(name)}.py"} == set()


def test_every_kernel_that_can_be_named_says_how_it_grows():
    assert KERNELS.keys() - {"native_decode"} <= KERNEL_COSTS.keys()
    assert KERNEL_COSTS.keys() <= KERNELS.keys()


def test_a_kernel_without_a_declared_cost_counts_as_dense(monkeypatch):
    field = AttentionField(4096, 4096, mask("causal & window(16)"))
    assert charged_pairs(field, "local") == charged_pairs(field, "auto") < 4096**2 / 20

    monkeypatch.delitem(KERNEL_COSTS, "local")

    assert charged_pairs(field, "local") == charged_pairs(field, "auto") == 4096**2
