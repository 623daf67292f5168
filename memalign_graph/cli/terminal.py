"""Output: results to stdout, messages to stderr, both without control characters.

Text from files, models and memories may contain escape sequences, which could move the cursor or
overwrite earlier output.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from memalign_graph.errors import HIDDEN, InvalidInputError, without_keys

_CONTROLS = re.compile(rf"{HIDDEN.pattern}|[\r\u200e\u200f]")
"""Control characters, except tab and line feed, marks of direction, and what `HIDDEN` names."""
_WIDTH = 160
"""The width of tables that are not printed to a terminal."""
_COLUMNS = """
    group judgments labels rate judge labels_alone more_labels
    case line id version at status author expert expected value before after confidence
    confidence_source calibrated_on decided_by newer first second worth episode_ids episodes
    guidelines reason rationale text
""".split()  # noqa: SIM905 - it would be a list of as many lines
"""The columns of tables, in this order; JSON has all fields."""


def clean(text: str) -> str:
    r"""Escape control characters, as in `\x1b`."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def pluralize(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of the columns that have values."""
    rows = [*map(_without_unchanged, rows)]
    shown = [name for name in _COLUMNS if any(row.get(name) not in (None, "", []) for row in rows)]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in shown:
        made.add_column("measured" if name == "worth" else name, overflow="fold")
    for row in rows:
        made.add_row(*(_cell(name, row.get(name)) for name in shown))
    return made


def _without_unchanged(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reduce an item before and after a change to the fields that differ."""
    before, after = row.get("before"), row.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return row
    changed = [name for name in after if before.get(name) != after[name]]
    parts = {"before": before, "after": after}
    shown = {when: {name: item.get(name) for name in changed} for when, item in parts.items()}
    return {**row, **shown, "id": after.get("id")}


def _cell(name: str, value: Any) -> Text:
    if isinstance(value, str) and name in ("id", "version"):
        value = value[:8]
    elif name == "confidence" and isinstance(value, float):
        value = round(value, 3)
    elif name == "worth" and value:
        value = f"{100 * value['auc']:.0f} % on {value['cases']} cases"
    elif isinstance(value, dict):
        value = value.get("text") or " ".join(f"{key} {item}" for key, item in value.items())
    elif isinstance(value, list):
        value = len(value)
    line = Text(clean(" ".join(_plain(value).split())))
    line.truncate(_WIDTH, overflow="ellipsis")
    return line


def _plain(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def key_value_table(fields: Mapping[str, Any]) -> Table:
    """Make a table of names and values, without empty values."""
    made = Table.grid("name", "value", padding=(0, 2, 0, 0))
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            made.add_row(name, Text(clean(_plain(value)), overflow="fold"))
    return made


def _scalars_and_tables(document: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """Return the scalars and the tables of a document; tables may be nested."""
    for key, value in document.items():
        holds_list = isinstance(value, dict) and any(isinstance(x, list) for x in value.values())
        if holds_list and key != "example":  # its keys are untrusted text
            yield from _scalars_and_tables(value, f"{name}{key} ")
        else:
            yield f"{name}{key}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


@dataclass
class Terminal:
    """Where a command prints, by its options.

    Options:
        as_json: Print the result as JSON.
        quiet: Print no progress and no notes.
    """

    as_json: Annotated[bool, typer.Option("--json")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False

    def __post_init__(self) -> None:
        self._stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._warned = set[str]()

    def result(self, value: Mapping[str, Any], shown: Sequence[RenderableType] = ()) -> None:
        """Print the result: as JSON, or else what is `shown`, by default tables."""
        from pydantic_core import to_jsonable_python

        document = to_jsonable_python(value)
        if self.as_json:
            self.document(document)
            return
        width = None if sys.stdout.isatty() else _WIDTH
        console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
        if shown:
            console.print(*shown, sep="\n")
            return
        parts = dict(_scalars_and_tables(document))
        if fields := {name: part for name, part in parts.items() if not _is_table(part)}:
            console.print(key_value_table(fields))
        for name, rows in parts.items():
            if _is_table(rows):
                console.print(f"\n{name}: {len(rows):,}")
                console.print(table(rows))

    def document(self, value: Any, *, indent: int | None = 2) -> None:
        """Print the result, or a line of it, as JSON without control characters."""
        takes_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        text = json.dumps(value, ensure_ascii=not takes_unicode, indent=indent, allow_nan=False)
        # JSON has control characters only inside strings, where they may be escaped.
        sys.stdout.write(_CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], text) + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a note, unless --quiet."""
        if not self.quiet:
            self._message(text)

    def warn(self, text: str) -> None:
        """Print a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._message(f"warning: {text}")

    def error(self, text: str) -> None:
        if text:  # a group of commands alone prints its help, and has no error
            self._message(f"error: {text}")

    def show(self, part: Table) -> None:
        """Print a table to stderr."""
        self._stderr.print(part)

    def ask(self, question: str) -> str | None:
        """Ask on stderr and read a line from stdin; None at its end."""
        self._stderr.print(clean(question), end=" ", soft_wrap=True)
        line = sys.stdin.readline()
        return line.strip() if line else None

    def confirm(self, question: str) -> None:
        """Ask for a yes; without it the command ends."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidInputError("--yes: there is no terminal to ask at. Add --yes.")
        if (self.ask(question) or "").lower() not in ("y", "yes"):
            raise InvalidInputError("Nothing was changed: the answer was not yes.")

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """Show the progress of each stage; without a terminal, only where it ended."""
        from rich.progress import Progress, TextColumn

        text = TextColumn("memalign: {task.description} {task.completed} of {task.total}")
        with Progress(text, console=self._stderr, disable=self.quiet) as bars:
            stages: dict[str, Any] = defaultdict(lambda: bars.add_task(""))

            def show(stage: str, done: int, of: int) -> None:
                bars.update(stages[stage], description=stage, completed=done, total=of)

            yield show

    def _message(self, text: str) -> None:
        # One line, so that no file's or model's text looks like another message.
        line = clean(" ".join(without_keys(text).split()))
        self._stderr.print(f"memalign: {line}", soft_wrap=True)
