"""Recall: results, vectors and the index."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from numpy.typing import NDArray

from memalign_graph import Example, Feedback, InvalidInputError, JudgeMemory
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory import access
from memalign_graph.memory import recall as recalling
from memalign_graph.memory.index import VectorIndex, normalised
from memalign_graph.memory.recall import recall, recall_excluding
from memalign_graph.memory.view import MemoryView
from tests.unit_tests.memory.stores import in_memory
from tests.unit_tests.memory.support import CRITERION, NO_LIMIT, QUERY, Bench, comment, hashed


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
    ("team.a", "must not contain a dot"),
    (("memalign", 3), "the label 3 is not a string"),
    (("langgraph", "x"), "reserves the first label 'langgraph'"),
]


def test_invalid_recall_arguments_are_refused(near: Bench) -> None:
    for namespace, problem in NAMESPACES:
        with pytest.raises(InvalidInputError, match=problem):
            near.memory(namespace=namespace)
    with pytest.raises(InvalidInputError, match="expected a LangGraph store"):
        JudgeMemory("store.db", CRITERION, embeddings=hashed)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="k: expected a whole number from 0 on, got -1"):
        near.memory().recall(QUERY, k=-1)
    with pytest.raises(InvalidInputError, match="outputs: is missing"):
        near.memory().recall({"inputs": "q"})


async def test_long_example_is_recalled(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    long = "the quick brown fox " * 2_000
    await bench.remember(comment(long), comment("short"))
    [text] = [item for item in bench.embedded() if item.startswith("the quick")]
    assert len(text.encode()) <= 8_191  # the tokens that common models accept
    assert await bench.recall(f"{long} and more", k=1) == [long]
    assert "similar examples are found by their beginnings" in caplog.text


async def test_changed_embedder_embeds_again_once_with_a_warning(
    bench: Bench, reopen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.remember(comment("one"), comment("two"))
    bench.embedded()
    other = bench.memory(embeddings=bench.server.embedder(model="text-embedding-3-large"))
    assert set(await bench.recall("new", memory=other)) == {"one", "two"}
    assert sorted(bench.embedded()) == ["new\n\na", "one\n\na", "two\n\na"]
    [record] = [record for record in caplog.records if record.name.startswith("memalign_graph")]
    assert record.levelname == "WARNING"
    says = "2 example(s) without vectors of the embeddings openai:text-embedding-3-large"
    assert says in record.getMessage()
    caplog.clear()
    await bench.recall("newer", memory=other)
    reopen()
    await bench.recall("newest", memory=other)
    assert bench.embedded() == ["newer\n\na", "newest\n\na"]
    assert caplog.records == []


async def test_missing_texts_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all of them take longer than a caller waits."""
    clock_s, lists, embedded = [0.0], list[int](), list[str]()

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
    listed = MemoryView.missing_texts

    def counted(view: MemoryView) -> dict[str, str]:
        lists.append(1)
        return listed(view)

    monkeypatch.setattr(MemoryView, "missing_texts", counted)
    other = JudgeMemory(store, CRITERION, embeddings=embed)
    case = {"inputs": "new", "outputs": "a"}
    await asyncio.gather(*(other.arecall(case) for _ in range(10)))
    assert [embedded.count(f"{number}\n\na") for number in range(4)] == [1] * 4
    assert len(lists) <= 10


class Untouched:
    """A store's embeddings that memories must not call."""

    def __call__(self, texts: object) -> list[list[float]]:
        raise AssertionError(f"The store embedded {texts}")


def test_store_with_its_own_index_does_not_embed_the_memorys_items() -> None:
    store = InMemoryStore(index={"dims": 64, "embed": Untouched()})
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    episode = memory.remember(comment("one"))
    memory.add_guideline("Be warm.")
    assert memory.recall(episode.example) != []
    memory.forget(episode.id)


def test_lost_vector_is_embedded_again(
    near: Bench, reopen: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = near.memory()
    memory.remember([comment("one"), comment("two")])
    near.embedded()
    [items] = near.store.batch([SearchOp(("memalign", "tone", "vectors"), limit=NO_LIMIT)])
    lost = items[0]  # type: ignore[index]
    near.store.delete(lost.namespace, lost.key)  # type: ignore[union-attr]
    reopen()
    assert len(memory.recall({"inputs": "new", "outputs": "a"})) == 2
    assert len(near.embedded()) == 2
    assert "1 example(s) without vectors" in caplog.text


Vectors = dict[str, NDArray[np.float32]]


def made(count: int, dimension: int = 24, seed: int = 7) -> Vectors:
    numbers = np.random.default_rng(seed).normal(size=(count, dimension))
    rows = normalised(numbers, count, "test")
    return {f"key {number}": row for number, row in enumerate(rows)}


def brute_force(vectors: Vectors, query: NDArray[np.float32], k: int) -> list[str]:
    return sorted(vectors, key=lambda key: -float(vectors[key] @ query))[:k]


def test_vector_table_behaves_like_a_dict() -> None:
    choice = random.Random(7)  # noqa: S311 - a test's order
    index, model = VectorIndex("test"), Vectors()
    for step in range(200):
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
            model = {key: vector for key, vector in model.items() if key not in gone}
            index.retain(model.keys() | {"no such key"})
            assert not any(key in index or index.get(key) is not None for key in gone)
        for key in list(model)[:3]:
            assert np.array_equal(index.get(key), model[key])  # type: ignore[arg-type]
        for query in made(2, seed=step + 500).values():
            keys = [key for key, _ in index.search(query, 20)]
            assert keys == brute_force(model, query, 20)


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
        assert [example.example.id for example in recalled.examples] == [
            example.example.id for example in wanted.examples
        ]
        assert [[episode.id for episode in example.episodes] for example in recalled.examples] == [
            [episode.id for episode in example.episodes] for example in wanted.examples
        ]
        assert recalled.nearness == wanted.nearness


@pytest.mark.parametrize(("rules", "expected"), [(20, 0), (21, 48)])
def test_distant_examples_help_to_select_guidelines(rules: int, expected: int) -> None:
    memory, example = filled(some_feedback(), rules), Example(inputs="late parcel", outputs="a")
    recalled = run_sync(recall(SYNC, memory.access, example, 2))
    nearest = run_sync(recall(SYNC, memory.access, example, 2 + expected)).examples
    assert len(recalled.examples) == 2
    assert recalled.nearness == {
        episode.id: pytest.approx(recalled.similarity, abs=1e-4)
        for recalled in nearest[2:]
        for episode in recalled.episodes
    }
