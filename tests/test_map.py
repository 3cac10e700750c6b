"""The map finds what is planted, and notices what is missing or stale."""

from textwrap import dedent

import pytest

import map as idea_map

FILES = {
    "docs/ideas.toml": """
        [S002]
        idea = "weigh and gather"
        formula = "softmax(QK'·scale) V, |a| = 1"
        [S020]
        idea = "no looking ahead"
        erratum = "E20: the diagonal is allowed"
        [S171]
        idea = "not built"
        """,
    "src/regard/core/kernels.py": """\
        weights = softmax(scores)           #: S002
        #: S002 S020
        # may see: comments between an anchor and its line are skipped

        def allows(q, k): ...
        text = "#S020 is no anchor"
        """,
    "examples/demo.py": "print(1)  #: S020\n",
    "tests/core/test_kernels.py": """\
        import pytest

        @pytest.mark.slow
        @pytest.mark.spec("S002", "S020")
        def test_rows_sum_to_one(): ...

        class TestMore:
            @pytest.mark.spec("S020")
            def test_the_future_is_dark(self): ...
        """,
    "tests/laws/test_all.py": "pytestmark = [pytest.mark.slow, pytest.mark.spec('S002')]\n",
    "tests/gpu/test_flex.py": "@spec('S002')\n@cases(size=[3])\ndef test_flex(size): ...\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        plant(tmp_path, name, text)
    return tmp_path


def plant(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf8")


def cells(root, row):
    line = next(line for line in idea_map.page(root).splitlines() if line.startswith(f"| {row} "))
    return [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split(" | ")]


def test_an_anchor_names_its_own_line_or_the_next_line_of_code(root):
    assert cells(root, "S002")[3] == (
        "[core/kernels.py:1](../src/regard/core/kernels.py#L1)<br>[core/kernels.py:5](../src/regard/core/kernels.py#L5)"
    )


def test_examples_are_code_too(root):
    assert cells(root, "S020")[3] == (
        "[examples/demo.py:1](../examples/demo.py#L1)<br>[core/kernels.py:5](../src/regard/core/kernels.py#L5)"
    )


def test_marks_are_found_on_functions_methods_files_and_gpu_tests(root):
    assert cells(root, "S002")[4] == (
        "[test_rows_sum_to_one](../tests/core/test_kernels.py#L5)<br>"
        "[test_flex](../tests/gpu/test_flex.py#L3)<br>"
        "[test_all.py](../tests/laws/test_all.py#L1)"
    )
    assert "[test_the_future_is_dark](../tests/core/test_kernels.py#L9)" in cells(root, "S020")[4]


def test_a_bar_in_a_formula_does_not_end_its_cell(root):
    assert cells(root, "S002")[2] == "`softmax(QK'·scale) V, ¦a¦ = 1`"


def test_a_row_without_code_or_test_shows_a_dash(root):
    assert cells(root, "S171")[3:5] == ["–", "–"]
    assert idea_map.page(root).endswith("3 rows; 2 have code, 2 have a test.\n")


def test_rows_stand_under_their_sections_and_empty_sections_are_left_out(root):
    titles = [line for line in idea_map.page(root).splitlines() if line.startswith("## ")]

    assert titles == ["## A. Attention", "## B. Masks", "## Q. Worked examples"]


def test_the_page_is_stale_until_written_and_when_an_anchor_comes_or_goes(root):
    assert idea_map.main(["--check"], root) == 1
    assert idea_map.main([], root) == 0
    assert idea_map.main(["--check"], root) == 0

    plant(root, "examples/new.py", "print(1)  #: S020\n")
    assert idea_map.main(["--check"], root) == 1


def test_code_that_only_moves_does_not_make_the_page_stale_and_the_next_writing_follows_it(root):
    assert idea_map.main([], root) == 0

    plant(root, "examples/demo.py", "\nprint(1)  #: S020\n")
    assert idea_map.main(["--check"], root) == 0
    assert "examples/demo.py#L2" not in (root / idea_map.PAGE).read_text()
    assert idea_map.main([], root) == 0
    assert "examples/demo.py#L2" in (root / idea_map.PAGE).read_text()


@pytest.mark.parametrize(
    "name, text",
    [
        ("src/regard/core/extra.py", "x = 1  #: S003\n"),
        ("src/regard/core/extra.py", "x = 1  #: S002, S003\n"),
        ("tests/test_extra.py", "@pytest.mark.spec('S003')\ndef test_x(): ...\n"),
    ],
)
def test_a_row_that_is_named_but_unknown_is_an_error(root, capsys, name, text):
    plant(root, name, text)

    assert idea_map.main(["--check"], root) == 1
    assert "S003 is not in docs/ideas.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("[S002]\nformula = 'x'\n", "S002 has no idea"),
        ("[S002]\nidea = 'x'\nformulla = 'x'\n", "S002.formulla: no such key"),
        ("[S2]\nidea = 'x'\n", "S2 is no row"),
        ("[S900]\nidea = 'x'\n", "S900 is no row"),
    ],
)
def test_an_idea_that_is_not_well_formed_is_an_error(tmp_path, text, wrong):
    plant(tmp_path, "docs/ideas.toml", text)

    assert len(found := idea_map.problems(tmp_path)) == 1 and wrong in found[0]


def test_our_own_ideas_are_well_formed():
    assert idea_map.problems(idea_map.ROOT) == []
