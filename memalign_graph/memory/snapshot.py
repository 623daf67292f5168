"""A cache of what processes know of large memories, in files that they map.

Experts' words lie in it in plain text, so that there is none but in a folder that somebody named.
What is wrong, foreign or of another format is passed over, and the memory read from its store.
"""

import hashlib
import logging
import os
import stat
import struct
import threading
import time
import zlib
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import orjson

from memalign_graph.memory.index.vectors import Ann, MappedVectors, Vector, find
from memalign_graph.memory.layout import MemoryLayout

V = TypeVar("V")

logger = logging.getLogger(__name__)

SNAPSHOTS = "MEMALIGN_SNAPSHOTS"
"""The environment variable that names the folder; without it there are no snapshots."""

LEAST = 5_000
"""From how many episodes on there are snapshots."""

_CHANGED = 100
"""A new one is written once a share of one in so many has changed, and no less than `_FEWEST`."""

_FEWEST = 500

_FORMAT = "2"

_MAGIC = b"memalign snapshot\n"

_END = struct.Struct("<QQI18s")
"""Where the header lies, how long it is, its checksum; and that it ends here."""

_ALIGNED = 64

_STALE_S = 600
"""After so many seconds a file that is being written is taken for one that nobody ends."""


class Table:
    """Keys in order, and the bytes of each one's value."""

    def __init__(self, keys: Any, ends: Any, values: Any) -> None:
        self.keys = keys
        self._ends, self._values = memoryview(ends), memoryview(values)

    def find(self, key: str) -> int:
        """Return where a key lies, or -1."""
        return find(self.keys, key)

    def raw(self, at: int) -> memoryview:
        """Return the bytes of a value."""
        return self._values[self._ends[at] : self._ends[at + 1]]


class Mapped(MutableMapping[str, V]):
    """Values that lie in a file and are read whenever asked for, under what was set since."""

    def __init__(self, table: Table, read: Callable[[str, memoryview], V]) -> None:
        self.table, self.read = table, read
        self.set: dict[str, V] = {}
        self.hidden: set[str] = set()
        """Keys of the file that were set or deleted."""

    def copy(self) -> "Mapped[V]":
        other = Mapped(self.table, self.read)
        other.set, other.hidden = dict(self.set), set(self.hidden)
        return other

    def __getitem__(self, key: str) -> V:
        if key in self.set:
            return self.set[key]
        return self.read(key, self.raw(key))

    def raw(self, key: str) -> memoryview:
        """Return the bytes of a value that lies in the file."""
        at = -1 if key in self.hidden else self.table.find(key)
        if at < 0:
            raise KeyError(key)
        return self.table.raw(at)

    def __contains__(self, key: object) -> bool:
        if key in self.set:
            return True
        return key not in self.hidden and self.table.find(str(key)) >= 0

    def __setitem__(self, key: str, value: V) -> None:
        self.set[key] = value
        if self.table.find(key) >= 0:
            self.hidden.add(key)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        if self.table.find(key) >= 0:
            self.hidden.add(key)
        self.set.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        yield from list(self.set)
        names = (key.decode() for key in self.table.keys.tolist())
        yield from (key for key in names if key not in self.hidden)

    def __len__(self) -> int:
        return len(self.set) + len(self.table.keys) - len(self.hidden)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)


