"""Files that were changed a little, opened one after the other in a process of their own.

    python tests/faults/mutated_files.py KIND PLACE FIRST LAST        a line of JSON for each, as soon as it is done

PLACE/KIND holds whole folders; each mutant is a copy of one with one file changed, by the number of the mutant alone.
What may come of it: it opens, or one sentence that names the file. Anything else is a fault.
"""

import json
import math
import random
import resource
import shutil
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path

from faults.expanding_files import limit_memory

NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**30, 10**9,
           1e400, -1e308, 1e-320, 0.5, float("nan"))  # fmt: skip
WORDS = ("", "x", "None", "../../etc/passwd", "F32", "float16", "auto", "bert", "relu", "\x00", "\ud800", "é" * 99,
         "a" * 70_000)  # fmt: skip
FILES = {"headers": "model.safetensors", "configs": "config.json", "tokenizers": "tokenizer.json", "pieces": None}


def main(kind: str, place: Path, first: int, last: int) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folders = sorted(path for path in (place / kind).iterdir() if path.is_dir())
    limit_memory()
    for number in range(first, last):
        chance = random.Random(f"{kind} {number}")
        source = chance.choice(folders)
        folder = place / f"mutant-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        others = [path.name for path in sorted(folder.iterdir()) if path.name != "config.json"]
        path = folder / (FILES[kind] or chance.choice(others))
        path.write_bytes(mutated(path.read_bytes(), chance, kind))
        start = time.process_time()
        what, told = opened(kind, folder)
        print(json.dumps({"number": number, "what": what, "told": told, "seconds": time.process_time() - start,
                          "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}), flush=True)  # fmt: skip


def opened(kind: str, folder: Path) -> tuple[str, str]:
    """What came of it: "opened", "refused", or a fault, with what was said."""
    from regard.config.errors import ConfigError, DataError

    try:
        read(folder) if kind in ("tokenizers", "pieces") else load(folder)
        return "opened", ""
    except (DataError, ConfigError) as problem:
        said = str(problem)
        plain = "\n" not in said and len(said) < 2000 and (str(folder) in said or kind == "tokenizers")
        return ("refused" if plain else "fault"), said[:400]
    except BaseException:
        return "fault", traceback.format_exc()[-3000:]


def load(folder: Path) -> None:
    import regard

    regard.load(folder, device="cpu")


def read(folder: Path) -> None:
    """What everybody does with a tokenizer: a text to ids, with all around it, and back."""
    from regard.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder)
    for text in ("", "Unhappy dogs, 12 of them: é日🙂 don't.\n", "a" * 300):
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.encode_with_specials(text, "dogs", longest=64)


# ---------------------------------------------------------------- how files are changed


def mutated(data: bytes, chance: random.Random, kind: str) -> bytes:
    if kind == "headers":
        size = struct.unpack("<Q", data[:8])[0]
        text, rest = data[8 : 8 + size], data[8 + size :]
        if chance.random() < 0.1:
            return changed_bytes(data[: 8 + size], chance) + rest
        made = chance.choice((likely, likely, said, said, changed_bytes))(text, chance)
        size = len(made) if chance.random() < 0.95 else chance.choice((0, 2**40, 2**63))
        return struct.pack("<Q", size) + made + rest
    if kind == "pieces" and data[:1] != b"{":
        return changed_bytes(data, chance)
    return said(data, chance) if chance.random() < 0.85 else changed_bytes(data, chance)


def likely(text: bytes, chance: random.Random) -> bytes:
    """A header that the library believes: tensors of other names, of other shapes, of other types of the same size."""
    tree = json.loads(text)
    for _ in range(chance.choice((1, 1, 2))):
        one, two = chance.sample([name for name in tree if name != "__metadata__"], 2)
        match chance.randrange(6):
            case 0:
                tree[one], tree[two] = tree[two], tree[one]
            case 1:
                tree[chance.choice(("x", one[::-1], one + ".bias", one.upper(), "a" * 70_000))] = tree.pop(one)
            case 2:
                tree[one]["shape"] = tree[one]["shape"][::-1]
            case 3:
                whole = math.prod(tree[one]["shape"])
                tree[one]["shape"] = chance.choice(([whole], [1, whole], [whole, 1], [1] * 70 + [whole]))
            case 4:
                tree[one]["dtype"] = chance.choice(("I32", "U32", "F32"))
            case _:
                tree["__metadata__"] = {"format": chance.choice(WORDS[:8])}
    return json.dumps(tree).encode()


def said(text: bytes, chance: random.Random) -> bytes:
    """A table in JSON with one to three of its values, keys or lists changed."""
    tree = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 3))):
        spots = list(places(tree))
        parent, key = chance.choice(spots)
        change(parent, key, chance, spots)
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf8", "surrogatepass")


def places(tree, limit: int = 4000):
    """Where values stand; of a long list some."""
    todo = [tree]
    while todo and limit > 0:
        node = todo.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        for key in keys[:40] + keys[-3:]:
            yield node, key
            limit -= 1
            if isinstance(node[key], dict | list):
                todo.append(node[key])


def change(parent, key, chance: random.Random, spots) -> None:
    if not alive(parent, key):
        return
    value = parent[key]
    if chance.random() < 0.5:  # one of the same kind: what reads the file is happy, what uses it may not be
        if isinstance(value, bool):
            parent[key] = not value
        elif isinstance(value, int | float):
            parent[key] = type(value)(chance.choice(NUMBERS[:14])) if chance.random() < 0.5 else value + 1
        elif isinstance(value, str):
            strings = [other[place] for other, place in spots if alive(other, place) and isinstance(other[place], str)]
            parent[key] = chance.choice((*strings, *WORDS))
        elif isinstance(value, list) and value:
            chance.choice((value.pop, value.reverse, lambda: value.append(value[0])))()
        elif isinstance(value, dict) and value:
            one, two = chance.choices(list(value), k=2)
            value[one + chance.choice(("", "s"))] = value.pop(two)
        return
    match chance.randrange(9):
        case 0:
            del parent[key]
        case 1:
            parent[key] = chance.choice(NUMBERS)
        case 2:
            parent[key] = chance.choice(WORDS)
        case 3:
            parent[key] = chance.choice((None, True, False, [], {}, [[]], {"x": 1}, [1, 2, 3]))
        case 4 if isinstance(parent, dict):
            parent[chance.choice(("x", str(key) + "s", "", "type", "kind"))] = parent.pop(key)
        case 5 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = parent[key] + chance.choice((-1, 1, 2, 1000)) if chance.random() < 0.7 else -parent[key]
        case 6 if isinstance(parent[key], str):
            parent[key] = parent[key][::-1] if chance.random() < 0.5 else parent[key] + chance.choice(WORDS[:8])
        case 7:
            other, place = chance.choice(spots)
            parent[key] = json.loads(json.dumps(other[place])) if alive(other, place) else 0
        case _:
            parent[key] = value * 2 if isinstance(value, str | list) else [value] * chance.choice((1, 2, 50))


def alive(parent, key) -> bool:
    """Whether there is still something at a place."""
    return key in parent if isinstance(parent, dict) else key < len(parent)


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes turned over, cut out, doubled or put in."""
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : at + chance.choice((1, 2, 30))]
            case 2:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4))))
            case 3:
                data[at:at] = data[at : at + 50]
            case _:
                del data[at : len(data) if chance.random() < 0.3 else at + 1]
    return bytes(data)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
