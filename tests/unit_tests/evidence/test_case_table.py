"""Evidence kept in step with its memory is what it would be if it were made from scratch."""

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, Feedback, JudgeMemory, Judgment
from memalign_graph.evidence import cases, deciding, past, weighing
from memalign_graph.evidence.deciding import Said
from memalign_graph.io import BLOCKING, run
from memalign_graph.memory.embedding import embed
from memalign_graph.scales import Scale
from tests.unit_tests.evidence.worlds import SCALES, START, normalised, values_of
from tests.unit_tests.memory.support import Opener, in_memory, opening

STEPS = 20
KINDS = ("boolean", "choices", "share", "stars")


@pytest.fixture(params=["memory", "sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens one more store on the same data; each has a view of its own."""
    if request.param == "memory":
        yield in_memory()
    else:
        with opening(tmp_path / "store.db") as opened:
            yield opened


def embedded(texts: Sequence[str]) -> list[list[float]]:
    """Few different vectors, many of them the same, and some that differ by less than counts."""
    vectors = []
    for text in texts:
        rng = np.random.default_rng(sum(text.encode()) % 7)
        vector = normalised(rng.normal(size=6))
        if "near" in text:
            vector = vector + np.float32(1e-8) * (len(text) % 3)
        vectors.append(vector.tolist())
    return vectors


def criterion(scale: Scale) -> Criterion:
    return Criterion(name="tone", instructions="How good is it?", scale=scale)


def judgment(given: Criterion, example_id: str, rng: random.Random) -> Judgment:
    values = values_of(given.scale)
    shares = [rng.random() for _ in values]
    odds = {
        given.scale.render(value): share / sum(shares)
        for value, share in zip(values, shares, strict=True)
    }
    return Judgment(
        criterion=given.name,
        example_id=example_id,
        value=rng.choice(values),
        rationale="So it is.",
        memory_version="",
        probabilities=rng.choice([None, odds]),
    )


class Trial:
    """A memory that several processes change at random."""

    def __init__(self, opener: Opener, scale: Scale, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a test's choices
        self.criterion = criterion(scale)
        self.opener = opener
        self.memories = [self.open(), self.open()]
        self.versions = [self.memories[0].version()]
        self.minute = 0

    def open(self, store: BaseStore | None = None) -> JudgeMemory:
        return JudgeMemory(store or self.opener(), self.criterion, embeddings=embedded)

    @property
    def memory(self) -> JudgeMemory:
        return self.rng.choice(self.memories)

    def step(self) -> None:
        kinds = [*["remember"] * 6, "revise", "revise", "forget", "forget", "rollback", "purge"]
        getattr(self, self.rng.choice(kinds))()
        self.versions.append(self.memories[0].version())

    def word(self, **fields: Any) -> Feedback:
        self.minute += 1
        case = {
            "inputs": f"{self.rng.choice(['near', 'case'])} {self.rng.randrange(40)}",
            "outputs": "An answer.",
        }
        given = Feedback.model_validate(
            {
                **case,
                "value": self.rng.choice([None, *values_of(self.criterion.scale) * 2]),
                "rationale": self.rng.choice(["Because.", "Since it is."]),
                "author": self.rng.choice(["ann", "bob", "eve"]),
                "given_at": START + timedelta(minutes=self.rng.choice([self.minute, 0])),
                **fields,
            }
        )
        judged = judgment(self.criterion, given.example.id, self.rng)
        return given.model_copy(update={"judgment": self.rng.choice([None, judged, judged])})

    def remember(self) -> None:
        self.memory.remember([self.word() for _ in range(self.rng.choice([1, 1, 6]))])

    def revise(self) -> None:
        memory = self.memory
        if found := memory.episodes():
            value = self.rng.choice(values_of(self.criterion.scale))
            memory.revise(self.rng.choice(found).id, {"value": value})

    def forget(self) -> None:
        memory = self.memory
        if found := memory.episodes():
            some = self.rng.sample(found, min(len(found), self.rng.randrange(1, 4)))
            memory.forget([one.id for one in some])

    def purge(self) -> None:
        memory = self.memory
        if found := memory.episodes():
            memory.forget(self.rng.choice(found).id, purge=True)

    def rollback(self) -> None:
        memory = self.memory
        memory.rollback(self.rng.choice(self.versions))


def decisions(memory: JudgeMemory) -> list[Any]:
    """What the evidence says of some cases, and of those in memory, to the last bit."""
    scale = memory.access.criterion.scale
    found: list[Any] = []
    for text in ("case 1", "near 11"):
        [vector] = run(embed(BLOCKING, memory.access, {"q": text})).values()
        for value in values_of(scale)[:2]:
            decision = run(
                past.decide_case(BLOCKING, memory.access, Said(value), "evidence", vector=vector)
            )
            assert decision.evidence is not None
            found.append((decision.value, decision.confidence, decision.evidence.model_dump()))
    return [*found, *run(past.past_decisions(BLOCKING, memory.access, "evidence"))]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let edges come early."""
    for module in (cases, deciding):
        monkeypatch.setattr(module, "NEIGHBOURS", 3)
    monkeypatch.setattr(cases, "_SPARE", 2)
    monkeypatch.setattr(cases, "MAX_CASES", 12)
    for module in (deciding, weighing):
        monkeypatch.setattr(module, "MIN_CASES", 4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_any_history_gives_what_a_table_from_scratch_gives(
    opener: Opener, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    trial = Trial(opener, SCALES[kind], seed)
    trial.memory.remember([trial.word() for _ in range(15)])
    trial.versions = [trial.memories[0].version()]
    weighed = 0
    for _ in range(STEPS):
        trial.step()
        scratch = decisions(trial.open())
        for memory in trial.memories:
            assert decisions(memory) == scratch
        weighed += scratch[0][2]["estimate"] is not None
    assert weighed > STEPS / 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgotten_episode_never_was(opener: Opener, kind: str) -> None:
    trial = Trial(opener, SCALES[kind], 5)
    words = [trial.word(inputs=f"case {at}", author="ann") for at in range(40)]
    trial.memories[0].remember(words)
    outlier = trial.word(inputs="case 99", author="bob", value=values_of(SCALES[kind])[0])
    without = JudgeMemory(InMemoryStore(), trial.criterion, embeddings=embedded)
    without.remember(words)
    before = decisions(trial.memories[0])
    assert before == decisions(without)
    assert before[0][2]["estimate"] is not None
    [added] = trial.memories[1].remember([outlier])
    assert decisions(trial.memories[0]) != before
    trial.memories[1].forget([added.id])
    assert decisions(trial.memories[0]) == before
    assert decisions(trial.open()) == before


def test_duplicates_beyond_all_neighbours_are_taken_in_a_stable_order(opener: Opener) -> None:
    trial = Trial(opener, SCALES["boolean"], 3)
    same = [f"case {'ab' * at}{'ba' * (30 - at)}" for at in range(30)]
    assert len({tuple(one) for one in embedded(same)}) == 1
    for at, text in enumerate(same):
        trial.memory.remember([trial.word(inputs=text, value=at % 3 == 0)])
        if at % 7 == 3:
            trial.memory.forget([trial.rng.choice(trial.memories[0].episodes()).id])
    here, there = map(decisions, trial.memories)
    assert here == there == decisions(trial.open())


def test_values_off_the_scale_do_not_vote(opener: Opener) -> None:
    wide = Trial(opener, SCALES["choices"].model_copy(update={"choices": ("warm", "gone")}), 4)
    wide.memories[0].remember([wide.word(inputs=f"case {at}", value="gone") for at in range(20)])
    wide.memories[0].remember([wide.word(inputs=f"near {at}", value="warm") for at in range(20)])
    now = JudgeMemory(opener(), criterion(SCALES["choices"]), embeddings=embedded)
    [vector] = run(embed(BLOCKING, now.access, {"q": "case 3"})).values()
    decision = run(past.decide_case(BLOCKING, now.access, Said("warm"), "evidence", vector=vector))
    assert decision.evidence is not None
    assert {one.value for one in decision.evidence.neighbours} == {"warm"}
    assert decisions(now)


def test_several_experts_on_a_case_are_one_voter() -> None:
    trial = Trial(in_memory(), SCALES["boolean"], 6)
    said = [("ann", True), ("bob", False), ("eve", False)]
    case = {"inputs": "case 1", "given_at": START}
    trial.memory.remember([trial.word(author=who, value=value, **case) for who, value in said])
    trial.memory.remember([trial.word(inputs="case 2", value=True)])
    [vector] = run(embed(BLOCKING, trial.memories[0].access, {"q": "case 1"})).values()
    access = trial.memories[0].access
    decision = run(past.decide_case(BLOCKING, access, Said(True), "evidence", vector=vector))
    assert decision.evidence is not None
    voters = {len(one.episode_ids): one.value for one in decision.evidence.neighbours}
    assert voters == {3: False, 1: True}


def test_the_judge_that_was_shown_the_experts_word_does_not_count() -> None:
    trial = Trial(in_memory(), SCALES["boolean"], 7)
    memory = trial.memories[0]
    first = trial.word(inputs="case 1", author="ann", value=True).model_copy(
        update={"judgment": None}
    )
    [known] = memory.remember([first])
    told = judgment(trial.criterion, known.example_id, trial.rng)
    told = told.model_copy(update={"episode_ids": [known.id], "value": True})
    second = trial.word(inputs="case 1", author="bob", value=True)
    memory.remember([second.model_copy(update={"judgment": told})])
    assert run(past.past_decisions(BLOCKING, memory.access, "verdict")) == []
    other = told.model_copy(update={"episode_ids": ["another"], "value": False})
    third = trial.word(inputs="case 1", author="eve", value=True)
    memory.remember([third.model_copy(update={"judgment": other})])
    [only] = run(past.past_decisions(BLOCKING, memory.access, "verdict"))
    assert only.agreed is False


def test_a_vector_that_is_still_to_come_is_waited_for() -> None:
    from memalign_graph.memory.view import MemoryView
    from tests.unit_tests.evidence.worlds import Item, drop, put, row

    items = [Item(normalised([1, at]), at % 2 == 0, True) for at in range(6)]
    view = MemoryView("made up")
    table = cases.CaseTable(view, SCALES["boolean"])
    put(view, [row(at, one) for at, one in enumerate(items)], items[:4])
    table.refresh()
    assert sorted(table.voters) == [f"k{at:04d}" for at in range(4)]
    seen = table.generation
    table.refresh()
    assert table.generation == seen
    view.add_vectors({"k0004": items[4].vector})
    table.refresh()
    assert len(table.voters) == 5
    assert table.generation == seen + 1
    drop(view, ["e0005"])
    table.refresh()
    view.add_vectors({"k0005": items[5].vector})
    table.refresh()
    assert len(table.voters) == 5
    drop(view, ["e0004"])
    table.refresh()
    assert len(table.voters) == 4


def test_what_is_said_again_may_be_embedded_otherwise() -> None:
    turn = {"now": 0}

    def wavering(texts: Sequence[str]) -> list[list[float]]:
        rows = np.asarray(embedded(texts))
        return (rows + turn["now"] * np.arange(6)).tolist()  # type: ignore[no-any-return]

    opener = in_memory()
    trial = Trial(opener, SCALES["boolean"], 8)
    memory = JudgeMemory(opener(), trial.criterion, embeddings=wavering)
    words = [trial.word(inputs=f"case {at}", author="ann") for at in range(25)]
    memory.remember(words)
    decisions(memory)
    other = JudgeMemory(opener(), trial.criterion, embeddings=wavering)
    some = other.remember(words[:3])
    turn["now"] = 1
    other.forget([one.id for one in some], purge=True)
    assert memory.recall(words[0].example, 1)  # the view has seen that they are gone
    other.remember(words[:3])
    turn["now"] = 0
    fresh = JudgeMemory(opener(), trial.criterion, embeddings=wavering)
    assert decisions(memory) == decisions(fresh)


def test_a_table_goes_with_its_store() -> None:
    store = InMemoryStore()
    trial = Trial(in_memory(), SCALES["boolean"], 9)
    memory = trial.open(store)
    memory.remember([trial.word(inputs=f"case {at}") for at in range(12)])
    decisions(memory)
    view = weakref.ref(memory.access.view)
    assert view() is not None
    del memory, store
    gc.collect()
    assert view() is None


def test_the_cases_last_spoken_of_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    trial = Trial(in_memory(), SCALES["boolean"], 10)
    memory = trial.memories[0]
    words = [
        trial.word(inputs=f"case {at}", author="ann", value=at % 2 == 0, given_at=_minute(at))
        for at in range(20)
    ]
    judged = [
        one.model_copy(update={"judgment": judgment(trial.criterion, one.example.id, trial.rng)})
        for one in words
    ]
    stored = memory.remember(judged)
    newest = {one.example_id for one in stored[8:]}
    assert {
        one.example_id for one in run(past.past_decisions(BLOCKING, memory.access, "evidence"))
    } == newest
    memory.forget([stored[-1].id])
    newest = {one.example_id for one in stored[7:-1]}
    assert {
        one.example_id for one in run(past.past_decisions(BLOCKING, memory.access, "evidence"))
    } == newest
    assert decisions(memory) == decisions(trial.open())


def test_threads_that_decide_while_others_change_the_memory() -> None:
    trial = Trial(in_memory(), SCALES["boolean"], 11)
    memory = trial.memories[0]
    stored = memory.remember([trial.word(inputs=f"case {at}") for at in range(30)])
    [vector] = run(embed(BLOCKING, memory.access, {"q": "case 1"})).values()
    said = Said(True)

    def decide(_: int) -> Any:
        return run(past.decide_case(BLOCKING, memory.access, said, "evidence", vector=vector)).value

    def change(at: int) -> Any:
        if at % 2:
            return memory.forget(stored[at].id)
        return memory.remember([trial.word(inputs=f"near {at}")])

    with ThreadPoolExecutor(max_workers=6) as pool:
        decided = [pool.submit(decide if at % 3 else change, at) for at in range(30)]
        assert all(one.result() is not None for one in decided)
    assert decisions(memory) == decisions(trial.open())


def _minute(at: int) -> datetime:
    return datetime(2026, 2, 1, tzinfo=UTC) + timedelta(minutes=at)