class _Items(ItemsView[str, V]):
    """All of them without a search for each."""

    _mapping: Mapped[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        mapped = self._mapping
        yield from list(mapped.set.items())
        names = (key.decode() for key in mapped.table.keys.tolist())
        for at, key in enumerate(names):
            if key not in mapped.hidden:
                yield key, mapped.read(key, mapped.table.raw(at))


class LazyItem(Mapping[str, Any]):
    """A field of an item in a mapping, read when it is first asked for."""

    def __init__(self, items: Mapping[str, Mapping[str, Any]], key: str, name: str) -> None:
        self._items, self._key, self._name = items, key, name

    @cached_property
    def _item(self) -> Mapping[str, Any]:
        item: Mapping[str, Any] = self._items[self._key].get(self._name) or {}
        return item

    def __getitem__(self, name: str) -> Any:
        return self._item[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._item)

    def __len__(self) -> int:
        return len(self._item)


@dataclass(frozen=True)
class Image:
    """What a process knows of a memory at one moment, as it is written."""

    state: dict[str, Any]
    """JSON; its `head`, `newest` and `purges` say of when it is."""

    tables: dict[str, tuple[Mapping[str, Any], Callable[[Any], bytes]]]
    """Mappings, and what writes their values."""

    order: Callable[[], list[str]]
    """The rows that have a value, newest first."""

    vectors: list[str]
    """The keys of vectors."""

    vector: Callable[[str], Vector | None]

    is_current: Callable[[], bool]
    """Whether nothing was purged since."""


@dataclass(frozen=True)
class Saved:
    """A snapshot in its file."""

    state: dict[str, Any]
    tables: dict[str, Table]
    order: Any
    """The places of the rows that have a value, newest first."""

    vectors: MappedVectors | None


def folder() -> Path | None:
    """Return where snapshots lie, if anywhere; it has to be this user's own."""
    name = os.environ.get(SNAPSHOTS, "").strip()
    if not name:
        return None
    path = Path(name)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(path.stat())
    except (OSError, ValueError) as error:
        logger.warning("%s: there are no snapshots in %s: %s", SNAPSHOTS, path, error)
        return None
    return path


def _check_own(status: os.stat_result) -> None:
    own = getattr(os, "geteuid", lambda: status.st_uid)()
    if status.st_uid != own or stat.S_IMODE(status.st_mode) & 0o022:
        raise ValueError("others own it or can write to it.")


def _digest(*names: str) -> str:
    return hashlib.sha256(orjson.dumps(names)).hexdigest()[:16]


def _prefix(layout: MemoryLayout, embedder: str) -> str:
    return f"{_digest(*layout.root)}-{_digest(embedder)}-"


def is_due(episodes: int, missing: int, changed: int) -> bool:
    """Tell whether a memory has changed enough for a new snapshot, and has its vectors."""
    share = episodes // _CHANGED
    return episodes >= LEAST and missing <= share and changed >= max(_FEWEST, share)


def load(layout: MemoryLayout, embedder: str) -> Saved | None:
    """Return the newest snapshot of a memory, if it can be used."""
    place = folder()
    if place is None:
        return None
    paths = place.glob(f"{_prefix(layout, embedder)}*.snapshot")
    for path in sorted(paths, key=lambda path: path.stem[-29:])[-1:]:
        try:
            return _read(path, [*layout.root, embedder])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, struct.error) as error:
            logger.warning("The snapshot %s can't be used, the store is read: %s", path, error)
    return None


def _read(path: Path, owner: list[str]) -> Saved:
    import numpy as np

    with path.open("rb") as file:
        _check_own(os.fstat(file.fileno()))
        whole = np.memmap(file, np.uint8, mode="c")
    data = memoryview(whole.data)
    at, length, checksum, magic = _END.unpack(data[-_END.size :])
    header = data[at : at + length]
    if magic != _MAGIC or zlib.crc32(header) != checksum:
        raise ValueError("it is cut, or no snapshot.")
    told = orjson.loads(header)
    if told["format"] != _FORMAT or told["owner"] != owner:
        raise ValueError("it is of another format, or of another memory.")

    def part(name: str) -> Any:
        kind, start, size, checksum = told["parts"][name]
        if zlib.crc32(data[start : start + size]) != checksum:
            raise ValueError(f"its part {name!r} is damaged.")
        kind = np.dtype(kind)
        return np.frombuffer(whole, kind, size // kind.itemsize, start)

    tables = {
        name: Table(part(f"{name}.keys"), part(f"{name}.ends"), part(f"{name}.values"))
        for name in told["tables"]
    }
    vectors = None
    if told["dimension"]:
        matrix = part("vectors").reshape(-1, told["dimension"])
        ann = None
        if told["ann"] is not None:
            ann = Ann.read(path.with_suffix(".faiss"), told["ann"])
        vectors = MappedVectors(part("vectors.keys"), matrix, ann)
    return Saved(orjson.loads(part("state").tobytes()), tables, part("order"), vectors)


def save(layout: MemoryLayout, embedder: str, image: Callable[[], Image]) -> None:
    """Write a snapshot, if wanted, beside what goes on."""
    place = folder()
    if place is not None:
        args = (place, layout, embedder, image())
        thread = threading.Thread(target=_save, args=args, name="memalign-snapshot")
        with _lock:
            _writing.add(thread)
        thread.start()


_lock = threading.Lock()
_writing: set[threading.Thread] = set()


def settle() -> None:
    """Wait for the snapshots that are being written."""
    with _lock:
        threads = list(_writing)
    for thread in threads:
        thread.join()


def _save(place: Path, layout: MemoryLayout, embedder: str, image: Image) -> None:
    prefix = _prefix(layout, embedder)
    name = prefix + _digest(*image.state["purges"])
    beside = place / f"{name}.tmp"
    path = place / f"{name}-{image.state['newest']}.snapshot"
    try:
        with _opened(beside) as file:
            _Writer(file).write([*layout.root, embedder], image, path.with_suffix(".faiss"))
        beside.replace(path)
        kept = {path.stem, name} if image.is_current() else {}
        _remove([one for one in place.glob(f"{prefix}*") if one.stem not in kept])
    except FileExistsError:
        pass  # another process writes one
    except (OSError, ValueError, RuntimeError) as error:  # the last is FAISS's
        logger.warning("A snapshot of %s was not written: %s", "/".join(layout.root), error)
        _remove([beside, path.with_suffix(".tmp"), path.with_suffix(".faiss")])
    finally:
        with _lock:
            _writing.discard(threading.current_thread())


def _opened(path: Path) -> Any:
    try:
        return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))
    except FileExistsError:
        if time.time() - path.stat().st_mtime < _STALE_S:
            raise
        path.unlink(missing_ok=True)
        return _opened(path)


