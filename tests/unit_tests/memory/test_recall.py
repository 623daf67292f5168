"""Recall: results, vectors and the index."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langgraph.store.memory import InMemoryStore
from numpy.typing import NDArray

from memalign_graph import Example, Feedback, InvalidInputError, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import access
from memalign_graph.memory import recall as recalling
from memalign_graph.memory.index import VectorIndex, normalize_vectors
from memalign_graph.memory.recall import recall, recall_excluding
from tests.unit_tests.memory.stores import in_memory
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, comment, hashed


async def test_recall_differs_between_two_answers_to_one_question(bench: Bench) -> None:
    question = "When does my order arrive?"
    kind, curt = "I am so sorry, it will come tomorrow", "Read the tracking page yourself"
    await bench.remember(comment(question, outputs=kind), comment(question, outputs=curt))
    for answer in (kind, curt):
        example = Example(inputs=question, outputs=f"{answer} please")
        nearest, other = await bench.do("recall", example, k=2)
        assert nearest.example.outputs == answer
        assert nearest.similarity > other.similarity
        [match] = await bench.do("recall", example, k=1)
        assert match.example == nearest.example


async def test_examples_with_the_same_text_are_distinct(bench: Bench) -> None:
    await bench.remember(
        comment("q", reference_outputs="r"),
        comment("q"),
        comment({"question": "q"}),
        comment("far away"),
    )
    recalled = await bench.do("recall", {"inputs": "q", "outputs": "a"}, k=3)
    assert len({item.example.id for item in recalled}) == 3
    assert await bench.recall("q", k=1) != []
    assert [len(await bench.recall("q", k=k)) for k in (2, 4, 10)] == [2, 4, 4]
    bench.embedded()
    assert await bench.recall("other", k=0) == []
    assert bench.embedded() == []


NAMESPACES: list[tuple[Any, str]] = [
    ((), "at least one label"),
    (("memalign", ""), "must not be empty"),
    ("team.a", "have a dot"),
    (("memalign", 3), "a label is not a string: 3"),
    (("langgraph", "x"), "reserves the first label 'langgraph'"),
]


def test_invalid_recall_arguments_are_refused(bench: Bench) -> None:
    for namespace, problem in NAMESPACES:
        with pytest.raises(InvalidInputError, match=problem):
            bench.memory(namespace=namespace)
    with pytest.raises(InvalidInputError, match="expected a LangGraph store"):
        JudgeMemory("store.db", CRITERION, embeddings=hashed)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="k: expected a whole number from 0 on, got -1"):
        bench.memory().recall(QUERY, k=-1)
    with pytest.raises(InvalidInputError, match="outputs: is missing"):
        bench.memory().recall({"inputs": "q"})


async def test_long_example_is_recalled(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    long = "the quick brown fox " * 2_000
    await bench.remember(comment(long), comment("short"))
    [text] = [item for item in bench.embedded() if item.startswith("the quick")]
    assert len(text.encode()) <= 8_191  # the tokens that common models accept
    assert await bench.recall(f"{long} and more", k=1) == [long]
    assert "similar examples are found by their beginnings" in caplog.text


async def test_changed_embedder_embeds_again_once(bench: Bench, reopen: Any) -> None:
    await bench.remember(comment("one"), comment("two"))
    bench.embedded()
    other = bench.memory(embeddings=bench.server.embedder(model="text-embedding-3-large"))
    assert set(await bench.recall("new", memory=other)) == {"one", "two"}
    assert sorted(bench.embedded()) == ["new\n\na", "one\n\na", "two\n\na"]
    await bench.recall("newer", memory=other)
    reopen()
    await bench.recall("newest", memory=other)
    assert bench.embedded() == ["newer\n\na", "newest\n\na"]


async def test_missing_texts_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all of them take longer than a caller waits."""
    clock_s, embedded = [0.0], list[str]()

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        await asyncio.sleep(0.02)  # the others look several times
        clock_s[0] += 0.0 if "new\n\na" in texts else 0.6 * access._WAIT_TIMEOUT_S
        return hashed(texts)

    vars(embed)["name"] = "counted"
    store = InMemoryStore()
    texts = [comment(str(number)) for number in range(4)]
    JudgeMemory(store, CRITERION, embeddings=hashed).remember(texts)
    monkeypatch.setattr(recalling, "_EMBED_TEXTS", 1)
    monkeypatch.setattr(recalling, "_EMBED_REQUESTS", 1)
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    other = JudgeMemory(store, CRITERION, embeddings=embed)
    case = {"inputs": "new", "outputs": "a"}
    await asyncio.gather(*(other.arecall(case) for _ in range(10)))
    assert [embedded.count(f"{number}\n\na") for number in range(4)] == [1] * 4


