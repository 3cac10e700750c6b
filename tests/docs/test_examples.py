"""Whatever a page of the docs or the README shows is run, and whatever it points at is there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sizes import in_full

from regard.config.masks import MASKS
from regard.config.reader import EXTRA_KINDS
from regard.config.trunk import KERNELS as SAYABLE
from regard.core.kernels import KERNELS
from regard.core.masks import MASK_TYPES
from regard.core.model import FRONT_ENDS
from regard.core.positions import POSITIONS
from regard.inputs.processors import PROCESSORS
from regard.report.image_rows import encode_png

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)")


def fences(text, language):
    """Each fenced piece of a page in this language, with the line it begins on."""
    for found in FENCE.finditer(text):
        if found[1] == language:
            yield text[: found.start(2)].count("\n"), found[2]


def commands(text):
    """The lines of bash that a reader of the repository can run: examples, and targets of make."""
    lines = [line.strip() for _, piece in fences(text, "bash") for line in piece.splitlines()]
    return [line for line in lines if line.startswith(("python examples/", "make "))]


def links(text):
    """Text and target of each link within the repository; what only looks like one inside code is none."""
    prose = re.sub(r"`([^`\n]*)`", lambda code: code[0] if code[1].isidentifier() else "", FENCE.sub("", text))
    return [(text, target) for text, target in LINK.findall(prose) if "://" not in target]


def read(page):
    return page.read_text(encoding="utf8")


def named(page):
    return page.relative_to(ROOT).as_posix()


def run(text, name):
    """All python of a page in one namespace; each piece keeps its line, so that an error points into the page."""
    namespace = {"__name__": "__page__"}
    for line, piece in fences(text, "python"):
        exec(compile("\n" * line + piece, name, "exec"), namespace)
    return namespace


@pytest.fixture
def tables():
    """What a page enters in the tables leaves them again."""
    tables = [KERNELS, MASK_TYPES, MASKS, POSITIONS, FRONT_ENDS, PROCESSORS, EXTRA_KINDS]
    before, names = [dict(table) for table in tables], list(SAYABLE)
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    SAYABLE[:] = names


COMMANDS = sorted({command for page in PAGES for command in commands(read(page))})


@pytest.mark.parametrize("page", [page for page in PAGES if any(fences(read(page), "python"))], ids=named)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, capsys, tables):
    run(read(page), str(page))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python ")])
def test_the_examples_that_a_page_names_are_run_by_a_test_of_their_own(command):
    """tests/examples runs them as a reader does, and looks at what they print."""
    _, script, *words = shlex.split(command, comments=True)
    example = ROOT / "tests" / "examples" / f"test_{Path(script).stem}.py"
    calls = {f"printed({', '.join(map(json.dumps, words))})", *(["example.main()"] if not words else [])}

    assert any(call in read(example) for call in calls)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_the_make_targets_that_a_page_names_exist(command):
    targets = re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE)
    asked = [word for word in shlex.split(command, comments=True)[1:] if "=" not in word]

    assert set(asked) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_names_in_them(page):
    for text, target in links(read(page)):
        path = (page.parent / target).resolve()
        assert path.exists(), f"{named(page)}: no file {target}"
        if path.suffix == ".py" and (name := re.fullmatch(r"`(\w+)`", text)):
            assert re.search(rf"^\s*(def|class) {name[1]}\b|^{name[1]}\b.*=", read(path), re.MULTILINE), (
                f"{named(page)}: {target} has no {name[1]}"
            )


def test_a_fence_that_fails_says_on_which_line_of_its_page():
    page = "# A page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n"

    with pytest.raises(AssertionError) as error:
        run(page, "page.md")

    assert (str(error.traceback[-1].path), error.traceback[-1].lineno + 1) == ("page.md", 8)


def test_only_commands_for_this_repository_are_collected():
    page = "```bash\npip install regard\npython examples/x.py --fast\nmake setup test\n```\n```python\nmake = 1\n```\n"

    assert commands(page) == ["python examples/x.py --fast", "make setup test"]


def test_links_are_found_in_prose_and_not_in_code():
    page = "[`name`](a.py) and `[cos sin](k)` and [web](https://example.org)\n```python\nx[0](1)\n```\n[b](b.md#part)\n"

    assert links(page) == [("`name`", "a.py"), ("b", "b.md")]


# ---------------------------------------------------------------- the command line

TINY = ("train.minutes=none train.steps=2 train.batch_size=2 train.context=16 train.compile=false "
        "train.eval_tokens=99 report.max_new_tokens=5 model.dim=32 model.depth=2 model.heads=2")  # fmt: skip
SHORTER = {  # what makes a run of minutes one of seconds; the rest of a command is run as it stands
    "regard train cora": "train.steps=2",
    "regard train mutag": "train.steps=2 train.batch_size=2 model.dim=16 model.depth=2 model.heads=2",
    "regard train digits": "train.steps=2 train.batch_size=2 model.dim=16 model.depth=1 model.heads=2",
    **dict.fromkeys(
        ("regard train lstm", "regard train gru"),
        "train.steps=2 train.batch_size=2 report.max_new_tokens=5 model.dim=16 data.validation=0.002",
    ),
    **dict.fromkeys(
        ("regard train bahdanau", "regard train fixed-vector"),
        "train.steps=2 train.batch_size=2 report.max_new_tokens=5 model.dim=16 data.source=toy:copy(50,500)",
    ),
    "regard train bilstm": "train.epochs=none train.steps=2 train.context=16 model.dim=16 "
    "data.source=movie-reviews:validation",
    "regard train pixels": "train.steps=2 train.batch_size=2 model.dim=16 model.depth=1 model.heads=2",
    "regard train emoji-clip": "train.steps=2 train.batch_size=4 model.image.depth=1 model.text.depth=1 "
    "model.image.embed.widths=[8,8,16]",
    "regard train emoji-caption": "train.steps=2 train.batch_size=4 train.keep_best=false model.dim=24 model.depth=1 "
    "model.encoder.trunk.depth=1 model.encoder.embed.widths=[8,8,16]",
    "regard train emoji-draw": "train.steps=2 train.batch_size=4 train.keep_best=false model.dim=24 model.depth=1 "
    "task.pixels.grid=[4,4] train.context=56",
    "regard draw runs/emoji-draw": "--count 2",
    "regard train translate": f"{TINY} data.source=tatoeba-en-fr:test",
    "regard train toy": f"{TINY} data.source=toy:reverse(10,500)",
    "regard train": TINY,
    "regard generate": "--max-new-tokens 5",
    "regard evaluate runs/translate": "--limit 9",
    "regard doctor translate": "--steps 10 model.dim=32 model.depth=1 model.heads=2 train.batch_size=2 "
    "data.source=tatoeba-en-fr:test",
    "regard doctor": "--steps 10 model.dim=32 model.depth=1 model.heads=2 train.batch_size=2",
    "regard compare shakespeare": "train.steps=2 train.batch_size=2 train.context=16 data.validation=0.002 "
    "model.dim=32 model.depth=2 model.heads=2 train.schedule.warmup=1 --seeds 1",
    "regard compare attention": "--quick train.steps=2",
    "regard compare in-context": "--quick train.steps=2",
    "regard compare": "--quick",
    "regard check ": "--quick",
    "regard lens census": "--tokens 2000",
    "regard scale": "train.steps=2 train.batch_size=2 train.context=16 data.validation=0.002 model.depth=1 "
    "--sizes 8,16,24,32",
}


def verbs(text):
    """The lines of bash that call our command, in the order of the page."""
    lines = [line.strip() for _, piece in fences(text, "bash") for line in piece.splitlines()]
    return [line for line in lines if line.startswith("regard ")]


WARM = ("regard.training", "regard.inference.load", "regard.hub.read_folder", "regard.report.page", "regard.studies")


@pytest.fixture(scope="session")
def warm():
    """A process that forks for each command, with everything imported."""
    words = [sys.executable, Path(__file__).with_name("fork_server.py"), *WARM]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "warm\n", "the warm process did not begin"

        def ask(words, folder, environment):
            asked = {"words": words, "folder": str(folder), "environment": environment}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """One cache for all pages: a text that one of them has tokenized is ready for the next."""
    return tmp_path_factory.mktemp("cache")


def shortened(command):
    """The words of a command, and those of SHORTER that make it quick: but for data that the page itself names, and
    the sizes of a model that is begun from another."""
    more = next((words for verb, words in SHORTER.items() if command.startswith(verb)), "").split()
    stays = [key for key, sign in (("data.source=", "data.source="), ("model.", "--init-from")) if sign in command]
    return [*shlex.split(command, comments=True)[1:], *(word for word in more if not word.startswith(tuple(stays)))]


LONG_PAGES = {"README.md": 40}  # seconds
IN_FULL = {"compare.md": [in_full]}  # tests/cli/test_packaged_studies.py and tests/studies run as many comparisons


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow(seconds=LONG_PAGES.get(page.name, 1)), *IN_FULL.get(page.name, [])])
     for page in PAGES if verbs(read(page))],
    ids=named,
)  # fmt: skip
def test_the_commands_of_a_page_run_one_after_the_other(page, tmp_path, warm, prepared):
    text = "Is this a dagger which I see before me,\nThe handle toward my hand?\n" * 300
    for name in ("my.txt", "other.txt"):
        (tmp_path / name).write_text(text)
    books = (f"This is book {number}.\nIt has a line.\nAnd another, number {number * 7}.\n" for number in range(90))
    (tmp_path / "books.txt").write_text("\n".join(books))
    mine = ({"text": f"{number} {word} lines", "label": word} for number in range(40) for word in ("good", "bad"))
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, mine)))
    molecules = ({"tags": [0, 1, number % 7], "edges": [[0, 1], [1, 2]][: 1 + number % 2], "label": "ab"[number % 2]}
                 for number in range(60))  # fmt: skip
    (tmp_path / "molecules.jsonl").write_text("\n".join(map(json.dumps, molecules)))
    (tmp_path / "three.png").write_bytes(encode_png(torch.randint(0, 255, (1, 8, 8)).to(torch.uint8)))
    (tmp_path / "picture.png").write_bytes(encode_png(torch.randint(0, 255, (3, 32, 32)).to(torch.uint8)))

    for command in verbs(read(page)):
        done = warm(shortened(command), tmp_path, {"REGARD_CACHE": str(prepared)})

        assert done["code"] == 0, f"{command}: {done['err']}"
        assert done["out"], command


def test_what_make_demo_calls_is_on_the_page_of_the_lab():
    demo = re.search(r"^demo:.*?\n\n", read(ROOT / "Makefile"), re.MULTILINE | re.DOTALL)[0]

    assert "regard train shakespeare" in demo and "regard generate" in demo
    assert "regard train shakespeare" in read(ROOT / "README.md")


def test_what_makes_a_command_shorter_leaves_what_the_page_says_of_its_data():
    """And a model that is begun from another has the sizes of that one."""
    toy, own = (shortened(f"regard train toy{more}") for more in ("", " data.source=toy:sort(10)"))
    begun = shortened("regard train finetune-classify --init-from runs/bert data.source=mine.jsonl")

    assert "data.source=toy:reverse(10,500)" in toy and "train.steps=2" in toy
    assert [word for word in own if word.startswith("data.source=")] == ["data.source=toy:sort(10)"]
    assert "train.steps=2" in begun and not any(word.startswith("model.") for word in begun)
