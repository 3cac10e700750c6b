"""How a text came about, written down: a paragraph for each token that was drawn, or the tree of a search.

    1  ·the    ·the 0.41 → 0.62   ·a 0.20 → 0.38   ·an 0.10 → 0        the
       top_k    removes 48 tokens with 0.39: ·an ·his ·my             ├─ nice -0.60
       kept     2 tokens with 0.61                                    │  └─ woman -1.54  ended, score -0.77
                                                                      └─ dog -0.89
"""

from regard.generate.explain import Beginning, Choice, Drawn, Searched

WIDE = 11  # of the names of filters
DEAD = 6  # beginnings that died are named on one line, so many of them


def told(made: Drawn | Searched) -> str:
    """All of it, in plain text."""
    return "\n".join(paragraphs(made) if isinstance(made, Drawn) else tree(made))


def paragraphs(made: Drawn) -> list[str]:
    wide = len(str(len(made.choices)))
    lines: list[str] = []
    for place, choice in enumerate(made.choices, 1):
        first, *rest = paragraph(choice)
        lines += [f"{place:>{wide}}  {first}", *(f"{'':{wide}}  {line}" for line in rest)]
    return lines


def paragraph(choice: Choice) -> list[str]:
    name = "nothing may be said" if choice.chosen is None else choice.chosen.token
    shown = "   ".join(f"{one.token} {part(one.before)} → {part(one.after)}" for one in choice.candidates)
    lines = [f"{name:<{WIDE}} {shown}"]
    for cut in (cut for cut in choice.cuts if cut.removed or cut.moved):
        gone = f"removes {counted(cut.removed)} with {part(cut.mass)}: {' '.join(cut.tokens)}" if cut.removed else ""
        lines.append(f"{cut.name:<{WIDE}} {gone or f'moves {part(cut.moved)} of the probability'}")
    return [*lines, f"{'kept':<{WIDE}} {counted(choice.kept)} with {part(choice.mass)}"]


def counted(number: int) -> str:
    return f"{number:,} token{'' if number == 1 else 's'}"


def part(number: float) -> str:
    """A part of one, as short as it can be said."""
    return "0" if number == 0 else f"{number:.3f}" if number >= 0.0005 else f"{number:.0e}"


# ---------------------------------------------------------------- the tree


def tree(made: Searched) -> list[str]:
    """Every beginning under the one it grew from; the best text is marked, those that died share a line."""
    best, lines = list(made.made.ids), [repr(made.made.prompt)]
    stack: list[tuple[int, int | None, str, list[int]]] = [(0, None, "", [])]  # step, parent, margin, ids so far
    while stack:
        step, parent, margin, ids = stack.pop()
        if parent is not None:
            lines.append(line(made.steps[step - 1][parent], margin, ids == best))
            margin = margin[:-3] + ("   " if margin.endswith("└─ ") else "│  ")
        there = made.steps[step] if step < len(made.steps) else ()
        mine = [(place, one) for place, one in enumerate(there) if one.parent == parent]
        grown = [(place, one) for place, one in mine if one.fate != "died"]
        died = [one for _, one in mine if one.fate == "died"]
        if died:
            lines.append(f"{margin}{'├─ ' if grown else '└─ '}† {dead(died)}")
        for last, (place, one) in enumerate(reversed(grown)):
            stack.append((step + 1, place, f"{margin}{'├─ ' if last else '└─ '}", [*ids, one.id]))
    return lines


def line(one: Beginning, margin: str, best: bool) -> str:
    end = "" if one.score is None else f"  ended, score {one.score:.3f}"
    return f"{margin}{one.token} {one.log_p:.2f}{end}{'  ◄ best' if best else ''}"


def dead(died: list[Beginning]) -> str:
    more = f" and {len(died) - DEAD} more" if len(died) > DEAD else ""
    return ", ".join(f"{one.token} {one.log_p:.2f}" for one in died[:DEAD]) + more
