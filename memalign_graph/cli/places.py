"""The memory's file, the models, and what else a command opens."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.memory.layout import check_namespace
from memalign_graph.models import models_from_environment, resolve_chat_model, resolve_embeddings
from memalign_graph.types import Criterion

DEFAULT_MEMORY = "memalign.db"
"""The memory's file where none is named: in the folder one is in."""

_SQLITE = b"SQLite format 3\0"


def read_namespace(text: str) -> tuple[str, ...]:
    """Read where a memory lies in its store."""
    try:
        return check_namespace(text.split("."))
    except InvalidInputError as error:
        raise InvalidInputError(f"--namespace: {error}") from error


def choose_models(model: str | None, embeddings: str | None) -> tuple[str, str]:
    """Choose the models, and check that they can be made, before anything is read or written."""
    chosen_model, chosen_embeddings = models_from_environment()
    chosen_model, chosen_embeddings = model or chosen_model, embeddings or chosen_embeddings
    resolve_chat_model(chosen_model)
    resolve_embeddings(chosen_embeddings)
    return chosen_model, chosen_embeddings


def memory_path(given: str | None, *, must_exist: bool, option: str = "--memory") -> Path:
    """Check the memory's file, without making or changing it."""
    name = given or DEFAULT_MEMORY
    path = Path(name)
    if name == ":memory:":
        raise InvalidInputError(f"{option}: {name} would be gone with the command: name a file.")
    if "\0" in name:
        raise InvalidInputError(f"{option}: a file's name holds no NUL character.")
    try:
        if path.is_dir():
            raise InvalidInputError(f"{option}: {name} is a folder: name a file.")
        if not path.exists():
            if must_exist:
                raise InvalidInputError(
                    f"{option}: there is no file {name}: `memalign align` makes it, and --memory "
                    "names another."
                )
            _check_parents(path, option)
            return path
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
    except OSError as error:
        raise InvalidInputError(f"{option}: {name} can't be read: {error}.") from error
    if head and head != _SQLITE:
        raise InvalidInputError(
            f"{option}: {name} is no SQLite file, so it is left as it is: name another."
        )
    if must_exist and not has_table(path, "store"):
        raise InvalidInputError(f"{option}: {name} holds no memory: name another file.")
    return path


def _check_parents(path: Path, option: str) -> None:
    """Check that the folder of a new file is there, or can be made."""
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise InvalidInputError(f"{option}: {there} is no folder, so {path} can't be in it.")


def output_path(name: str | None, option: str, *sources: str | None) -> Path | None:
    """Check a file that is to be written, so that no other is lost by a slip of the pen."""
    if name is None:
        return None
    path = Path(name)
    try:
        if path.is_dir():
            raise InvalidInputError(f"{option}: {name} is a folder: name a file.")
        if not path.parent.is_dir():
            raise InvalidInputError(f"{option}: there is no folder {path.parent}: make it first.")
        if path.exists():
            if any(
                source and Path(source).exists() and path.samefile(source) for source in sources
            ):
                raise InvalidInputError(f"{option}: {name} is also read from: name another file.")
            if path.is_file():
                with path.open("rb") as file:
                    if file.read(len(_SQLITE)) == _SQLITE:
                        raise InvalidInputError(
                            f"{option}: {name} is a database, so it is left as it is: name another "
                            "file."
                        )
    except OSError as error:
        raise InvalidInputError(f"{option}: {name} can't be written: {error}.") from error
    return path


def has_table(path: Path, name: str) -> bool:
    """Tell whether an SQLite file has a table, without changing the file."""
    address = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return connection.execute(query, (name,)).fetchone() is not None


@contextmanager
def open_memory(
    path: Path,
    criterion: Criterion,
    namespace: Sequence[str],
    *,
    model: str | None = None,
    embeddings: str | None = None,
    must_exist: bool = True,
) -> Iterator[JudgeMemory]:
    """Open a memory in a file."""
    from memalign_graph.local import open_local_store

    with open_local_store(path) as store:
        memory = JudgeMemory(
            store,
            criterion,
            namespace=namespace,
            model=model,
            embeddings=embeddings or models_from_environment()[1],
        )
        if must_exist and not memory.history():
            raise InvalidInputError(missing_memory(store, path, criterion, namespace))
        yield memory


def missing_memory(
    store: BaseStore, path: Path, criterion: Criterion, namespace: Sequence[str]
) -> str:
    """Say that a file holds no memory of a criterion, and which it holds."""
    there = sorted(
        ".".join(found[:-1]) for found in store.list_namespaces(suffix=("head",), limit=1000)
    )
    held = f"it holds {', '.join(there)}" if there else "it holds none"
    return (
        f"{path} holds no memory of {criterion.name!r} in the namespace {'.'.join(namespace)!r}: "
        f"{held} (namespace and criterion): check --memory, --namespace and --criterion."
    )
