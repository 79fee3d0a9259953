"""How commands end: with a result on standard output, or with an error in a line or two and an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

import typer

from hap.errors import HapError

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

P = ParamSpec("P")
T = TypeVar("T")

CANNOT, DIFFERENT, INTERNAL, INTERRUPTED = 1, 3, 70, 130
# Columns: rich would cut tables to the terminal's width, or to 80 where there is none.
WIDE = 10_000


@dataclass
class Settings:
    """Of the command that runs.

    Attributes:
        debug: whether errors are shown as tracebacks.
        output: where results go; what a model prints goes to standard error, so that it is not read with them.
    """

    debug: bool = False
    output: TextIO = field(default_factory=lambda: sys.stdout)


settings = Settings()


def reporting(command: Callable[P, T]) -> Callable[P, T]:
    """The command, with its errors in a line or two; with ``--debug`` as tracebacks."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with redirect_stdout(sys.stderr):
                return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            # Typer ends in silence where nobody reads the output any more.
            raise
        except KeyboardInterrupt:
            _fail("interrupted", INTERRUPTED)
        except (HapError, OSError) as error:
            _fail(str(error), CANNOT)
        except Exception as error:
            _fail(f"an error inside of hap: {type(error).__name__}: {error}; hap --debug shows where", INTERNAL)
        raise AssertionError("the errors above end the command")

    return run


def _fail(message: str, code: int) -> None:
    """Ends the command on account of the error that is being handled."""
    if settings.debug:
        raise
    typer.echo(f"hap: {message}", err=True)
    raise typer.Exit(code)


def print_result(result: msgspec.Struct, as_json: bool, show: Callable[[Console, Any], None]) -> None:
    """Prints what a command has found, as JSON or as people read it."""
    import msgspec
    from rich.console import Console

    if as_json:
        typer.echo(msgspec.json.encode(result), file=settings.output)
    else:
        console = Console(file=settings.output, soft_wrap=True, highlight=False, markup=False, emoji=False, width=WIDE)
        show(console, result)
