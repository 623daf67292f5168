"""Snapshots: a cache that is right or not used, and that a purge leaves nothing in."""

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memalign_graph import JudgeMemory
from memalign_graph.memory import snapshot
from memalign_graph.memory.index.vectors import Ann, MappedVectors
from memalign_graph.memory.layout import MemoryLayout
from tests.unit_tests.memory.stores import Opener
from tests.unit_tests.memory.support import CRITERION, QUERY, hashed, learn, op, said
from tests.unit_tests.memory.test_freshness import reads_of
from tests.unit_tests.memory.worker import look_hashed, start

CASES = 60
MARK = "zqxjo"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of snapshots, and small memories that count as large."""
    place = tmp_path / "snapshots"
    monkeypatch.setenv(snapshot.SNAPSHOTS, str(place))
    monkeypatch.setattr(snapshot, "LEAST", 50)
    monkeypatch.setattr(snapshot, "_FEWEST", 20)
    yield place
    snapshot.settle()


@pytest.fixture
def filled(opener: Opener, folder: Path) -> JudgeMemory:
    """A memory with a snapshot."""
    memory = opened(opener)
    words = [said(f"case {number}", f"Word {number}.", value=True) for number in range(CASES)]
    episodes = memory.remember([*words, said("Jo's", f"{MARK} said so.", author="jo")])
    learn(memory, op("add", *episodes[:3], text="Be warm."), op("add", episodes[5], text="Short."))
    memory.add_guideline("By hand.")
    memory.recall(QUERY)
    save(memory)
    [path] = folder.iterdir()
    assert MARK.encode() in path.read_bytes()
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    return memory


def opened(opener: Opener) -> JudgeMemory:
    return JudgeMemory(opener(), CRITERION, embeddings=hashed)


def save(memory: JudgeMemory) -> None:
    access = memory.access
    snapshot.save(access.layout, access.embedder.id, access.view.image)
    snapshot.settle()


def contents(memory: JudgeMemory) -> Any:
    found = [(one.example.id, round(one.similarity, 5)) for one in memory.recall(QUERY, k=9)]
    return (
        memory.version(),
        memory.episodes(),
        memory.guidelines(),
        found,
        memory.access.view.rows(),
    )


def watched(memory: JudgeMemory) -> list[Any]:
    """Note the batches of a memory's store."""
    batches: list[Any] = []
    store: Any = memory.access.store
    batch = store.batch

    def noting(ops: Any) -> Any:
        batches.append(ops)
        return batch(ops)

    vars(store)["batch"] = noting
    return batches


def is_mapped(memory: JudgeMemory) -> bool:
    return isinstance(memory.access.view._words, snapshot.Mapped)


def test_a_memory_is_opened_from_its_snapshot_and_what_was_written_since(
    filled: JudgeMemory, opener: Opener, folder: Path
) -> None:
    there = opened(opener)
    batches = watched(there)
    there.version()
    assert reads_of(batches) == ["head"]
    assert contents(there) == contents(filled)
    filled.forget(filled.episodes()[3].id)
    filled.remember([said("case 7", "Another."), said("new")])
    late = opened(opener)
    batches = watched(late)
    late.recall(QUERY)
    assert {*reads_of(batches)} == {"head", "facts", "words", filled_vectors(filled)}
    assert contents(late) == contents(filled) == contents(there)
    assert is_mapped(late)
    assert is_mapped(there)
    assert [one.version for one in late.history()] == [one.version for one in filled.history()]
    late.remember([said(f"more {number}") for number in range(40)])
    late.version()
    snapshot.settle()
    assert len(list(folder.iterdir())) == 1
    assert contents(opened(opener)) == contents(filled)


def filled_vectors(memory: JudgeMemory) -> str:
    return memory.access.layout.vectors(memory.access.embedder.id)[-1]


def flipped(data: bytes) -> bytes:
    at = data.index(MARK.encode())
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def of_another_format(data: bytes) -> bytes:
    """What a later version might write, whole by its checksums."""
    at, length, _, _ = snapshot._END.unpack(data[-snapshot._END.size :])
    header = data[at : at + length].replace(b'"format":"', b'"format":"9')
    return (
        data[:at]
        + header
        + snapshot._END.pack(at, len(header), zlib.crc32(header), snapshot._MAGIC)
    )


