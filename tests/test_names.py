"""Names: one word has one meaning in the whole package, and a module is found by its name."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache

import pytest

from rooms import PACKAGE, parse

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# Words of 0.1.0 that name nothing any more; as a module, a class or a function they would be found by nobody.
RETIRED = {
    "asked", "told", "said", "made", "held", "kept", "worn", "laid", "settled", "spelt", "shown", "heard", "meant",
    "whole", "plain", "quiet", "swift", "grown", "some", "those", "other",
}  # fmt: skip


def definitions(kind):
    """The names of top-level definitions of this kind, each with the files that define it."""
    found = defaultdict(list)
    for path in FILES:
        for node in parse(path).body:
            if isinstance(node, kind):
                found[node.name].append(path.relative_to(PACKAGE))
    return found


def test_a_class_name_has_one_meaning():
    """A config and the one thing built from it may share a name, and nothing else may."""
    several = {name: places for name, places in definitions(ast.ClassDef).items() if len(places) > 1}

    assert {name: [str(place) for place in places] for name, places in several.items() if not is_twin(places)} == {}


def is_twin(places):
    return len(places) == 2 and sum(place.parts[0] == "config" for place in places) == 1


def test_two_modules_of_a_room_are_not_called_alike():
    rooms = defaultdict(list)
    for path in FILES:
        place = path.relative_to(PACKAGE)
        rooms[place.parts[0], path.stem].append(str(place))

    assert {stem: places for stem, places in rooms.items() if len(places) > 1} == {}


@cache
def functions():
    """Every function with its file, those inside of classes and functions too."""
    return [
        (str(path.relative_to(PACKAGE)), node)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("kind", [ast.ClassDef, ast.FunctionDef])
def test_no_bare_participle_or_adjective_names_a_thing(kind):
    assert {name: list(map(str, places)) for name, places in definitions(kind).items() if name.lower() in RETIRED} == {}


def test_no_method_or_inner_function_is_called_by_a_retired_word():
    """`plain` of an AttentionSpec and `kept` of a session that speculates are values: they are read, not called."""
    values = {("core/kernels.py", "plain"), ("generation/speculative.py", "kept")}

    assert sorted({(path, node.name) for path, node in functions() if node.name.strip("_") in RETIRED} - values) == []


def test_no_parameter_is_called_by_what_was_done_with_it():
    """`told` says nothing of its type, and `event`, `request`, `spec` and `labels` do."""
    words = {"asked", "told", "said", "made", "ask", "how", "meant"}
    fields = {("core/hooks.py", "how"), ("data/row_store.py", "told"), ("lens/ablation.py", "told")}
    found = set()
    for path, node in functions():
        given = node.args
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if each is not None and each.arg in words:
                found.add((path, each.arg))

    assert sorted(found - fields) == []


def test_the_docstring_of_a_class_names_what_the_module_has():
    """Members in backticks go stale with a rename, which no other test notices."""
    elsewhere = {"transformers", "peft", "tokenizers", "length", "eos", "error"}  # libraries, and reasons of an end
    words = {("core/layers.py", "groups")}  # of heads
    stale = []
    for path in FILES:
        tree = parse(path)
        documented = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and ast.get_docstring(node)]
        named = {name for node in documented for name in re.findall(r"`([a-z_]\w*)`", ast.get_docstring(node))}
        if named - elsewhere:
            prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            known = {word for node in ast.walk(tree) if id(node) not in prose for word in words_of(node)} | elsewhere
            stale += [(str(path.relative_to(PACKAGE)), name) for name in sorted(named - known)]

    assert set(stale) - words == set()


def words_of(node):
    """Names in a piece of syntax, and the words of short texts, which may be values or keys."""
    names = [getattr(node, kind, None) for kind in ("id", "attr", "arg", "name", "module")]
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80 else ""
    return [word for name in (*names, text) if isinstance(name, str) for word in re.findall(r"\w+", name)]


def test_no_module_is_called_by_a_retired_word():
    assert [str(path.relative_to(PACKAGE)) for path in FILES if path.stem in RETIRED] == []


def test_a_folder_has_no_more_files_than_a_reader_takes_in():
    """Verbs and families are entries of a table, a file each; every other folder fits on a screen."""
    tables = {"cli": 38, "hub/families": 30}
    counts = Counter(str(path.relative_to(PACKAGE).parent) for path in FILES)

    assert {folder: count for folder, count in counts.items() if count > tables.get(folder, 25)} == {}


def test_the_retired_words_are_really_looked_for(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text("class Asked: ...\ndef whole(): ...\n")
    monkeypatch.setitem(globals(), "FILES", [tmp_path / "told.py"])
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)

    assert set(definitions(ast.ClassDef)) == {"Asked"} and set(definitions(ast.FunctionDef)) == {"whole"}
    with pytest.raises(AssertionError):
        test_no_module_is_called_by_a_retired_word()
    with pytest.raises(AssertionError):
        test_no_bare_participle_or_adjective_names_a_thing(ast.FunctionDef)
