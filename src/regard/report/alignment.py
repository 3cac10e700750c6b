"""Which words does a translation come from? One sentence, and where the decoder looked while it told each token."""

from typing import Any

from regard import config
from regard.report.inside import packed
from regard.report.run import Run
from regard.report.shown import translations, wanted

LONGEST = 40  # tokens on either side


def alignment(run: Run, model: Any, tokenizer: Any, task: config.Task) -> dict[str, Any]:
    """The picture's numbers; `absent` says why there is none, and other tasks have nothing to say. #: S157"""
    if not isinstance(task, config.Translate):
        return {}
    try:
        pair = translations(run, model, *wanted(run, tokenizer))[0]
        seen = model.align(pair.source, pair.ids)
    except (config.ConfigError, config.DataError, config.RunError) as problem:
        return {"absent": f"No alignment: {problem}."}
    return {
        "text": pair.source, "told": pair.text, "layer": seen.layer,
        "source": seen.source[:LONGEST], "target": seen.target[:LONGEST],
        "weights": packed(seen.weights[:LONGEST, :LONGEST]), "cut": max(map(len, (seen.source, seen.target))) > LONGEST,
    }  # fmt: skip