Vectors = dict[str, NDArray[np.float32]]


def made(count: int, dimension: int = 24, seed: int = 7) -> Vectors:
    numbers = np.random.default_rng(seed).normal(size=(count, dimension))
    rows = normalize_vectors(numbers, count, "test")
    return {f"key {number}": row for number, row in enumerate(rows)}


def brute_force(vectors: Vectors, query: NDArray[np.float32], k: int) -> list[str]:
    return sorted(vectors, key=lambda key: -float(vectors[key] @ query))[:k]


def test_index_behaves_like_a_dict() -> None:
    index, model = VectorIndex("test"), Vectors()
    [other], [short] = made(1, seed=1_000).values(), made(1, dimension=3).values()
    for step in range(20):
        fresh = {f"{step} {key}": vector for key, vector in made(30, seed=step).items()}
        # Known ones stay, and one of another dimension is left out.
        index.add({**dict.fromkeys(model, other), **fresh, "short": short})
        model = {
            key: vector for key, vector in model.items() if int(key.rpartition(" ")[2]) % 2
        } | fresh
        index.retain(model.keys() | {"no such key"})
        assert index.keys() == model.keys()
        assert index.get("no such key") is None
        for key in list(model)[:9]:
            assert np.array_equal(index.get(key), model[key])  # type: ignore[arg-type]
        for query in made(2, seed=step + 500).values():
            keys = [key for key, _ in index.search(query, 20)]
            assert keys == brute_force(model, query, 20)


def test_ties_have_the_same_order_in_every_process() -> None:
    [vector], names = (
        normalize_vectors([[1.0, 0.0]], 1, "test"),
        [f"{number:02}" for number in range(20)],
    )
    for order in (names, names[::-1]):
        view: Any = SimpleNamespace(index=VectorIndex("test"))
        for name in order:
            view.index.add({name: vector})
        assert [name for name, _ in recalling._search(view, vector, 2)] == names[:2]


def filled(feedback: list[Feedback], rules: int) -> JudgeMemory:
    made = JudgeMemory(in_memory()(), CRITERION, embeddings=hashed)
    made.remember(feedback)
    for number in range(rules):
        made.add_guideline(f"Rule {number}.")
    return made


def some_feedback() -> list[Feedback]:
    chance = random.Random(7)  # noqa: S311 - nothing secret
    topics = ("order", "cup", "late", "broken", "photo", "refund", "sorry", "parcel", "thanks")
    values = []
    for number in range(60):
        inputs = " ".join(chance.choices(topics, k=4))
        authors = chance.sample(["ann", "bob", "carl"], chance.choice([1, 1, 2]))
        values += [
            comment(f"{inputs} {number // 2}", author=author, value=True) for author in authors
        ]
    return values


@pytest.mark.parametrize(("k", "rules"), [(0, 0), (1, 0), (20, 0), (5, 60)])
def test_excluded_case_has_no_effect(k: int, rules: int) -> None:
    feedback = some_feedback()
    whole = filled(feedback, rules)
    whole.recall(Example(inputs="x", outputs="y"))
    for example in {item.example.id: item.example for item in feedback[::9]}.values():
        episode_ids = {item.episode_id for item in feedback if item.example.id == example.id}
        rest = filled([item for item in feedback if item.example.id != example.id], rules)
        wanted = run_sync(recall(SYNC, rest.access, example, k))
        recalled = recall_excluding(whole.access, example, k, episode_ids)
        assert recalled.recalled == wanted.recalled
        assert recalled.nearness == wanted.nearness


@pytest.mark.parametrize(("rules", "expected"), [(20, 0), (21, 48)])
def test_distant_examples_help_to_select_guidelines(rules: int, expected: int) -> None:
    memory, example = filled(some_feedback(), rules), Example(inputs="late parcel", outputs="a")
    recalled = run_sync(recall(SYNC, memory.access, example, 2))
    nearest = run_sync(recall(SYNC, memory.access, example, 2 + expected)).recalled
    assert recalled.recalled == nearest[:2]
    assert recalled.nearness == {
        key: pytest.approx(similar["similarity"], abs=1e-4)
        for similar in nearest
        for key in similar["episodes"]
    }
