"""What goes to the terminal: results to stdout, all else to stderr, and no control characters.

Text from files, models and memories can hold anything, escape sequences included, which would move
the cursor or repaint what stands above.
"""

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from memalign_graph.errors import InvalidInputError

if TYPE_CHECKING:
    from memalign_graph.scales import Scale

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of writing."""
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_LEAST_SECRET_CHARS = 8
_WIDTH = 160
"""How wide a table is where it goes to no terminal."""
_COLUMNS = """
    group judgments labels rate judge labels_alone more_labels
    case line id version at status author expert expected value before after confidence
    confidence_source calibrated_on decided_by newer first second worth episode_ids episodes
    guidelines reason rationale text
""".split()  # noqa: SIM905 - it would be a list of as many lines
"""What a table shows of its rows, in this order; JSON holds the rest."""


def clean(text: str) -> str:
    r"""Spell control characters out, as in `\x1b`."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def pluralize(number: int, noun: str) -> str:
    """Count things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of the columns that have values: a line a row, but for the last column."""
    shown = [name for name in _COLUMNS if any(row.get(name) not in (None, "", []) for row in rows)]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in shown:
        title = "measured" if name == "worth" else name
        made.add_column(title, no_wrap=name != shown[-1], overflow="fold")
    for row in rows:
        made.add_row(*(_cell(name, row.get(name)) for name in shown))
    return made


def _cell(name: str, value: Any) -> Text:
    if isinstance(value, str) and name in ("id", "version"):
        value = value[:8]
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
    """Make a list of what has a value, by name."""
    made = Table.grid("name", "value", padding=(0, 2, 0, 0))
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            made.add_row(name, Text(clean(_plain(value)), overflow="fold"))
    return made


def _scalars_and_tables(document: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """Take a document apart into its scalars and its tables, which may stand deeper in it."""
    for key, value in document.items():
        if isinstance(value, dict) and any(isinstance(part, list) for part in value.values()):
            yield from _scalars_and_tables(value, f"{name}{key} ")
        else:
            yield f"{name}{key}", value


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


@dataclass
class Terminal:
    """Where a command writes to, as its options say."""

    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress or notes on stderr, but warnings.")
    ] = False

    def __post_init__(self) -> None:
        self._stderr = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._warned = set[str]()

    def result(
        self,
        value: Mapping[str, Any],
        *,
        markdown: str | None = None,
        shown: Sequence[RenderableType] = (),
    ) -> None:
        """Write the result: JSON for machines; for people lists and tables, or what is `shown`."""
        from pydantic_core import to_jsonable_python

        document = to_jsonable_python(value)
        if self.as_json:
            self.document(document)
            return
        width = None if sys.stdout.isatty() else _WIDTH
        console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
        if markdown:
            from rich.markdown import Markdown

            shown = [Markdown(clean(markdown))]
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
        """Tell, once, something that is probably not as the user expects."""
        if text not in self._warned:
            self._warned.add(text)
            self._message(f"warning: {text}")

    def error(self, text: str) -> None:
        """Tell why the command ends."""
        self._message(f"error: {text}")

    def show(self, part: Table) -> None:
        """Show what a question is about."""
        self._stderr.print(part)

    def ask(self, question: str) -> str | None:
        """Ask on stderr, and read a line from stdin; None where there are no more."""
        self._stderr.print(clean(question), end=" ", soft_wrap=True)
        line = sys.stdin.readline()
        return line.strip() if line else None

    def can_ask(self) -> bool:
        """Tell whether there is somebody at the terminal to ask."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, question: str) -> None:
        """Ask for a yes, and end the command without one."""
        if not self.can_ask():
            raise InvalidInputError("--yes: there is no terminal to ask at. Add --yes.")
        if (self.ask(question) or "").lower() not in ("y", "yes"):
            raise InvalidInputError("Nothing was changed: the answer was not yes.")

    def ask_expert(self, scale: "Scale") -> dict[str, Any] | str:
        """Ask for a value and words; return them, or skip or quit."""
        question = f"What should it be: {scale.describe()} Enter for words alone; skip, quit:"
        commands = {key: name for name in ("skip", "quit") for key in (name, name[0])}
        while (answer := self.ask(question)) is not None:
            try:
                value = _value(answer, scale) if answer else None
            except ValueError as error:
                if command := commands.get(answer.lower()):
                    return command
                self._message(f"warning: {error}")
                continue
            words = self.ask("Why, in your own words; Enter for none:") or None
            return {"value": value, "rationale": words} if answer or words else "skip"
        return "quit"

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """Tell how far each stage is; where this is no terminal, only how far it came."""
        from rich.progress import Progress, TextColumn

        text = TextColumn("memalign: {task.description} {task.completed} of {task.total}")
        with Progress(text, console=self._stderr, disable=self.quiet) as bars:
            stages: dict[str, Any] = defaultdict(lambda: bars.add_task(""))

            def show(stage: str, done: int, of: int) -> None:
                bars.update(stages[stage], description=stage, completed=done, total=of)

            yield show

    def _message(self, text: str) -> None:
        for name, value in os.environ.items():
            if name.endswith(_SECRET_NAMES) and len(value) >= _LEAST_SECRET_CHARS:
                text = text.replace(value, "***")
        self._stderr.print(f"memalign: {clean(text)}", soft_wrap=True)


def _value(answer: str, scale: "Scale") -> Any:
    try:
        return scale.validate_value(answer)
    except ValueError:
        return scale.validate_value({"y": "yes", "n": "no"}.get(answer.lower(), answer))
