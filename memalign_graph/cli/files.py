"""What commands read and write: texts, databases, ids."""

import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from memalign_graph.errors import InvalidInputError
from memalign_graph.local.stores import has_postgres_table, is_postgres, without_secrets

STDIN = "-"
"""What names the standard input, or output."""

_SQLITE = b"SQLite format 3\0"
_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How files of Excel and LibreOffice begin."""
_LEAST_ID_CHARS = 4


def read_text(path: str, option: str) -> str:
    """Read a file of text, or the standard input."""
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
    """Check a database without making or changing it; `holds` names a table it has to have."""
    problem, path = None, Path(location)
    is_file = not is_postgres(location)
    if str(location) == ":memory:":
        problem = "would be gone with the command: name a file"
    elif is_file and path.is_dir():
        problem = "is a folder: name a file"
    elif is_file and path.is_file() and path.stat().st_size and not _is_database(path):
        problem = "is no SQLite file, so it is left as it is: name another"
    elif holds and not has_table(location, holds):
        exists = not is_file or path.exists()
        problem = "holds no memory: `memalign align` makes one" if exists else "is not there"
    if problem:
        raise InvalidInputError(f"{option}: {redacted_location(location)} {problem}.")


def redacted_location(location: str | Path) -> str:
    """Return where a database is, as it can be shown."""
    return without_secrets(str(location)) if is_postgres(location) else str(location)


def has_table(location: str | Path, name: str) -> bool:
    """Tell whether there is a database with a table, without changing it."""
    if is_postgres(location):
        return has_postgres_table(str(location), name)
    path = Path(location)
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


def check_output_path(path: Path, option: str, *sources: str | None) -> None:
    """Check a file that is to be written, so that no other is lost by a slip of the pen."""
    if not path.parent.is_dir():
        raise InvalidInputError(f"{option}: {path}: there is no folder {path.parent}: make it.")
    read = [Path(source) for source in sources if source and Path(source).exists()]
    if path.is_file() and (_is_database(path) or any(map(path.samefile, read))):
        raise InvalidInputError(f"{option}: {path} is a database, or read from: name another file.")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def find_id(beginning: str, ids: Iterable[str], what: str) -> str:
    """Find the one id that begins like this."""
    typed = beginning.strip().lower()
    found = sorted({key for key in ids if key.startswith(typed)})
    if typed in found:
        return typed
    if len(found) == 1 and len(typed) >= _LEAST_ID_CHARS:
        return found[0]
    raise InvalidInputError(
        f"ID: {beginning!r} names {len(found) or 'no'} {what}: give {_LEAST_ID_CHARS} characters "
        "or more of one id; `memalign memory list` and `history` show them."
    )
