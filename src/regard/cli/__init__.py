"""The command line: `regard VERB thing key=value ...`.

stdout carries the result, stderr the talk. Exit codes: 0 all is well, 1 the run failed, 2 a mistake in the words or the
settings, 3 bad data or a bad checkpoint, 130 and 143 interrupted (after saving, where there is something to save).
`app` lists the verbs, `mistakes` turns exceptions into sentences; torch is imported inside the verbs that compute.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and say by the exit code how it went; the arguments are the command line's unless given."""
    try:
        from regard.cli.app import run  # in here, so that Ctrl-C is quiet from the first moment

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130