class _Writer:
    """Writes the parts of a snapshot one after the other, and then where they lie."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._parts: dict[str, list[Any]] = {}
        file.write(_MAGIC)

    def write(self, owner: list[str], image: Image, ann_path: Path) -> None:
        import numpy as np

        self._part("state", "|u1", [orjson.dumps(image.state)])
        for name, (items, encode) in image.tables.items():
            self._table(name, items, encode)
        places = {key: at for at, key in enumerate(sorted(image.tables["rows"][0]))}
        self._part("order", "<i4", [np.array([places[key] for key in image.order()], "<i4")])
        keys = sorted(image.vectors)
        self._part("vectors.keys", *_names(keys))
        first = image.vector(keys[0]) if keys else None
        dimension = 0 if first is None else len(first)
        start = self._part("vectors", "<f4", (_bytes_of(image, key) for key in keys))
        ann = None
        if len(keys) >= Ann.least:
            self._file.flush()
            shape = len(keys), dimension
            ann = Ann.write(ann_path, np.memmap(self._file.name, "<f4", "r", start, shape))
        header = orjson.dumps(
            {
                "format": _FORMAT,
                "owner": owner,
                "tables": list(image.tables),
                "dimension": dimension,
                "ann": ann,
                "parts": self._parts,
            }
        )
        end = _END.pack(self._file.tell(), len(header), zlib.crc32(header), _MAGIC)
        self._file.write(header + end)

    def _part(self, name: str, kind: str, chunks: Iterable[Any]) -> int:
        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        start, checksum = self._file.tell(), 0
        for chunk in chunks:
            self._file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
        self._parts[name] = [kind, start, self._file.tell() - start, checksum]
        return int(start)

    def _table(self, name: str, items: Mapping[str, Any], encode: Callable[[Any], bytes]) -> None:
        import numpy as np

        keys, ends = sorted(items, key=str.encode), [0]

        def values() -> Iterator[Any]:
            for key in keys:
                is_saved = isinstance(items, Mapped) and key not in items.set
                raw = items.raw(key) if is_saved else encode(items[key])  # type: ignore[attr-defined]
                ends.append(ends[-1] + len(raw))
                yield raw

        self._part(f"{name}.values", "|u1", values())
        self._part(f"{name}.ends", "<i8", [np.array(ends, "<i8")])
        self._part(f"{name}.keys", *_names(keys))


def _names(keys: list[str]) -> tuple[str, list[Any]]:
    import numpy as np

    array = np.array([key.encode() for key in keys], dtype=bytes)
    return array.dtype.str, [array]


def _bytes_of(image: Image, key: str) -> bytes:
    vector = image.vector(key)
    if vector is None:
        raise ValueError("a vector was removed meanwhile.")
    return vector.astype("<f4").tobytes()


def drop(layout: MemoryLayout, purges: Iterable[str]) -> list[str]:
    """Remove a memory's snapshots that do not know of all purges; returns what is left, and why."""
    place = folder()
    if place is None:
        return []
    known = f"-{_digest(*sorted(purges))}"
    paths = [path for path in place.glob(f"{_digest(*layout.root)}-*") if known not in path.name]
    return _remove(paths)


def _remove(paths: Iterable[Path]) -> list[str]:
    left = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"The snapshot {path} could not be removed: {error}.")
            logger.warning("%s", left[-1])
    return left
