"""The index: what it finds, with removal, few vectors, and from threads."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from memalign_graph.errors import EmbeddingError
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


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_adding_and_removing_leaves_what_a_dict_would_hold(seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311 - a test's order
    index, model = VectorIndex("test"), Vectors()
    for step in range(120):
        few = choice.random() < 0.7
        if choice.random() < (0.6 if step < 80 else 0.25):
            fresh = made(choice.randrange(1, 5) if few else 200, seed=step)
            fresh = {f"{step} {key}": vector for key, vector in fresh.items()}
            [other] = made(1, seed=1_000).values()
            index.add({**dict.fromkeys(model, other), **fresh})
            model.update(fresh)
        else:
            count = choice.randrange(1, 5) if few else len(model) // 2
            gone = set(choice.sample(sorted(model), min(count, len(model))))
            index.remove(gone | {"no such key"})
            model = {key: vector for key, vector in model.items() if key not in gone}
            assert not any(key in index or index.get(key) is not None for key in gone)
        for key in list(model)[:3]:
            assert np.array_equal(index.get(key), model[key])  # type: ignore[arg-type]
        for query in made(2, seed=step + 500).values():
            found = [key for key, _ in index.search(query, 20)]
            assert found == brute_force(model, query, 20)


def test_nothing_of_a_removed_vector_stays() -> None:
    vectors = made(1_000)
    index = VectorIndex("test")
    index.add(vectors)
    for gone in ({"key 0", "key 500", "key 999"}, {f"key {number}" for number in range(1, 400)}):
        index.remove(gone)
        assert index._table is not None
        held = index._table.matrix
        assert not any(vectors[key].tobytes() in held.tobytes() for key in gone)
    assert len(held) == 1_000 - 3 - 399  # nor the room it took


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
