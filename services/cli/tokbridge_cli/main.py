"""`tokbridge …`: finds the command, imports only what it needs, and turns typed errors into one clear line.

Only the module of the command that was called is imported, so `tokbridge --help` is quick and a missing extra is named
together with the pip command that brings it. The other commands stand in the help by their summary.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from tokbridge import __version__
from tokbridge.errors import TokbridgeError
from tokbridge_cli.extras import MissingExtraError


@dataclass(frozen=True)
class Command:
    """Where a command's `run` lives, and the extra that brings what it imports."""

    module: str
    summary: str
    extra: str | None
    """None: the base installation."""


COMMANDS: dict[tuple[str, ...], Command] = {
    ("train",): Command("train", "Distil teachers into a student, from a YAML config.", "trainer"),
    ("export",): Command("export", "Write the model of a checkpoint in Hugging Face format.", "trainer"),
    ("report",): Command("report", "Write one HTML file about a training run.", "eval"),
    ("inspect",): Command("inspect", "What a teacher and a student have in common, before a run.", "teacher"),
    ("conformance",): Command("conformance", "Check the target builder against a file of cases.", "teacher"),
    ("teacher", "serve"): Command("teacher_serve", "Serve one teacher model over gRPC and HTTP.", "teacher"),
    ("teacher", "check"): Command("teacher_check", "Check a running teacher, as a trainer would use it.", None),
    ("teacher", "bench"): Command("teacher_bench", "Put a running teacher under load and measure it.", None),
    ("teacher", "generate"): Command("teacher_generate", "Write teacher responses, for a warm start.", "teacher"),
}
# If one of these cannot be imported it is a fault, not a missing extra.
_OWN_PACKAGES = ("tokbridge", "tokbridge_cli", "tokbridge_teacher", "tokbridge_trainer")


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command tree, with the module of the called command imported and the others by name only.

    Args:
        arguments: the command line after the program's name.

    Raises:
        MissingExtraError: the called command imports a package that is not installed.
    """
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="Any teacher distils into any student, whatever their tokenizers.")(_options)
    teacher = typer.Typer(no_args_is_help=True, help="Serve a teacher, look at one that runs, or let it write.")
    for path, command in COMMANDS.items():
        called = tuple(arguments[: len(path)]) == path
        body = load(path, command) if called else _not_called
        group = app if len(path) == 1 else teacher
        group.command(path[-1], help=command.summary)(body)
    app.add_typer(teacher, name="teacher")
    return app


def load(path: tuple[str, ...], command: Command) -> Callable[..., None]:
    """Import a command's `run`."""
    try:
        return importlib.import_module(f"tokbridge_cli.{command.module}").run
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in _OWN_PACKAGES or command.extra is None:
            raise
        raise MissingExtraError(" ".join(path), missing, command.extra) from error


def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=lambda on: _version(on))] = False,
) -> None:
    """Options of the program itself."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokbridge {__version__}")
        raise typer.Exit


def _not_called() -> None:
    """Stands in the help for a command that was not called."""


def main() -> None:
    """Entry point of the console script. Exit status 2 for a typed error, 3 for a missing extra."""
    errors = Console(stderr=True, highlight=False)
    try:
        build_app(sys.argv[1:])()
    except MissingExtraError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        sys.exit(3)
    except TokbridgeError as error:
        request = f" (request {error.details['request_id']})" if "request_id" in error.details else ""
        errors.print(f"{error.code}: {error.message}{request}", markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
