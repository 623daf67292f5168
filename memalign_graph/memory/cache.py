"""The process's cache of memories: those used last, up to `MEMALIGN_CACHE_BYTES`."""

import os
import threading
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore

from memalign_graph.errors import InvalidInputError
from memalign_graph.memory.layout import MemoryLayout
from memalign_graph.memory.view import MemoryView

CACHE_BYTES = "MEMALIGN_CACHE_BYTES"
"""The environment variable that bounds the bytes of cached memories in a process."""

_DEFAULT_BYTES = 2 * 1024**3


class _Cache:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ticks = count(1)
        self.held = WeakKeyDictionary[BaseStore, WeakValueDictionary[Any, MemoryView]]()
        """All views that are in use."""
        self.cached = WeakKeyDictionary[BaseStore, dict[Any, MemoryView]]()
        """The views used last."""


_cache = _Cache()


def get_view(
    store: BaseStore, layout: MemoryLayout, embedder: str, made: MemoryView | None = None
) -> MemoryView:
    """Return the process's view of a memory; it lives no longer than its store object."""
    key = layout, embedder
    with _cache.lock:
        held = _cache.held.setdefault(store, WeakValueDictionary())
        view = held.get(key)
        if view is None:
            view = held[key] = made or MemoryView(embedder)
        view.last_used = next(_cache.ticks)
        _cache.cached.setdefault(store, {})[key] = view
        return view


def discard_view(store: BaseStore, view: MemoryView) -> None:
    """Drop a view from the cache: the next caller loads the memory again."""
    with _cache.lock:
        for views in (_cache.held.get(store, {}), _cache.cached.get(store, {})):
            for key in [key for key, cached in views.items() if cached is view]:
                del views[key]


def evict_views() -> None:
    """Drop the views used longest ago until the rest fit; the last used one always stays."""
    bound = _max_bytes()
    with _cache.lock:
        cached = [(views, key) for views in _cache.cached.values() for key in views]
        total = sum(views[key].nbytes for views, key in cached)
        if total <= bound:
            return
        cached.sort(key=lambda entry: entry[0][entry[1]].last_used)
        for views, key in cached[:-1]:
            total -= views.pop(key).nbytes
            if total <= bound:
                return


def _max_bytes() -> int:
    text = os.environ.get(CACHE_BYTES, "").strip()
    if not text:
        return _DEFAULT_BYTES
    if not text.isdecimal():
        raise InvalidInputError(
            f"{CACHE_BYTES}: {text!r} is not a number of bytes. Use one such as {_DEFAULT_BYTES}."
        )
    return int(text)
