"""The command line: `regard VERB thing key=value ...`.

Results go to stdout, messages to stderr. Exit codes: 0 success, 1 the run failed, 2 wrong arguments or settings, 3 bad
data or a bad checkpoint, 130 and 143 interrupted (after saving, if there is something to save). `app` lists the verbs,
`errors` turns exceptions into sentences; torch is imported inside the verbs that compute.
"""

import os
import sys

TYPE_CHECKING = False  # as in typing, without importing it: until the handler is set, Ctrl-C would show a traceback
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal  # the core of `signal`, without enum and what that imports: 20 modules, 5 ms


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one verb and return its exit code; the arguments are the command line's unless given."""
    try:
        quiet = leave_at_once()
        from regard.cli.app import run_command  # imported here, so that Ctrl-C is handled before

        if quiet:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130


def leave_at_once() -> bool:
    """Let Ctrl-C end the process at once, if no other handler is set: during imports KeyboardInterrupt may be mistaken
    for another error, and there is nothing to save yet."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # another handler, or ignored by the shell
        return False
    try:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    except ValueError:  # not the main thread, which alone receives signals
        return False
    return True
