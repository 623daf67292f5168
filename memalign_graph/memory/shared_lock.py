"""A lock that many may read under at once, and one may write under."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Readers share it, a writer has it alone; a waiting writer goes before new readers.

    Not to be taken again by a thread that holds it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0
        self._writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
        with self._changed:
            while self._writing or self._waiting:
                self._changed.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                while self._writing or self._readers:
                    self._changed.wait()
                self._writing = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
