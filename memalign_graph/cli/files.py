"""Files that commands read and write, and ids in them."""

import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from memalign_graph.errors import InvalidInputError
from memalign_graph.local.stores import has_postgres_table, is_postgres, without_secrets

STDIN = "-"
"""The name of the standard input or output."""

_SQLITE = b"SQLite format 3\0"
_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""The first bytes of Excel and LibreOffice files."""
_MIN_ID_CHARS = 4


def read_text(path: str, option: str) -> str:
    """Read a text file or the standard input."""
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_SPREADSHEETS):
            raise InvalidInputError(
                f"{option}: {path} is a spreadsheet: save it as CSV (UTF-8) and give that file."
            ) from error
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"{option}: {path}, line {line}: this is not UTF-8 text: save the file as UTF-8."
        ) from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{option}: {path} can't be read: {problem}.") from error


def check_database(location: str | Path, option: str, *, holds: str | None = None) -> None:
    """Check a database without creating or changing it; `holds` names a required table."""
    problem, path = None, Path(location)
    is_file = not is_postgres(location)
    if str(location) == ":memory:":
        problem = "would be lost when the command ends: name a file"
    elif is_file and path.is_dir():
        problem = "is a folder: name a file"
    elif is_file and path.is_file() and path.stat().st_size and not _is_database(path):
        problem = "is no SQLite file and is left as it is: name another"
    elif holds and not has_table(location, holds):
        exists = not is_file or path.exists()
        problem = f"{'has no memory' if exists else 'does not exist'}: `memalign align` makes one"
    if problem:
        raise InvalidInputError(f"{option}: {redacted_location(location)} {problem}.")


def redacted_location(location: str | Path) -> str:
    """Return a database's location without its password."""
    return without_secrets(str(location)) if is_postgres(location) else str(location)


def has_table(location: str | Path, name: str) -> bool:
    """Return whether a database exists and has a table, without changing it."""
    if is_postgres(location):
        return has_postgres_table(str(location), name)
    path = Path(location)
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


def check_output_path(path: Path, option: str, *sources: str | None) -> None:
    """Refuse to write over a database or a file that is read."""
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"{option}: {path}: the folder {path.parent} does not exist: make it."
        )
    read = [Path(source) for source in sources if source and Path(source).exists()]
    if path.is_file() and (_is_database(path) or any(map(path.samefile, read))):
        raise InvalidInputError(
            f"{option}: {path} is a database, or is read by this command: name another file."
        )


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def find_id(beginning: str, ids: Iterable[str], what: str) -> str:
    """Return the one id with this beginning."""
    typed = beginning.strip().lower()
    matches = sorted({key for key in ids if key.startswith(typed)})
    if typed in matches:
        return typed
    if len(matches) == 1 and len(typed) >= _MIN_ID_CHARS:
        return matches[0]
    raise InvalidInputError(
        f"ID: {beginning!r} names {len(matches) or 'no'} {what}: give {_MIN_ID_CHARS} characters "
        "or more of one id; `memalign memory list` and `history` show them."
    )
