"""The application: commands, exit codes, and the one place where errors become messages.

Exit codes: 0 done · 1 host, storage, port or study failed · 2 the user's file or arguments ·
130 interrupted, after the restore.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Annotated

import typer

from autotune.cli import (
    bench,
    check,
    dashboard,
    db,
    export,
    hosts,
    init,
    prune,
    report,
    rescore,
    revert,
    run,
    status,
    trials,
    verify,
)
from autotune.errors import AutotuneError, ConfigError
from autotune.interrupts import terminable

__all__ = [
    "app",
    "main",
    "options",
]

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

# The matrices of the search are small: threads of the linear algebra library only wait for each
# other, for minutes on a busy machine. It reads this when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

app = typer.Typer(
    name="autotune",
    help=(
        "Tunes the speculative decoding of SGLang servers, and proves what it measured.\n\n"
        "A new service: init, check, run, report, export. `autotune COMMAND --help` has an example "
        "of each. Exit codes: 0 done, 1 a host, storage, port or study failed, 2 your file or "
        "arguments, 130 interrupted after the restore."
    ),
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS = (
    *(init, check, run, status, trials, verify, export, revert, report, dashboard),
    *(bench, rescore, prune),
)
for module in _COMMANDS:
    app.command(name=module.__name__.rsplit(".", 1)[1])(module.command)
app.add_typer(db.app, name="db")
app.add_typer(hosts.app, name="hosts")


def _version(wanted: bool) -> None:
    if wanted:
        from autotune import __version__

        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What stands before a command."""


def main() -> None:
    """Entry point of the `autotune` script."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    # paramiko logs a traceback for each refused connection; its errors reach the user as ours.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        with terminable():
            code = _called()
        if code == EXIT_INTERRUPTED:  # the command line library has taken the interrupt
            print("interrupted", file=sys.stderr)
        sys.stdout.flush()  # a full disk is told while it can still be told
        sys.exit(code)
    except ConfigError as error:
        _say(error)
        sys.exit(EXIT_USAGE)
    except AutotuneError as error:
        _say(error)
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except typer.TyperException as error:
        _say_usage(error)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:
        # The reader of our output is gone (`autotune trials | head`): that is no failure.
        _drop_output()
        sys.exit(EXIT_DONE)
    except OSError as error:
        if not _is_output(error):
            raise
        _drop_output()
        print(f"autotune: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def _called() -> int:
    """Run the command that was typed.

    Raises:
        BrokenPipeError: The reader of its output is gone; the library makes a failure of that.
    """
    try:
        return app(standalone_mode=False) or EXIT_DONE
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise


def _is_output(error: OSError) -> bool:
    """Whether it is our own output that failed: nothing else here writes without a file name."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF)


def _drop_output() -> None:
    """What is left in the buffer goes nowhere, so that the interpreter does not stumble over it
    at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_usage(error: typer.TyperException) -> None:
    """A mistake in what was typed, and whose help to ask for."""
    message = error.format_message().replace("Value error, ", "")  # pydantic's word, not ours
    if message.startswith("Usage: "):  # nothing was typed: that is the help itself
        print(message, file=sys.stderr)
        return
    context, names = getattr(error, "ctx", None), ["--help"]
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    print(f"autotune: {message}", file=sys.stderr)
    asked = " ".join(["autotune", *names])
    print(f"          `{asked}` lists what there is, with an example", file=sys.stderr)


def _say(error: AutotuneError) -> None:
    print(f"autotune: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"          {error.hint}", file=sys.stderr)
