"""What goes to the terminal: results to stdout, all else to stderr, and no control characters.

Text from files, models and memories can hold anything, escape sequences included, which would move
the cursor or repaint what stands above.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.markdown import Markdown

    from memalign_graph.scales import Scale

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of writing."""
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_LEAST_SECRET_CHARS = 8
_WIDTH = 160
"""How wide a table is where it goes to no terminal."""


def clean(text: str) -> str:
    r"""Spell control characters out, as in `\x1b`."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, width: int = _WIDTH) -> str:
    """Put text on one line."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def count(number: int, noun: str) -> str:
    """Count things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[Mapping[str, Any]], columns: str) -> Table:
    """Make a table of those columns that have values: a line a row, but for the last column."""
    names = columns.split()
    shown = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in shown:
        made.add_column(name, no_wrap=name != shown[-1], overflow="fold")
    for row in rows:
        made.add_row(*(Text(one_line(_cell(name, row.get(name)))) for name in shown))
    return made


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str) and name in ("id", "version"):
        return value[:8]
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in value.items())
    return str(len(value)) if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def listed(fields: Mapping[str, Any]) -> Table:
    """Make a list of what has a value, by name."""
    made = Table.grid("name", "value", padding=(0, 2, 0, 0))
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            made.add_row(name, Text(clean(_plain(value)), overflow="fold"))
    return made


def markdown(text: str) -> "Markdown":
    """Make what shows a document."""
    from rich.markdown import Markdown

    return Markdown(clean(text))


@dataclass
class Terminal:
    """Where a command writes to, as its options say."""

    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress or notes on stderr, but warnings.")
    ] = False

    def __post_init__(self) -> None:
        self._stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)

    def result(
        self, document: Any, shown: "Mapping[str, Any] | Markdown | None" = None, **columns: str
    ) -> None:
        """Write the result: a document for machines, and for people the same, or what is `shown`.

        Of the lists that `columns` names, people see a table with these columns.
        """
        if self.as_json:
            self.document(document)
            return
        width = None if sys.stdout.isatty() else _WIDTH
        console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
        shown = document if shown is None else shown
        if not isinstance(shown, Mapping):
            console.print(shown)
            return
        scalars = {name: value for name, value in shown.items() if name not in columns}
        if scalars:
            console.print(listed(scalars))
        for name, names in columns.items():
            if rows := shown[name]:
                console.print(f"\n{name}: {len(rows):,}")
                console.print(table(rows, names))

    def document(self, value: Any, *, indent: int | None = 2) -> None:
        """Write the result, or a line of it, as JSON without control characters."""
        takes_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        text = json.dumps(value, ensure_ascii=not takes_unicode, indent=indent, allow_nan=False)
        # Outside of strings there are none but line feeds, so that escaping them in place is right.
        sys.stdout.write(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell something besides the result."""
        if not self.quiet:
            self._message(text)

    def warn(self, text: str) -> None:
        """Tell something that is probably not as the user expects."""
        self._message(f"warning: {text}")

    def error(self, text: str) -> None:
        """Tell why the command ends."""
        self._message(f"error: {text}")

    def can_ask(self) -> bool:
        """Tell whether there is somebody at the terminal to ask."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def show(self, part: Table) -> None:
        """Show what a question is about."""
        self._stderr.print(part)

    def ask(self, question: str) -> str | None:
        """Ask on stderr, and read a line from stdin; None where there are no more."""
        self._stderr.print(clean(question), end=" ", soft_wrap=True)
        line = sys.stdin.readline()
        return line.strip() if line else None

    def ask_expert(self, scale: "Scale") -> dict[str, Any] | str:
        """Ask for a value and words; return them, or skip, undo or quit."""
        question = f"What should it be: {scale.describe()} Enter for words alone; skip, undo, quit:"
        commands = {name: name for name in ("skip", "undo", "quit")}
        commands |= {name[0]: name for name in commands}
        while (answer := self.ask(question)) is not None:
            try:
                value = _value(answer, scale) if answer else None
            except ValueError as error:
                if command := commands.get(answer.lower()):
                    return command
                self.warn(str(error))
                continue
            words = self.ask("Why, in your own words; Enter for none:") or None
            return {"value": value, "rationale": words} if answer or words else "skip"
        return "quit"

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """Tell how far it is: by bars on a terminal, else by a line where a stage ends."""
        from rich.progress import BarColumn, Progress, TextColumn

        stages: dict[str, Any] = {}
        text = TextColumn("memalign: {task.description} {task.completed} of {task.total}")
        is_watched = sys.stderr.isatty() and not self.quiet
        with Progress(text, BarColumn(), console=self._stderr, disable=not is_watched) as bars:

            def show(stage: str, done: int, of: int) -> None:
                if stage not in stages:
                    stages[stage] = bars.add_task(stage)
                bars.update(stages[stage], completed=done, total=of)
                if done == of and of and not is_watched:
                    self.note(f"{stage} {done} of {of}")

            yield show

    def _message(self, text: str) -> None:
        for name, value in os.environ.items():
            if name.endswith(_SECRET_NAMES) and len(value) >= _LEAST_SECRET_CHARS:
                text = text.replace(value, "***")
        self._stderr.print(f"memalign: {clean(text)}", soft_wrap=True)


def _value(answer: str, scale: "Scale") -> Any:
    short = {"y": "yes", "n": "no"}.get(answer.lower(), answer)
    try:
        return scale.validate_value(answer)
    except ValueError:
        return scale.validate_value(short)
