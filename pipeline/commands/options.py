"""What all commands share: error messages for bad input, types of arguments, the option --jobs."""

import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.commands import interrupts
from pipeline.errors import NOT_INSTALLED, FedReproError, ParamError, guarded, unknown
from pipeline.place import begin


class Commands(click.Group):
    """Bad input ends with one line and exit code 2.

    headings: heading in --help -> names of commands; others come last. A name that is no command is left out.
    """

    group_class = type  # nested groups are of this class too

    def __init__(self, *arguments: Any, headings: Mapping[str, Sequence[str]] | None = None, **more: Any):
        super().__init__(*arguments, **more)
        self.headings = headings or {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, a line each."""
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        sections = dict(self.headings)
        named = {name for names in sections.values() for name in names}
        sections["More" if named else "Commands"] = [name for name in shown if name not in named]
        room = formatter.width - 6 - max(map(len, shown))
        for heading, names in sections.items():
            rows = [(name, shown[name].get_short_help_str(room)) for name in names if name in shown]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        """The command that the first word names; an unknown one names the nearest."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise ParamError(unknown("command", args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        guarded(lambda: self._invoke(ctx))

    def _invoke(self, ctx: click.Context) -> None:
        try:
            begin()
            sys.exit(super().invoke(ctx) or 0)
        except click.UsageError as error:
            if "\n" in error.format_message():  # called without arguments: the message is the help text
                raise
            command = error.ctx.command_path if error.ctx else "fedrepro"
            message = error.format_message().rstrip(".").replace("a valid integer range", "a whole number")
            message = message.replace("a valid float range", "a number")
            if not message.endswith("?"):
                message += "."
            raise ParamError(f"{message} See {command} --help") from None
        except SyntaxError as error:  # in a method that somebody is writing
            where = os.path.relpath(error.filename or "")
            raise ParamError(f"{where}, line {error.lineno}: {error.msg}") from None
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("pipeline", "stages", "papers"):
                raise
            raise FedReproError(NOT_INSTALLED.format(error.name, sys.executable)) from None
        except BrokenPipeError:  # `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are written below."""
        return list(self.commands)


class Name(click.ParamType):
    """PAPER, PAPER/SCENARIO or PAPER/SCENARIO/METHOD, in any case."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """`FedLSA/mini` -> `fedlsa/mini`; an unknown name stays as it is."""
        from pipeline.schema import MINIATURES, folders, load_paper

        paper, *rest = value.split("/")
        key = _spelt(paper, folders())
        if key not in folders():
            return value
        try:
            known = load_paper(key) if rest else None
        except FedReproError:  # paper.yaml is wrong: the command itself will say so
            known = None
        # The names that may stand in the second and in the third place.
        names = [[*MINIATURES, *known.scenarios], known.methods] if known else []
        return "/".join([key, *map(_spelt, rest, names), *rest[len(names) :]])


def _spelt(text: str, known: Iterable[str]) -> str:
    """The known name that differs from the text at most by case; the text if there is none."""
    return next((name for name in known if name.casefold() == text.casefold()), text)


class Amount(click.ParamType):
    """A number of hours or seconds above 0; `10h` is one, too."""

    def __init__(self, name: str):
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value).removesuffix(self.name[0]))
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ParamError(f"{self.name.upper()}: expected a number above 0, such as 10, not {value!r:.80}")
        return number


def calls(place: str, **more: Any) -> Callable[[Callable], Callable]:
    """Give a command that has only a help text its body: a call of a function.

    place  of the function: "run:main" in pipeline.commands, or ".report:main" from there
    more   arguments besides those of the command

    The function's module is imported only when the command is called.
    """
    module, _, function = place.partition(":")

    def decorate(described: Callable) -> Callable:
        @wraps(described)
        def body(**arguments: Any) -> int | None:
            called = getattr(import_module(f".{module}", "pipeline.commands"), function)
            with interrupts.raised():
                return called(**arguments, **more)

        return body

    return decorate


def example(*lines: str) -> str:
    """The last lines of a command's --help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def jobs_option(default: str = "one for each core") -> Callable:
    """The option --jobs of commands that start processes.

    default  what --help says of the number without it
    """
    return click.option(
        "--jobs",
        "-j",
        metavar="N",
        type=click.IntRange(min=1),
        help=f"Processes at once (default: {default}).",
    )


FORCE = click.option("--force", "-f", is_flag=True, help="Run again from the start, even what is up to date.")


def installed(elsewhere: bool = False) -> str:
    """How a user calls the `fedrepro` of this environment: by its name if the shell finds it, else by its
    path, or as a module if it is not installed.

    elsewhere  whether it will be called from another folder
    """
    script = Path(sys.executable).with_name("fedrepro")
    if _found("fedrepro", script):
        return "fedrepro"
    if not script.exists():
        return f"{interpreter()} -m pipeline"
    return shlex.quote(str(script)) if elsewhere else _path(script)


def interpreter() -> str:
    """How a user calls the Python of this environment: `python` if the shell finds it, else its path."""
    return "python" if _found("python", Path(sys.executable)) else _path(Path(sys.executable))


def _found(name: str, path: Path) -> bool:
    """Whether the shell finds this file by the name."""
    found = shutil.which(name)
    return found is not None and Path(found).absolute() == path.absolute()


def _path(path: Path) -> str:
    """A path for the shell; relative if it is in the current folder."""
    here = Path.cwd()
    inside = path.absolute().is_relative_to(here)
    return shlex.quote(str(path.absolute().relative_to(here) if inside else path))


def columns(most: int = 110) -> int:
    """The width of the terminal, at most `most`; `most` if there is no terminal."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def wrapped(text: str, indent: int = 2, most: int = 110) -> list[str]:
    """The lines of a text that is broken to fit the terminal.

    indent  columns before all lines but the first
    most    columns of a line
    """
    return textwrap.wrap(
        text,
        columns(most),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
