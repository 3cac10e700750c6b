"""Option aliases: a verb accepts the option names of other libraries.

    regard generate runs/lab --max-tokens 50      is read as      regard generate runs/lab --max-new-tokens 50

An alias applies only if the verb has its target option and no option of the alias's own name.
"""

from typing import Any

from typer.core import TyperCommand

from regard.config.aliases import generation_aliases

# Aliases of options that are settings of no config class, among them those of regard 0.1.0.
OPTION_ALIASES = {
    "all-words": "words", "api-key": "key", "api-key-file": "key-file", "bleu-tokenize": "tokenize tokenise",
    "by-group": "group", "calibration-prompt": "neutral", "example-order": "order", "layer-diff": "layers",
    "lowercase": "lower do-lower-case", "max-context": "capacity max-model-len max-seq-len",
    "max-exponent": "exponent", "max-length": "longest", "max-queue": "waiting", "no-normalize": "raw",
    "num-return-sequences": "best n-best", "prefix-image": "begin", "prefix-rows": "rows", "score-per": "per",
    "separator": "between", "source-prefix": "prefix", "template": "form", "tokens-per-parameter": "ratio",
    "top-k": "top best topk", "utilization": "utilisation mfu", "vocab-size": "vocab", "weights": "quantize",
}  # fmt: skip


def option_aliases() -> dict[str, list[str]]:
    """Every alias, without its dashes, and its possible target options: the verb decides."""
    found: dict[str, list[str]] = {}
    for alias, setting in generation_aliases().items():
        found.setdefault(alias.replace("_", "-"), []).append(setting.replace("_", "-"))
    for option, aliases in OPTION_ALIASES.items():
        for alias in aliases.split():
            found.setdefault(alias, []).append(option)
    return found


class VerbCommand(TyperCommand):
    """A command that accepts aliases of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, aliases = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}, option_aliases()

        def canonical(word: str) -> str:
            name, equals, value = word.partition("=")
            meant = [f"--{option}" for option in aliases.get(name[2:].replace("_", "-"), ()) if f"--{option}" in own]
            return f"{meant[0]}{equals}{value}" if name.startswith("--") and name not in own and meant else word

        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*map(canonical, args[:end]), *args[end:]])
