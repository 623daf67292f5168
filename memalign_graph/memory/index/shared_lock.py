"""A lock that many may read under at once, and one may write under."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Readers share it, a writer has it alone, and neither can keep the other out.

    A writer who waits goes before readers who come later; readers who waited for a writer go before
    the next one. Not to be taken again by a thread that holds it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._readers_waiting = 0
        self._writers_waiting = 0
        self._first = 0
        """How many waiting readers go before the next writer."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
        with self._changed:
            self._readers_waiting += 1
            try:
                while self._writing or (self._writers_waiting and not self._first):
                    self._changed.wait()
                self._readers += 1
            finally:
                self._readers_waiting -= 1
                self._first = min(self._first, self._readers_waiting)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._writers_waiting += 1
            try:
                while self._writing or self._readers or self._first:
                    self._changed.wait()
                self._writing = True
            finally:
                self._writers_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._first = self._readers_waiting
                self._changed.notify_all()