WRONG: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("damaged", flipped),
    ("cut, or no snapshot", lambda data: data[: len(data) // 2]),
    ("cut, or no snapshot", lambda data: data[:-1]),
    ("unpack requires", lambda data: data[:5]),
    ("empty", lambda _: b""),
    ("another format", of_another_format),
]


@pytest.mark.parametrize(("problem", "change"), WRONG)
def test_a_wrong_one_is_passed_over_with_a_sentence_and_made_anew(
    filled: JudgeMemory,
    opener: Opener,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    problem: str,
    change: Callable[[bytes], bytes],
) -> None:
    [path] = folder.iterdir()
    good = path.read_bytes()
    path.write_bytes(change(good))
    there = opened(opener)
    with caplog.at_level(logging.WARNING):
        assert contents(there) == contents(filled)
    assert not is_mapped(there)
    [record] = caplog.records
    assert problem in record.getMessage()
    assert "the store is read" in record.getMessage()
    snapshot.settle()
    [path] = folder.iterdir()
    assert len(path.read_bytes()) == len(good)
    again = opened(opener)
    assert contents(again) == contents(filled)
    assert is_mapped(again)


def test_one_of_another_store_or_another_user_is_not_trusted(
    filled: JudgeMemory,
    opener: Opener,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [path] = folder.iterdir()
    (tmp_path / "store.db").rename(tmp_path / "old.db")
    other = opened(opener)
    other.remember(said("elsewhere"))
    cold = opened(opener)
    assert [one.example.inputs for one in cold.episodes()] == ["elsewhere"]
    assert "a log that is not in this store" in caplog.text
    caplog.clear()
    path.chmod(0o622)
    snapshot.load(cold.access.layout, cold.access.embedder.id)
    assert "others own it or can write to it" in caplog.text
    path.chmod(0o600)
    assert snapshot.load(MemoryLayout(("x",)), cold.access.embedder.id) is None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    caplog.clear()
    assert snapshot.load(cold.access.layout, cold.access.embedder.id) is None
    assert "there are no snapshots in" in caplog.text


def test_a_purge_removes_them_and_says_what_it_can_not_reach(
    filled: JudgeMemory, opener: Opener, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LEAST", 1_000)  # nobody writes a new one in its place
    there, [path] = opened(opener), folder.iterdir()
    there.version()
    kept = path.read_bytes()
    purged = filled.forget(author="jo", purge=True).purged
    assert purged is not None
    assert any("folders of other machines" in one for one in purged.warnings)
    assert list(folder.iterdir()) == []
    for memory in (opened(opener), there):
        path.write_bytes(kept)  # as on another machine, until a process there reads it next
        path.chmod(0o600)
        assert contents(memory) == contents(filled)
        assert not is_mapped(memory)
        assert list(folder.iterdir()) == []
    save(filled)
    late = opened(opener)
    assert contents(late) == contents(filled)
    assert is_mapped(late)


def test_one_that_was_begun_before_a_purge_is_not_left(filled: JudgeMemory, folder: Path) -> None:
    access = filled.access
    image = access.view.image()
    filled.forget(author="jo", purge=True)
    snapshot.save(access.layout, access.embedder.id, lambda: image)
    snapshot.settle()
    assert not any(MARK.encode() in one.read_bytes() for one in folder.iterdir())


def test_one_that_can_not_be_written_leaves_the_last(
    filled: JudgeMemory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(folder.iterdir())

    def fail(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(snapshot._Writer, "_table", fail)
    filled.remember(said("one more"))
    save(filled)
    assert list(folder.iterdir()) == before


def test_a_store_that_is_set_back_is_read_anew_and_leaves_nothing_in_snapshots(
    filled: JudgeMemory, opener: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        filled.access.store.conn.backup(backup)  # type: ignore[attr-defined]
        count = len(filled.episodes())
        filled.remember([said("after the backup"), said("case 1", "Another.")])
        backup.backup(filled.access.store.conn)  # type: ignore[attr-defined]
    filled.remember(said("since the restore"))
    assert "set back or emptied" in caplog.text
    save(filled)
    late = opened(opener)
    assert contents(late) == contents(filled)
    assert is_mapped(late)
    assert len(late.episodes()) == count + 1


def test_a_memory_let_go_of_its_file_counts_what_it_holds(
    filled: JudgeMemory, opener: Opener
) -> None:
    there = opened(opener)
    there.version()
    assert is_mapped(there)
    there.rollback(there.history()[1].version)
    assert not is_mapped(there)
    assert there.access.view.nbytes > filled.access.view.nbytes / 2


def test_without_the_variable_nothing_is_written(
    opener: Opener, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(snapshot.SNAPSHOTS)
    memory = opened(opener)
    memory.remember([said(f"case {number}") for number in range(CASES)])
    memory.version()
    snapshot.settle()
    assert not folder.exists()


def test_another_process_opens_it_and_sees_the_same(
    filled: JudgeMemory, folder: Path, tmp_path: Path
) -> None:
    process, pipe = start(look_hashed, tmp_path / "store.db", folder)
    assert pipe.recv() == (True, filled.version(), filled.episodes(), filled.guidelines())
    process.join()


def test_many_vectors_are_found_by_an_index_beside_them(
    filled: JudgeMemory,
    opener: Opener,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Ann, "least", CASES)
    save(filled)
    there = opened(opener)
    assert contents(there) == contents(filled)
    assert is_mapped(there)
    [path] = folder.glob("*.faiss")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    again = opened(opener)
    assert again.version() == there.version()
    assert not is_mapped(again)
    assert "damaged" in caplog.text


def test_the_index_finds_nineteen_of_twenty_that_are_nearest(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((40, 64))
    rows = centres[rng.integers(0, 40, 3_000)] + 0.8 * rng.standard_normal((3_000, 64))
    matrix = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    told = Ann.write(tmp_path / "it.faiss", matrix)
    keys = np.array([f"{number:04}".encode() for number in range(3_000)])
    near, exact = (
        MappedVectors(keys, matrix, ann) for ann in (Ann.read(tmp_path / "it.faiss", told), None)
    )
    shares = []
    for query in matrix[:100] + 0.05 * rng.standard_normal((100, 64)).astype(np.float32):
        wanted = {key for key, _ in exact.search(query[None], 5)}
        shares.append(len(wanted & {key for key, _ in near.search(query[None], 5)}) / 5)
    assert np.mean(shares) >= 0.95
