"""Names: one word has one meaning in the whole package, and a module is found by its name."""

import ast
from collections import defaultdict

import pytest

from rooms import PACKAGE

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
        for node in ast.parse(path.read_text(encoding="utf8")).body:
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


@pytest.mark.parametrize("kind", [ast.ClassDef, ast.FunctionDef])
def test_no_bare_participle_or_adjective_names_a_thing(kind):
    assert {name: list(map(str, places)) for name, places in definitions(kind).items() if name.lower() in RETIRED} == {}


def test_no_module_is_called_by_a_retired_word():
    assert [str(path.relative_to(PACKAGE)) for path in FILES if path.stem in RETIRED] == []


def test_files_are_not_too_many():
    """About 410 were aimed at, each findable by its name."""
    assert len(list(PACKAGE.rglob("*.py"))) <= 435


def test_the_retired_words_are_really_looked_for(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text("class Asked: ...\ndef whole(): ...\n")
    monkeypatch.setitem(globals(), "FILES", [tmp_path / "told.py"])
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)

    assert set(definitions(ast.ClassDef)) == {"Asked"} and set(definitions(ast.FunctionDef)) == {"whole"}
    with pytest.raises(AssertionError):
        test_no_module_is_called_by_a_retired_word()
    with pytest.raises(AssertionError):
        test_no_bare_participle_or_adjective_names_a_thing(ast.FunctionDef)
