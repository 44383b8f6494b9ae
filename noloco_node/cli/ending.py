"""The one place where a fault becomes two lines on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import NoReturn

import click

from noloco_node.cli.program import pasteable
from noloco_node.errors import ExitCode, NolocoError


def end_of(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong and return the exit code. Raises nothing."""
    match error:
        case NolocoError():
            _say("error", error.cause)
            if error.advice:
                _say("advice", error.advice)
            code = int(error.code)
        case click.ClickException():
            error.show(sys.stderr)
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            _say("error", "interrupted")
            return int(ExitCode.INTERRUPTED)
        case BrokenPipeError():
            _abandon_stdout()
            return int(ExitCode.INTERNAL)
        case _:
            _log(error)
            _say("error", f"internal fault: {type(error).__name__}: {error}")
            _say("advice", "run again with `noloco-node --debug ...` and report the traceback")
            code = int(ExitCode.INTERNAL)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    return code


def leave(code: int) -> NoReturn:
    """End the process of a node whose life is over, everything of it closed. The interpreter's own end is not waited
    for: threads of native libraries can hang in it for ever, where no Python thread could end the process any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _say(kind: str, text: str) -> None:
    print(f"{kind}: {pasteable(' '.join(text.split()))}", file=sys.stderr)


def _log(error: BaseException) -> None:
    """To the log with its traceback, if this process has opened one."""
    logs = sys.modules.get("noloco_node.telemetry.logs")
    if logs is not None and logs.is_open():
        logs.logger("cli").error("internal_fault", exc_info=error)


def _abandon_stdout() -> None:
    """The reader of our output is gone; do not fail once more when the interpreter flushes."""
    sys.stdout = None  # type: ignore[assignment]
