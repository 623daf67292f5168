"""Purge outside of the memory's items: threads, and the bytes of SQLite files."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memalign_graph.io import IO, run_sync
from memalign_graph.memory.traces import texts_in

TraceMarker = frozenset[str]
"""Texts that a checkpoint contains together if it contains purged content."""


async def erase_threads(
    io: IO, saver: BaseCheckpointSaver[Any] | None, markers: set[TraceMarker], known: Sequence[str]
) -> tuple[list[str], list[str]]:
    names = f" (known threads: {', '.join(known)})" if known else ""
    if saver is None:
        warning = (
            f"Checkpoints were not searched{names}. Give the `checkpointer` of the graphs that "
            "this feedback passed through."
        )
        return [], [warning]
    try:
        searched = await _search_threads(io, saver, markers)
    except NotImplementedError:
        name = type(saver).__name__
        return [], [f"{name} cannot list its threads: delete those with this feedback{names}."]
    threads = [thread for thread, is_found in searched.items() if is_found]
    for thread in threads:
        await _call(io, partial(saver.delete_thread, thread), partial(saver.adelete_thread, thread))
    # Callers name these threads: a wrong name must not delete another user's thread.
    left = ", ".join(thread for thread in known if searched.get(thread) is False)
    warning = (
        f"The feedback names these threads, but they have none of its ids and were kept: {left}. "
        "Delete those that contain it."
    )
    return threads, [warning] if left else []


async def vacuum(io: IO, owner: object, name: str) -> list[str]:
    """Rewrite an SQLite file without deleted bytes, and empty its write-ahead log."""
    if isinstance(owner, InMemoryStore | InMemorySaver):
        return []
    kinds = type(getattr(owner, "conn", None)).__mro__
    modules = {kind.__module__.partition(".")[0] for kind in kinds}
    if "sqlite3" in modules:
        busy = await io.call_either(
            partial(_vacuum, owner), partial(asyncio.to_thread, _vacuum, owner)
        )
    elif "aiosqlite" in modules:
        busy = await io.call_either(partial(_vacuum_on_its_loop, owner), partial(_avacuum, owner))
    else:
        unknown = (
            f"{type(owner).__name__}: the items are deleted. Whether their bytes are gone from the "
            f"disk of this {name} is up to its database (PostgreSQL: VACUUM FULL, and backups)."
        )
        return [unknown]
    in_use = (
        f"The SQLite file of the {name} is in use by another connection: deleted bytes may be left "
        "in it or its write-ahead log. Purge again when it is closed."
    )
    return [in_use] if busy else []


async def _search_threads(
    io: IO, saver: BaseCheckpointSaver[Any], markers: set[TraceMarker]
) -> dict[str, bool]:
    """Return for each stored thread whether it contains a marker."""
    threads: dict[str, bool] = {}

    def check(checkpoint: CheckpointTuple) -> None:
        thread = checkpoint.config["configurable"]["thread_id"]
        parts = [checkpoint.checkpoint, checkpoint.metadata, checkpoint.pending_writes]
        threads[thread] = threads.get(thread, False) or _contains_marker(parts, markers)

    def scan() -> None:
        for checkpoint in saver.list(None):
            check(checkpoint)

    async def scan_async() -> None:
        async for checkpoint in saver.alist(None):  # one at a time: they may be large
            check(checkpoint)

    await _call(io, scan, scan_async)
    return threads


async def _call(
    io: IO, blocking: Callable[[], None], awaiting: Callable[[], Awaitable[None]]
) -> None:
    async def in_loop() -> None:
        try:
            await awaiting()
        except NotImplementedError:
            await asyncio.to_thread(blocking)  # SqliteSaver has no async calls

    await io.call_either(blocking, in_loop)


def _contains_marker(value: Any, markers: set[TraceMarker]) -> bool:
    """Return whether a value contains all texts of a marker."""
    text = "\n".join(texts_in(value))
    return any(all(part in text for part in marker) for marker in markers)


Execute = Callable[[str], Awaitable[Any]]
"""Execute a statement; returns the first value of its first row."""


async def _rewrite(execute: Execute) -> bool:
    """Rewrite a file; returns whether another connection prevented it."""
    import sqlite3

    try:
        await execute("VACUUM")
    except sqlite3.OperationalError:
        return True
    return bool(await execute("PRAGMA wal_checkpoint(TRUNCATE)"))


def _vacuum(owner: Any) -> bool:
    async def execute(statement: str) -> Any:
        return (owner.conn.execute(statement).fetchone() or [None])[0]

    with owner.lock:
        return run_sync(_rewrite(execute))


async def _avacuum(owner: Any) -> bool:
    async def execute(statement: str) -> Any:
        async with owner.conn.execute(statement) as cursor:
            return (await cursor.fetchone() or [None])[0]

    async with owner.lock:
        return await _rewrite(execute)


def _vacuum_on_its_loop(owner: Any) -> bool:
    loop = getattr(owner, "_loop", None) or owner.loop
    return asyncio.run_coroutine_threadsafe(_avacuum(owner), loop).result()
