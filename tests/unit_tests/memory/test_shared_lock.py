"""The lock of the index: many read at once, one writes, and neither keeps the other out."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from memalign_graph.memory.index.shared_lock import SharedLock

_GIVE_UP_S = 120.0


def test_readers_share_the_lock() -> None:
    lock, together = SharedLock(), threading.Barrier(3, timeout=_GIVE_UP_S)

    def read(_: int) -> None:
        with lock.shared():
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, range(3)))


def test_a_writer_has_the_lock_alone() -> None:
    lock, written = SharedLock(), 0

    def write(_: int) -> None:
        nonlocal written
        with lock.exclusive():
            before = written
            time.sleep(0.0005)
            written = before + 1

    def read(_: int) -> None:
        with lock.shared():
            before = written
            time.sleep(0.0005)
            assert written == before

    with ThreadPoolExecutor(8) as pool:
        for at in range(40):
            pool.submit(write, at)
        list(pool.map(read, range(40)))
    assert written == 40


@pytest.mark.parametrize(("busy", "rare"), [("shared", "exclusive"), ("exclusive", "shared")])
def test_neither_readers_nor_writers_keep_the_other_out(busy: str, rare: str) -> None:
    lock, done = SharedLock(), threading.Event()

    def hold() -> None:
        while not done.is_set():
            with getattr(lock, busy)():
                time.sleep(0.0005)

    threads = [threading.Thread(target=hold) for _ in range(8)]
    give_up = threading.Timer(_GIVE_UP_S, done.set)
    for thread in (*threads, give_up):
        thread.start()
    for _ in range(20):
        with getattr(lock, rare)():
            pass
    was_kept_out = done.is_set()
    give_up.cancel()
    done.set()
    for thread in (*threads, give_up):
        thread.join()
    assert not was_kept_out
