"""Comparisons: variants of a recipe trained on the same data for as long from the same seeds, in one honest table.

    compared = Comparison(given("shakespeare-nano", ["model.kernel=reference,fused"], seeds=2), Path("runs/kernels"))
    compared.go()
    print(text(compared))
"""

from regard.train.compare import complexity, incontext, pictures, slices  # noqa: F401  claims enter themselves
from regard.train.compare.claims import CLAIMS, Asked, Stopped, shown
from regard.train.compare.comparison import Comparison
from regard.train.compare.study import Part, Study, Variant, given, ready, study, variants
from regard.train.compare.table import Row, Spread, as_csv, rows, text, told, write
from regard.train.compare.tune import Tuning

__all__ = [
    "CLAIMS", "Asked", "Comparison", "Part", "Row", "Spread", "Stopped", "Study", "Tuning", "Variant", "as_csv",
    "given", "ready", "rows", "shown", "study", "text", "told", "variants", "write",
]  # fmt: skip
