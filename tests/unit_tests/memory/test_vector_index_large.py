"""The index where it is large: codes find the candidates, and nothing is missed."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from memalign_graph.memory.index import rows
from memalign_graph.memory.index.vectors import (
    VectorIndex,
)
from tests.unit_tests.memory.many_vectors import (
    Matrix,
    Vectors,
    check_search,
    clustered_rows,
    equal_rows,
    heavy_tailed_rows,
    keyed,
    made,
    nearly_equal_rows,
    random_rows,
    shifted_rows,
    sparse_rows,
)


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
