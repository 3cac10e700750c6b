"""Error reports of the command line: from an exception to one sentence on stderr and an exit code, in one place.

A user's error can be corrected: the sentence says what, where, and what to do. Any other exception is a bug; its
traceback goes to a file (to stderr with REGARD_DEBUG=1), because it does not help most users.
"""

import errno
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from typing import Any

import typer

from regard import config
from regard.config.aliases import suggest_word
from regard.config.errors import did_you_mean, is_out_of_memory
from regard.config.terminal_escapes import escape_controls

EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_INTERRUPTED = 1, 2, 3, 130
UsageError: Any = typer.BadParameter.__base__  # typer bundles click; older versions import it

# Operating system errors, what to do about each, and whether it is data (3) or the run (1) that failed.
REFUSALS = {
    errno.ENOENT: ("there is no such file or folder", "check the path", EXIT_DATA),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "check the path", EXIT_DATA),
    errno.EISDIR: ("this is a folder", "name a file", EXIT_DATA),
    errno.EEXIST: ("exists already", "choose another place", EXIT_DATA),
    errno.EACCES: ("permission denied", "change its permissions or choose another place", EXIT_FAILED),
    errno.EPERM: ("permission denied", "change its permissions or choose another place", EXIT_FAILED),
    errno.EROFS: ("this disk can only be read", "choose another place", EXIT_FAILED),
    errno.ENOSPC: ("no space left on the disk", "make room or choose another place, and try again", EXIT_FAILED),
    errno.EDQUOT: (
        "your share of the disk is used up",
        "make room or choose another place, and try again",
        EXIT_FAILED,
    ),
    errno.EFBIG: (
        "no file may grow this large here",
        "raise the limit (ulimit -f) or choose another place",
        EXIT_FAILED,
    ),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)", EXIT_FAILED),
}
PATIENCE = 3.0  # seconds
MEMORY = "out of memory; set a smaller train.batch_size, train.context or model.dim, or use a larger machine"


def print_stderr(line: str) -> None:
    """Print one line to stderr; if stderr is closed, there is no reader.

    Terminal control sequences are escaped, in log files too, which may be shown in a terminal later.

    Of several ranks (torchrun) only the first prints: an error of one is an error of all.
    """
    if not is_first_rank():
        return
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        print("regard:", escape_controls(" ".join(line.splitlines())), file=sys.stderr, flush=True)


def report_error(problem: BaseException) -> int:
    """Report an exception on stderr; returns the exit code.

    torchrun ends all ranks when the first one exits: the others wait briefly, so that rank 0 can report.
    """
    line, code = error_and_code(problem)
    print_stderr(line)
    if not is_first_rank() and not isinstance(problem, KeyboardInterrupt):
        time.sleep(PATIENCE)
    return code


def is_first_rank() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def error_and_code(problem: BaseException) -> tuple[str, int]:
    match problem:
        case config.ConfigError():
            return str(problem), EXIT_USAGE
        case config.DataError():
            return str(problem), EXIT_DATA
        case config.RunError():
            return str(problem), EXIT_FAILED
        case KeyboardInterrupt() | typer.Abort():  # typer raises Abort if Ctrl-C comes before a verb starts
            return "interrupted", EXIT_INTERRUPTED
        case OSError():
            return os_error(problem)
    if isinstance(problem, UsageError):
        return usage_error(problem), EXIT_USAGE
    return (MEMORY if is_out_of_memory(problem) else bug_report(problem)), EXIT_FAILED


def os_error(problem: OSError) -> tuple[str, int]:
    reason, remedy, code = REFUSALS.get(problem.errno or 0, (str(problem.strerror or problem).lower(), "", EXIT_FAILED))
    place = os.fsdecode(problem.filename) if isinstance(problem.filename, str | bytes) else ""
    return "; ".join(part for part in (f"{place}: {reason}" if place else reason, remedy) if part), code


def usage_error(problem: Any) -> str:
    """A message for wrong verbs, arguments or options, as typer found them."""
    where = problem.ctx.command_path if problem.ctx else "regard"
    told = problem.format_message().strip().rstrip(".")
    told = told[:1].lower() + told[1:]
    if hasattr(problem, "possibilities"):  # an unknown option
        option, known = problem.option_name, [name for each in problem.ctx.command.params for name in each.opts]
        told = f"no option {option}{suggest_option(option, known, problem.ctx) or did_you_mean(option, known)}".rstrip(
            ";"
        )
        if "." in option:
            told += f"; settings are written without dashes, as in {option.lstrip('-')}=value"
    return f"{told}{'' if told.endswith('?') else ';'} {where} --help shows what there is"


def suggest_option(option: str, known: list[str], context: Any) -> str:
    """Our name for an option of another library: an option, or a setting where the verb takes settings."""
    ours = suggest_word(option, known).removeprefix("here it is ")
    word, comma, more = ours.partition(",")
    if f"--{word.replace('_', '-')}" in known:
        return f"; here it is --{word.replace('_', '-')}{comma}{more}"
    takes = any(each.name == "overrides" for each in context.command.params)
    return f"; here it is {ours}=VALUE, without dashes" if takes and "." in ours else ""


def bug_report(problem: BaseException) -> str:
    trace = escape_controls("".join(traceback.format_exception(problem)))
    what = f"this is a bug in regard ({' '.join(traceback.format_exception_only(problem)[-1].split())})"
    if os.environ.get("REGARD_DEBUG"):
        print(trace, file=sys.stderr)
        return f"{what}; please report it with the lines above"
    try:
        place, path = tempfile.mkstemp(prefix="regard-", suffix=".txt", text=True)
        with os.fdopen(place, "w", encoding="utf8", errors="backslashreplace") as file:
            file.write(trace)
    except OSError:
        return f"{what}; set REGARD_DEBUG=1 to see where, and please report it"
    return f"{what}; please report it with {path}"
