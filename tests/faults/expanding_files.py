"""Small files that promise much, opened one after the other in a process of their own.

    python tests/faults/expanding_files.py KIND PLACE FIRST LAST      a line of JSON for each, as soon as it is done

Nothing here is a broken file with noise in it: headers are well-formed and lie about sizes, chains are valid and
multiply, templates are right and hungry. Each is made by its number alone. What may come of it is in
`mutated_files.py`.
"""

import json
import random
import resource
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

from faults import big_files, big_texts

MAKE = {
    "templates": big_texts.template, "tokenizers": big_texts.tokenizer, "arrays": big_files.arrays,
    "parquet": big_files.parquet, "gguf": big_files.gguf,
}  # fmt: skip
ROWS = 2000  # records that are taken of a file
ROOM = 4 << 30  # bytes of address space: a file that wants more ends this process, and not the machine


def main(kind: str, place: Path, first: int, last: int) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place.mkdir(parents=True, exist_ok=True)
    open_file(kind, MAKE[kind](random.Random("warm"), place))  # what is imported once is not the file's doing
    limit_memory()
    for number in range(first, last):
        given = MAKE[kind](random.Random(f"{kind} {number}"), place)
        start = time.process_time()
        what, told = open_file(kind, given)
        print(json.dumps({"number": number, "what": what, "told": told, "seconds": time.process_time() - start,
                          "memory": most_memory()}), flush=True)  # fmt: skip


def limit_memory() -> None:
    """From here on this process may take so much more, and no more (Linux)."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="utf8").split()[0])
        most = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def most_memory() -> int:
    """The kilobytes that this process ever held. What getrusage tells begins with those of its parent."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def open_file(kind: str, given: str) -> tuple[str, str]:
    """What came of it: "opened", "refused", or a fault, with what was said."""
    from regard.config.errors import ConfigError, DataError

    try:
        OPEN[kind](given)
        return "opened", ""
    except (DataError, ConfigError) as problem:
        said = str(problem)
        plain = "\n" not in said and len(said) < 2000
        return ("refused" if plain else "fault"), said[:400]
    except BaseException:
        return "fault", f"{given[:300]}\n{traceback.format_exc()[-3000:]}"


def render(template: str) -> None:
    from regard.text.chat_template import ChatTemplate

    ChatTemplate(template).render([{"role": "user", "content": "Hi, who are you?"}])


def encode(path: str) -> None:
    """What everybody does with a tokenizer: a text to ids, with all around it, and back."""
    from regard.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path)
    for text in ("", "Unhappy dogs, 12 of them: é日🙂 don't.\n", "a b" * 500):
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.encode_with_specials(text, "dogs", longest=64)


def records(path: str) -> None:
    from regard.data.records import BadRecordPolicy
    from regard.data.sources import find_records

    for table in find_records([path]):
        for _, _ in zip(range(ROWS), table.records(BadRecordPolicy()), strict=False):
            pass


def model(path: str) -> None:
    from regard.hub import gguf_model

    gguf_model.read_gguf(Path(path))
    gguf_model.gguf_tokenizer(Path(path))


OPEN = {"templates": render, "tokenizers": encode, "arrays": records, "parquet": records, "gguf": model}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
