"""The command line: `regard VERB thing key=value ...`.

stdout carries the result, stderr the talk. Exit codes: 0 all is well, 1 the run failed, 2 a mistake in the words or the
settings, 3 bad data or a bad checkpoint, 130 and 143 interrupted (after saving, where there is something to save).
`app` lists the verbs, `errors` turns exceptions into sentences; torch is imported inside the verbs that compute.
"""

import os
import sys

TYPE_CHECKING = False  # as typing says it: what is not imported here cannot be interrupted
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal  # what `signal` is made of, without enum and all that it imports: 20 modules, 5 ms


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one verb and say by the exit code how it went; the arguments are the command line's unless given."""
    try:
        quiet = leave_at_once()
        from regard.cli.app import run_command  # in here, so that Ctrl-C is quiet from the first moment

        if quiet:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130


def leave_at_once() -> bool:
    """Let Ctrl-C end the process at once, if it is ours to say: an exception in the middle of an import may be taken
    for something else there, and nothing has been done yet that could be lost."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # another's, or ignored behind a shell
        return False
    try:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    except ValueError:  # not the main thread, which alone is told of signals
        return False
    return True
