"""The table of families in docs/checkpoints.md, made from the families themselves.

`python tools/families.py` writes it anew; with --check it only says whether the page is fresh.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "checkpoints.md"
BLOCK = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """One row a family: what it is called here and there, and the classes it opens, the most usual first."""
    from regard.hub.families.registry import FAMILIES

    rows = ["| family | `model_type` | classes |", "|---|---|---|"]
    for family in sorted(FAMILIES.values(), key=lambda each: each.title.lower()):
        classes = ", ".join(f"`{name}`" for name in family.heads)
        rows.append(f"| {family.title} | `{family.name}` | {classes} |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    return BLOCK.sub(lambda _: table(), text)


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf8")
    if "--check" in arguments:
        if page(text) == text:
            return 0
        print(f"{PAGE.name} is stale; python tools/families.py writes it anew", file=sys.stderr)
        return 1
    PAGE.write_text(page(text), encoding="utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
