"""What goes to the terminal: results to stdout, all else to stderr.

Text from files, models and memories can hold anything, escape sequences included, which would move
the cursor or repaint what stands above: what people read is sent without control characters.
"""

import json
import os
import re
import sys
from typing import Any, TextIO

PROGRAM = "memalign"
"""What messages on stderr begin with."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of writing."""

_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_LEAST_SECRET_CHARS = 8
_PIECE_CHARS = 65_536


def clean(text: str) -> str:
    r"""Make text safe for a terminal."""
    return _CONTROLS.sub(lambda found: _spelt(found[0]), text)


def one_line(text: str, width: int | None = None) -> str:
    """Put text on one line."""
    line = clean(" ".join(text.split()))
    return line if width is None or len(line) <= width else f"{line[: max(width - 1, 0)]}…"


def to_json_text(value: Any, *, indent: int | None = None, only_ascii: bool = False) -> str:
    """Write JSON that holds no control character, so that a terminal can show it."""
    text = json.dumps(value, ensure_ascii=only_ascii, indent=indent, allow_nan=False)
    # Outside of strings there are none but line feeds, so that escaping them in place is right.
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_secrets(text: str) -> str:
    """Black out what the environment holds as a key, a token or a password."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET_NAMES) and len(value) >= _LEAST_SECRET_CHARS:
            text = text.replace(value, "***")
    return text


class Output:
    """Where a command writes to."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        """Make it for one command."""
        self.as_json = as_json
        self._quiet = quiet
        self._progress_chars = 0
        self._warned: set[str] = set()

    def line(self, text: str = "") -> None:
        """Write a line of the result, for people."""
        self._write(sys.stdout, clean(text))

    def raw(self, text: str) -> None:
        """Write text to stdout as it is, without a line feed behind it."""
        self._write(sys.stdout, text, end="")

    def document(self, value: Any) -> None:
        """Write the result as one JSON document."""
        only_ascii = not _takes_unicode(sys.stdout)
        self._write(sys.stdout, to_json_text(value, indent=2, only_ascii=only_ascii))

    def record(self, value: Any) -> None:
        """Write a part of the result as one line of JSON, at once."""
        self._write(sys.stdout, to_json_text(value, only_ascii=not _takes_unicode(sys.stdout)))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Tell something besides the result."""
        if not self._quiet:
            self._message(text)

    def warn(self, text: str) -> None:
        """Tell something that is probably not as the user expects, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._message(f"warning: {text}")

    def error(self, text: str) -> None:
        """Tell why the command ends."""
        self._message(f"error: {text}")

    def progress(self, stage: str, done: int, of: int) -> None:
        """Tell how far it is: in place on a terminal, else a line where a stage ends."""
        if self._quiet:
            return
        text = f"{PROGRAM}: {stage} {done} of {of}"
        if is_watched():
            padding = " " * max(self._progress_chars - len(text), 0)
            self._progress_chars = len(text)
            self._write(sys.stderr, f"\r{clean(text)}{padding}", end="")
            sys.stderr.flush()
        elif done == of and of:
            self._write(sys.stderr, clean(text))

    def close_progress(self) -> None:
        """End the line that progress stands on, so that what follows has one of its own."""
        if self._progress_chars:
            self._progress_chars = 0
            self._write(sys.stderr, "")

    def ask(self, question: str) -> str:
        """Ask on stderr, and read a line from stdin."""
        self.close_progress()
        self._write(sys.stderr, f"{clean(question)} ", end="")
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    def _message(self, text: str) -> None:
        self.close_progress()
        self._write(sys.stderr, f"{PROGRAM}: {clean(without_secrets(text))}")

    @staticmethod
    def _write(stream: TextIO, text: str, end: str = "\n") -> None:
        encoding = stream.encoding or "utf-8"
        # What the terminal's encoding has no place for is spelt out rather than fatal.
        whole = text.encode(encoding, "backslashreplace").decode(encoding) + end
        # An unbuffered stream does not tell of a reader that goes away half-way, but at the next.
        starts = range(0, len(whole), _PIECE_CHARS)
        stream.writelines(whole[start : start + _PIECE_CHARS] for start in starts)


def is_watched() -> bool:
    """Tell whether somebody may watch stderr at a terminal."""
    return sys.stderr.isatty()


def can_ask() -> bool:
    """Tell whether there is somebody at the terminal to ask."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _takes_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def _spelt(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - a byte
