"""The FAISS index: what it finds, with removal, few vectors and many, and from threads."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from memalign_graph.errors import EmbeddingError
from memalign_graph.memory.index import rows
from memalign_graph.memory.index.shared_lock import SharedLock
from memalign_graph.memory.index.vectors import (
    VectorIndex,
    decode_vector,
    encode_vector,
    normalised,
    vector_key,
)

Vectors = dict[str, NDArray[np.float32]]


def made(count: int, dimension: int = 24, seed: int = 7) -> Vectors:
    numbers = np.random.default_rng(seed).normal(size=(count, dimension))
    rows = normalised(numbers, count, "test")
    return {f"key {number}": row for number, row in enumerate(rows)}


def brute_force(vectors: Vectors, query: NDArray[np.float32], k: int) -> list[str]:
    return sorted(vectors, key=lambda key: -float(vectors[key] @ query))[:k]


def test_search_is_exact() -> None:
    vectors = made(400)
    index = VectorIndex("test")
    index.add(vectors)
    for query in made(20, seed=8).values():
        found = index.search(query, 10)
        assert [key for key, _ in found] == brute_force(vectors, query, 10)
        for key, score in found:
            assert score == pytest.approx(float(vectors[key] @ query), abs=1e-5)


def test_what_is_removed_is_never_found() -> None:
    vectors = made(200)
    index = VectorIndex("test")
    index.add(vectors)
    shuffled = random.Random(7)  # noqa: S311 - a test's order
    while vectors:
        gone = set(shuffled.sample(sorted(vectors), min(30, len(vectors))))
        index.remove(gone | {"no such key"})
        vectors = {key: one for key, one in vectors.items() if key not in gone}
        for query in made(3, seed=9).values():
            found = [key for key, _ in index.search(query, 50)]
            assert found == brute_force(vectors, query, 50)
        assert not any(key in index for key in gone)
    assert index.search(next(iter(made(1).values())), 5) == []


def test_what_was_removed_can_be_added_again() -> None:
    [(key, vector)] = made(1).items()
    index = VectorIndex("test")
    for _ in range(3):
        index.add({key: vector})
        [(found, score)] = index.search(vector, 5)
        assert found == key
        assert score == pytest.approx(1.0, abs=1e-6)
        index.remove({key})
        assert index.get(key) is None


def test_a_key_that_is_there_keeps_its_vector() -> None:
    one, two = made(2).values()
    index = VectorIndex("test")
    index.add({"key": one})
    index.add({"key": two})
    kept = index.get("key")
    assert kept is not None
    assert np.array_equal(kept, one)


def test_an_empty_index_finds_nothing() -> None:
    index = VectorIndex("test")
    [vector] = made(1).values()
    assert index.search(vector, 5) == []
    assert index.get("key") is None
    assert "key" not in index
    index.remove({"key"})
    index.add({})


@pytest.mark.parametrize("with_good", [False, True])
def test_a_vector_of_another_dimension_is_refused_and_changes_nothing(*, with_good: bool) -> None:
    index = VectorIndex("test")
    vectors = made(2)
    index.add({"key 0": vectors["key 0"]})
    [other] = made(1, dimension=8).values()
    bad = {"other": other}
    with pytest.raises(EmbeddingError, match=r"test give vectors of 8 dimensions, .* holds 24"):
        index.add({"key 1": vectors["key 1"], **bad} if with_good else bad)
    with pytest.raises(EmbeddingError, match="8 dimensions"):
        index.search(other, 1)
    assert [key for key, _ in index.search(vectors["key 1"], 5)] == ["key 0"]


def test_threads_may_add_remove_and_search_at_once() -> None:
    index = VectorIndex("test")
    queries = list(made(8, seed=3).values())

    def work(worker: int) -> Vectors:
        mine = {f"{worker} {key}": one for key, one in made(60, seed=worker).items()}
        for key, vector in mine.items():
            index.add({key: vector})
            found = index.search(queries[worker], 5)
            assert [score for _, score in found] == sorted((s for _, s in found), reverse=True)
            if key.endswith(("3", "7")):
                index.remove({key})
            else:
                assert index.get(key) is not None
        return {key: one for key, one in mine.items() if not key.endswith(("3", "7"))}

    with ThreadPoolExecutor(8) as pool:
        kept = {key: one for some in pool.map(work, range(8)) for key, one in some.items()}
    for query in queries:
        assert [key for key, _ in index.search(query, 20)] == brute_force(kept, query, 20)


def test_a_vector_survives_its_text_bit_by_bit() -> None:
    for vector in made(5).values():
        read = decode_vector(encode_vector(vector))
        assert np.array_equal(read, vector)
        assert read.dtype == np.float32
        assert read.flags.writeable


def test_normalised_vectors_have_length_one() -> None:
    rows = normalised([[3, 4], [0.001, 0], [-1e10, 1e10]], 3, "test")
    assert [float(np.linalg.norm(row)) for row in rows] == pytest.approx([1.0] * 3, abs=1e-6)


def test_a_vectors_key_names_embedder_and_text() -> None:
    keys = {vector_key(*pair) for pair in (("a", "x"), ("a", "y"), ("b", "x"))}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {32}


# Many vectors: codes of eight bits tell which ones are compared.

Matrix = NDArray[np.float32]


@pytest.fixture
def codes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let codes begin at a few hundred vectors, to be quick."""
    monkeypatch.setattr(rows, "_CODES_FROM", 300 * 24)
    monkeypatch.setattr(rows, "_CANDIDATES", 200)
    monkeypatch.setattr(rows, "_CANDIDATES_A_DIMENSION", 0)
    monkeypatch.setattr(rows, "_LOOK", 40)
    monkeypatch.setattr(rows, "_CATCH_UP", 50)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors each comparison took."""
    counts: list[int] = []
    compare = rows._compare

    def counted(query: Matrix, matrix: Matrix, k: int) -> Any:
        counts.append(len(matrix))
        return compare(query, matrix, k)

    monkeypatch.setattr(rows, "_compare", counted)
    return counts


def keyed(matrix: Any, prefix: str = "key") -> Vectors:
    return {f"{prefix} {at}": row for at, row in enumerate(normalised(matrix, len(matrix), "test"))}


def check_search(index: VectorIndex, vectors: Vectors, query: Matrix, k: int = 5) -> None:
    """Check the similarities found, since of two that are equal either may be found."""
    found = index.search(query, k)
    every = np.stack(list(vectors.values())) @ query
    scores = np.array([score for _, score in found])
    assert np.allclose(scores, np.sort(every)[::-1][:k], rtol=0, atol=2e-6)
    assert len({key for key, _ in found}) == len(found)
    own = np.stack([vectors[key] for key, _ in found]) @ query
    assert np.allclose(scores, own, rtol=0, atol=2e-6)


def random_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.normal(size=(count, dimension))


def clustered_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    centres = numbers.normal(size=(1 + count // 50, dimension))
    return centres[numbers.integers(0, len(centres), count)] + 0.1 * numbers.normal(
        size=(count, dimension)
    )


def nearly_equal_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.normal(size=dimension) + 0.001 * numbers.normal(size=(count, dimension))


def shifted_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    scale = 1 / np.arange(1, dimension + 1)
    return 2 * numbers.normal(size=dimension) + scale * numbers.normal(size=(count, dimension))


def sparse_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    dense = numbers.normal(size=(count, dimension))
    return np.where(numbers.random((count, dimension)) < 3 / dimension, dense, 0) + 1e-6


def heavy_tailed_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return numbers.standard_t(1.5, (count, dimension))


def equal_rows(numbers: np.random.Generator, count: int, dimension: int) -> Any:
    return np.ones((count, dimension))


def test_among_many_vectors_the_nearest_are_found_without_comparing_all(
    compared: list[int],
) -> None:
    numbers = np.random.default_rng(3)
    made_by = [random_rows, clustered_rows]
    matrix = np.concatenate([rows_of(numbers, 10_240, 512) for rows_of in made_by])
    vectors = keyed(matrix)
    index = VectorIndex("test")
    index.add(vectors)
    matrix = np.stack(list(vectors.values()))
    queries = keyed(np.concatenate([rows_of(numbers, 5, 512) for rows_of in made_by]))
    hits = 0
    for query in [*queries.values(), *matrix[::2_048]]:
        compared.clear()
        found = index.search(query, 5)
        assert sum(compared) < len(matrix) / 5
        best = {f"key {at}" for at in np.argsort(-matrix @ query)[:5]}
        hits += len(best & {key for key, _ in found})
    assert hits >= 0.99 * 5 * 20


@pytest.mark.usefixtures("codes_early")
@pytest.mark.parametrize("dimension", [3, 64, 100])
@pytest.mark.parametrize(
    "rows_of",
    [
        random_rows,
        clustered_rows,
        nearly_equal_rows,
        shifted_rows,
        sparse_rows,
        heavy_tailed_rows,
        equal_rows,
    ],
)
def test_whatever_the_vectors_are_the_nearest_are_found(
    rows_of: Callable[..., Any], dimension: int
) -> None:
    numbers = np.random.default_rng(5)
    vectors = keyed(rows_of(numbers, 1_000, dimension))
    index = VectorIndex("test")
    index.add(vectors)
    queries = [
        *keyed(rows_of(numbers, 3, dimension)).values(),
        *keyed(random_rows(numbers, 2, dimension)).values(),
        *list(vectors.values())[::500],
        -vectors["key 0"],
        np.eye(dimension, dtype=np.float32)[0],
    ]
    for query in queries:
        for k in (1, 5, 45, 2_000):
            check_search(index, vectors, query, k)


@pytest.mark.usefixtures("codes_early")
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_adding_and_removing_leaves_what_a_dict_would_hold(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    choice = random.Random(seed)  # noqa: S311 - a test's order
    made_by = [random_rows, clustered_rows, heavy_tailed_rows, nearly_equal_rows]
    index, model = VectorIndex("test"), Vectors()
    gone: set[str] = set()
    for step in range(120):
        few = choice.random() < 0.7
        if choice.random() < (0.6 if step < 80 else 0.25):
            count = choice.randrange(1, 5) if few else choice.randrange(50, 400)
            fresh = keyed(choice.choice(made_by)(numbers, max(count, 50), 24)[:count], f"{step}")
            again = {
                key: next(iter(fresh.values()))
                for key in choice.sample(sorted(model), len(model) // 9)
            }
            index.add({**again, **fresh})
            model.update(fresh)
        else:
            count = choice.randrange(1, 5) if few else len(model) // choice.randrange(2, 9)
            keys = set(choice.sample(sorted(model), min(count, len(model))))
            index.remove(keys | {"no such key"})
            gone |= keys
            model = {key: one for key, one in model.items() if key not in keys}
        if not model:
            continue
        known = choice.sample(sorted(model), min(3, len(model)))
        for key in known:
            assert np.array_equal(index.get(key), model[key])  # type: ignore[arg-type]
        check_search(index, model, model[known[0]])
        check_search(index, model, next(iter(keyed(numbers.normal(size=(1, 24))).values())), 20)
    assert {key for key, _ in index.search(numbers.random(24, dtype=np.float32), 10_000)} == set(
        model
    )
    assert not any(key in index or index.get(key) is not None for key in gone)


@pytest.mark.usefixtures("codes_early")
def test_nothing_of_a_removed_vector_stays() -> None:
    vectors = made(1_000)
    index = VectorIndex("test")
    index.add(vectors)
    matrix_rows = index._rows
    assert matrix_rows is not None
    codes = matrix_rows._codes
    assert codes is not None
    held = codes._codes()
    code_of = {key: held[row].tobytes() for key, row in index._row_of.items()}
    gone = {"key 0", "key 500", "key 999"}
    index.remove(gone)
    left = faiss.rev_swig_ptr(codes._index.codes.data(), held.size).tobytes()
    for key in gone:
        assert vectors[key].tobytes() not in matrix_rows._matrix.tobytes()
        assert code_of[key] not in left
    for key in vectors.keys() - gone:
        assert code_of[key] in left


@pytest.mark.usefixtures("codes_early")
def test_vectors_unlike_the_first_are_found_and_soon_without_comparing_all(
    compared: list[int],
) -> None:
    numbers = np.random.default_rng(2)
    index, vectors = VectorIndex("test"), Vectors()
    for part in range(12):
        # Every part lies elsewhere, beyond what the codes were fitted to.
        place = 3 * numbers.normal(size=24)
        fresh = keyed(place + numbers.normal(size=(500, 24)), f"part {part}")
        index.add(fresh)
        vectors.update(fresh)
        for query in list(fresh.values())[:3]:
            check_search(index, vectors, query)
    compared.clear()
    index.search(query, 5)
    assert sum(compared) < len(vectors) / 2


@pytest.mark.usefixtures("codes_early")
def test_a_vector_that_fits_no_code_is_found_wherever_it_is_moved() -> None:
    numbers = np.random.default_rng(6)
    flat, tall = np.eye(24)[0] < 1, np.eye(24)[0]
    vectors = keyed(flat * numbers.normal(size=(1_000, 24)))
    others = keyed(tall + 0.01 * numbers.normal(size=(10, 24)), "other")
    index = VectorIndex("test")
    index.add(vectors)
    index.add(others)
    for start in range(0, 600, 50):
        index.remove({f"key {at}" for at in range(start, start + 50)})
        for aside in keyed(flat * numbers.normal(size=(5, 24))).values():
            query = ((tall + aside) / np.sqrt(2)).astype(np.float32)
            assert {key for key, _ in index.search(query, 5)} < others.keys()


@pytest.mark.usefixtures("codes_early")
def test_an_index_that_shrinks_gives_its_memory_back() -> None:
    vectors = made(6_000)
    index = VectorIndex("test")
    index.add(vectors)
    matrix_rows = index._rows
    assert matrix_rows is not None
    for kept in (1_000, 100):
        index.remove({key for at, key in enumerate(vectors) if at >= kept})
        vectors = dict(list(vectors.items())[:kept])
        assert len(matrix_rows._matrix) < 4 * kept
        assert (matrix_rows._codes is None) == (kept == 100)
        check_search(index, vectors, next(iter(made(1, seed=8).values())))


@pytest.mark.usefixtures("codes_early")
def test_codes_are_made_little_by_little() -> None:
    vectors = made(900)
    index = VectorIndex("test")
    index.add({key: vectors[key] for key in list(vectors)[:299]})
    coded = []
    for key in list(vectors)[299:320]:
        index.add({key: vectors[key]})
        assert index._rows is not None
        assert index._rows._codes is not None
        coded.append(len(index._rows._codes))
    assert coded[:3] == [52, 104, 156]
    assert coded[-1] == 320


@pytest.mark.usefixtures("codes_early")
def test_threads_may_add_remove_and_search_many_at_once() -> None:
    index = VectorIndex("test")
    index.add(made(1_000, seed=99))

    def work(worker: int) -> Vectors:
        mine = {f"{worker} {key}": one for key, one in made(300, seed=worker).items()}
        keys = list(mine)
        for start in range(0, 300, 20):
            some = {key: mine[key] for key in keys[start : start + 20]}
            index.add(some)
            key, query = next(iter(some.items()))
            [(found, score), *_] = index.search(query, 5)
            assert found == key
            assert score == pytest.approx(1, abs=1e-6)
            index.remove(set(keys[start : start + 10]))
            assert key not in [near for near, _ in index.search(query, 5)]
            kept = index.get(keys[start + 15])
            assert kept is not None
            assert np.array_equal(kept, mine[keys[start + 15]])
        return {key: mine[key] for at, key in enumerate(keys) if at % 20 >= 10}

    with ThreadPoolExecutor(8) as pool:
        kept = {key: one for some in pool.map(work, range(8)) for key, one in some.items()}
    kept.update(made(1_000, seed=99))
    for query in made(10, seed=3).values():
        check_search(index, kept, query, 20)


def test_readers_share_the_lock() -> None:
    lock, together = SharedLock(), threading.Barrier(3, timeout=5)

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

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    for _ in range(20):
        with getattr(lock, rare)():
            pass
    took = time.monotonic() - begun
    done.set()
    for thread in threads:
        thread.join()
    assert took < 2
