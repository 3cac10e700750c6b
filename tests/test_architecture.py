"""docs/architecture.md is fresh, and its journeys are the ones that the code takes."""

import json
import os
import subprocess
import sys
import threading
from importlib import util
from textwrap import dedent

import pytest
import torch

import architecture
import journeys
from journeys import PACKAGE, ROOT, Trace, covering, covers, read_journeys, unexplained
from regard.core.layers import CPU_BF16

pytestmark = pytest.mark.xdist_group("architecture")  # what its tests share is made once

NAMES = list(read_journeys())
TARGETS = {"train": 25, "generate": 18, "classify": 10}  # what a reader may be asked to open


def test_the_page_is_fresh():
    assert architecture.main(["--check"]) == 0


def test_every_journey_is_well_formed_and_can_be_taken():
    assert architecture.problems(ROOT) == []
    assert list(journeys.JOURNEYS) == NAMES


def test_the_limits_are_the_targets():
    for name, most in TARGETS.items():
        assert read_journeys()[name]["limit"] <= most


def test_the_page_has_every_room_in_order_and_every_journey():
    page = (ROOT / architecture.PAGE).read_text(encoding="utf8")
    places = [page.index(f"| [{room}](../src/regard/{room}) |") for room in architecture.ROOMS]

    assert places == sorted(places)
    for journey in read_journeys().values():
        assert f"### {journey['title']}: {len(journey['files'])} files" in page


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """What each journey executes: {journey: {file: functions}}."""
    if torch.backends.mps.is_available():
        pytest.skip("the journeys are those of a CPU, and models go to the Mac's GPU by themselves")
    if not hasattr(os, "fork"):
        pytest.skip("each journey is a fork, which this system does not have")
    folder = tmp_path_factory.mktemp("journeys")
    done = subprocess.run([sys.executable, journeys.__file__, folder], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf8")) for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_listed_file_is_executed(name, taken):
    assert [file for file, _ in read_journeys()[name]["files"] if file not in taken[name]] == []


def kernels_alike(name: str) -> None:
    """In fp32, which training takes on a CPU without bf16 products, attention looks for the native library as well."""
    if name == "train" and not CPU_BF16:
        pytest.skip("the journey is that of a CPU with bf16 products")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_executed_file_is_listed_or_has_its_reason(name, taken):
    kernels_alike(name)
    assert unexplained(read_journeys()[name], taken[name]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_reason_is_needed(name, taken):
    journey = read_journeys()[name]
    listed = {file for file, _ in journey["files"]}
    unlisted = [file for file in taken[name] if file not in listed]

    assert [pattern for pattern in journey["unlisted"] if not any(covers(pattern, file) for file in unlisted)] == []
    assert [file for file in unlisted if len(covering(journey["unlisted"], file)) > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_executed_files_is_the_one_that_is_written_down(name, taken):
    kernels_alike(name)
    assert abs(len(taken[name]) - read_journeys()[name]["executed"]) <= architecture.SLACK


@pytest.mark.parametrize(
    "pattern, covered, other",
    [
        ("core/model.py", "core/model.py", "core/masks.py"),
        ("training/*", "training/run.py", "training/optim/muon.py"),
        ("config/**", "config/inputs/text.py", "core/config.py"),
        ("hub/families/*", "hub/families/gpt2.py", "hub/locate.py"),
    ],
)
def test_a_pattern_covers_a_file_a_folder_or_a_folder_with_its_folders(pattern, covered, other):
    assert covers(pattern, covered) and not covers(pattern, other)


@pytest.fixture
def traced(tmp_path):
    """A package of one module, and a trace of it that ends with the test."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.py").write_text(
        dedent("""
        def register(name):
            return name

        ENTRY = register("at import")

        def late():
            pass

        def steps():
            late()
            yield 1
            register("after the first step")
        """)
    )

    def load():
        spec = util.spec_from_file_location("one", tmp_path / "sub" / "one.py")
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    before = sys.getprofile()
    trace = Trace(tmp_path)
    yield trace, load
    trace.close()
    sys.setprofile(before)


def test_a_trace_sees_calls_and_not_what_an_import_runs(traced):
    trace, load = traced
    with trace:
        module = load()
        module.late()
    module.register("outside")

    assert trace.files == {"sub/one.py": ["late"]}


def test_a_trace_ends_with_the_first_step(traced):
    trace, load = traced
    module = load()
    trace.until = module.steps.__code__
    with trace:
        list(module.steps())

    assert trace.files == {"sub/one.py": ["steps", "late"]}


def test_a_trace_sees_threads(traced):
    trace, load = traced
    module = load()
    with trace:
        thread = threading.Thread(target=module.late)
        thread.start()
        thread.join()

    assert trace.files == {"sub/one.py": ["late"]}


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({"files": [["core/model.py", "x"], ["core/none.py", "x"]]}, "there is no core/none.py"),
        ({"files": [["core/model.py", "x"]] * 2}, "core/model.py is listed twice"),
        ({"limit": 0}, "1 files; at most 0"),
        ({"unlisted": {"core/*": "two words"}}, "'two words' is no single word"),
        ({"unlisted": {f"core/{i}.py": "x" for i in range(13)}}, "13 entries are unlisted; at most 12"),
    ],
)
def test_a_journey_that_is_not_well_formed_is_named(monkeypatch, change, wrong):
    journey = {"files": [["core/model.py", "x"]], "limit": 2, "unlisted": {}} | change
    monkeypatch.setattr(architecture, "read_journeys", lambda root: {"made": journey})

    assert architecture.problems(ROOT) == [f"docs/journeys.toml: made: {wrong}"]


def test_sizes_of_rooms_make_no_page_stale_and_words_do():
    line = "| [chat](../src/regard/chat) | Chat. | 3 | 300 |\n"

    assert architecture.unnumbered(line) == architecture.unnumbered(line.replace("3 | 300", "41 | 12,300"))
    assert architecture.unnumbered(line) != architecture.unnumbered(line.replace("Chat.", "Talk."))


def test_a_stale_page_is_refused_and_says_what_to_run(monkeypatch, capsys):
    monkeypatch.setattr(architecture, "RULE", "another rule\n")

    assert architecture.main(["--check"]) == 1
    assert "docs/architecture.md is stale; run `make map`" in capsys.readouterr().err


def test_the_trace_looks_at_the_package_that_is_tested():
    import regard

    assert (PACKAGE / "__init__.py").samefile(regard.__file__)
