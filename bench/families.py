"""How near to `transformers` each published family is: small random models with odd settings, made and saved by it.

    python bench/families.py           # two minutes on one core; writes bench/results/families.csv and prints a table

The models are those of the tests (tests/hub/*_cases.py). Answers are compared in fp32, with padding wherever theirs can
bear it; gradients and 64 greedy tokens in fp64.
"""

import csv
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
from hub import test_published as laws  # noqa: E402
from hub.published import answers, pair, question, quiet, sides, slopes, stored  # noqa: E402

from regard.hub.families.registry import FAMILIES  # noqa: E402
from regard.hub.weights import load_tensors_lazy  # noqa: E402

OUT = ROOT / "bench" / "results" / "families.csv"


def measured(name: str, folder: Path) -> dict[str, object]:
    """One odd model: how far its answers and gradients are, and whether it goes back and speaks the same."""
    of = pair(laws.CASES[name], folder / "theirs")
    told = [answers(of, question(of, padding)) for padding in ("none", *sides(of))]
    with quiet():
        want = stored(of.theirs, folder / "again")
        of.ours.save(folder / "ours")
    got = load_tensors_lazy(folder / "ours" / "model.safetensors")
    same = got.keys() == want.keys() and all(
        torch.equal(got[each].flatten().view(torch.uint8), want[each].flatten().view(torch.uint8)) for each in want
    )
    row = {"family": of.ours.source_folder.family, "answers": max(laws.off(ours, theirs) for theirs, ours in told),
           "gradients": gradients(name, folder), "bytes": same}  # fmt: skip
    if laws.speaks(name):
        try:
            laws.test_sixty_four_greedy_tokens_are_those_of_transformers(name, folder / "speech")
            row["text"] = True
        except AssertionError:
            row["text"] = False
    return row


def gradients(name: str, folder: Path) -> float:
    """The largest difference, over 1 or the largest slope of its tensor."""
    of = pair(laws.CASES[name], folder / "double", torch.float64)
    theirs, ours = answers(of, question(of, "none", torch.float64))
    weigh = [torch.randn_like(x) for x in theirs]
    for told in (theirs, ours):
        sum((x * w).sum() for x, w in zip(told, weigh, strict=True)).backward()
    want, got = slopes(of, folder / "slopes")
    return max(((got[each] - x).abs().max() / max(1.0, x.abs().max().item())).item() for each, x in want.items())


def main() -> int:
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    for name in laws.CASES:
        with tempfile.TemporaryDirectory() as folder, quiet():
            (Path(folder) / "speech").mkdir()
            row = measured(name, Path(folder))
        found[str(row["family"])].append(row)
    rows = []
    for family in sorted(found, key=lambda name: FAMILIES[name].title.lower()):
        each = found[family]
        said = [row["text"] for row in each if "text" in row]
        rows.append({
            "family": FAMILIES[family].title, "models": len(each), "answers": max(row["answers"] for row in each),
            "gradients": max(row["gradients"] for row in each), "bytes": all(row["bytes"] for row in each),
            "text": f"{sum(map(bool, said))} of {len(said)}" if said else "",
        })  # fmt: skip
    with OUT.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(f"{row['family']:<24} {row['models']:>3}  {row['answers']:.1e}  {row['gradients']:.1e}  "
              f"{'to the byte' if row['bytes'] else 'NOT'}  {row['text']}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
