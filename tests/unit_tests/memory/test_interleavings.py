"""Concurrent and interrupted operations leave a consistent memory."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memalign_graph import InvalidInputError, JudgeMemory
from memalign_graph.io import ASYNC, SYNC, run_sync
from memalign_graph.memory import access, feedback
from memalign_graph.memory.facts import Fact
from memalign_graph.memory.guidelines import normalize_text
from memalign_graph.memory.memory_state import MemoryState, build_state
from memalign_graph.memory.recall import recall
from memalign_graph.memory.view import MemoryView
from tests.unit_tests.memory import driver
from tests.unit_tests.memory.driver import (
    OF_TWO,
    ONE,
    OPERATIONS,
    THREE,
    Actor,
    check_same,
    content_of,
    memories,
    start,
)
from tests.unit_tests.memory.purging import ask, everything_in, fill, left_in, planted, threads_in
from tests.unit_tests.memory.stores import (
    CutOffError,
    Failing,
    Meanwhile,
    commits,
    in_memory,
    interleave,
    reads_head,
)
from tests.unit_tests.memory.support import QUERY, comment, lesson, op
from tests.unit_tests.memory.test_purge import check_clean

BRINGS_ONE = {"say another word", "revise one", "import", "roll back"}
TAKES_ONE = {"forget one", "purge one", "roll back to nothing"}
TAKES_RULE = {"forget two", "revise two", "take away by hand", "roll back to nothing", "roll back"}

ROLLS_BACK = {"roll back", "roll back to nothing"}
READS: dict[str, driver.Operation] = {
    "look": lambda io, access: access.refresh(io),
    "recall": lambda io, access: recall(io, access, QUERY, 5),
}
WHILE_IT_READS = 6
"""How many calls go before an operation is in the midst of its reading."""


def check(memories: Sequence[JudgeMemory], both: set[str]) -> None:  # noqa: C901 - a rule for each kind
    """Check that all processes agree, references resolve, and each operation took effect."""
    *warm, cold = memories
    check_same(warm, cold)
    episodes = {episode.id: episode for episode in cold.episodes()}
    guidelines = cold.guidelines()
    texts = {guideline.text for guideline in guidelines if guideline.status == "standing"}
    learned = Counter(key for guideline in guidelines for key in guideline.episode_ids)
    assert learned.keys() <= episodes.keys()
    assert learned[THREE.id] <= 1  # of two lessons from it, one applies
    if "purge one" in both and not both & {"import", "roll back"}:
        assert left_in(everything_in(cold.access.store), "zqxone") == []
        if "say another word" not in both and "revise one" not in both:
            assert left_in(everything_in(cold.access.store), ONE.example_id) == []
    if both & TAKES_ONE and not both & BRINGS_ONE and both != {"judge", "roll back to nothing"}:
        assert ONE.id not in episodes
    for name, words in (("say another word", "Word 2."), ("revise one", "Word 3.")):
        if name in both and not (both - {name}) & (TAKES_ONE | BRINGS_ONE - {"import"}):
            assert episodes[ONE.id].rationale == words
            assert ONE.id not in learned
    if "word by hand" in both and not both & TAKES_RULE:
        assert "By hand." in texts
    if "take away by hand" in both and not both & {"import", "roll back", "word by hand"}:
        active = {item.id for item in guidelines if item.status == "standing"}
        assert OF_TWO not in active
    if "learn from three" in both and not both & ROLLS_BACK:
        assert THREE.id in learned or episodes[THREE.id].status == "pending"
    if both == {"learn from three", "judge"}:
        assert THREE.id in learned
        assert episodes[THREE.id].status == "distilled"
    elif "judge" in both and not both & ROLLS_BACK:
        assert episodes[THREE.id].judgment is not None


@pytest.mark.parametrize("moment", [WHILE_IT_READS, None])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_with_every_other_in_the_middle(name: str, moment: int | None) -> None:
    problems = []
    for other in OPERATIONS:
        try:
            here, there, cold = run_interleaved(name, other, moment or commits)
        except InvalidInputError as error:
            assert "has no" in str(error)  # noqa: PT017 - what it speaks of is gone meanwhile
            continue
        try:
            check([here, there, cold], {name, other})
            here.remember(comment("one more"))
            check_same([here, there], cold)
        except (AssertionError, InvalidInputError) as error:
            problems.append(f"{other}: {str(error).splitlines()[0][:200]}")
    assert problems == []


def run_interleaved(
    name: str, other: str, when: Any, *, is_cold: bool = False
) -> list[JudgeMemory]:
    """Run an operation, or a read, with another in the middle of it."""
    here, there, cold = start()
    operation, access = (OPERATIONS | READS)[name], (cold if is_cold else here).access

    def run_other() -> None:
        run_sync(OPERATIONS[other](SYNC, there.access))

    interleave(lambda io: operation(io, access), when, run_other, or_later=True)
    return [here, there, cold]


AT_EVERY_STEP = [
    ("roll back", "forget one"),
    ("forget one", "learn from three"),
    ("purge one", "say something new"),
    ("reword of two", "word by hand"),
    ("import", "revise one"),
    ("judge", "purge one"),
    ("learn from one", "purge one"),
]


@pytest.mark.parametrize(("name", "other"), AT_EVERY_STEP)
def test_every_pair_of_operations_at_every_step(name: str, other: str) -> None:
    for step in range(1, 35):
        check(run_interleaved(name, other, step), {name, other})


@pytest.mark.parametrize("other", OPERATIONS)
@pytest.mark.parametrize("name", READS)
def test_read_with_a_concurrent_write(name: str, other: str) -> None:
    before = start()[0].version()
    for step in range(1, 8):
        for is_cold in (True, False):
            here, there, cold = run_interleaved(name, other, step, is_cold=is_cold)
            view = (cold if is_cold else here).access.view
            assert view.version in (before, there.version()) or other == "purge one"
            check([here, there, cold], {other})


def test_cached_state_equals_replaying_all_facts_in_any_order() -> None:
    for seed in range(4):
        order, opener = random.Random(seed), in_memory()  # noqa: S311 - a test's choices
        warm = memories(opener, 3)
        actors = [
            Actor(memory, f"{seed} {name}", [*OPERATIONS]) for name, memory in enumerate(warm)
        ]
        for _ in range(80):
            one, other = order.sample(actors, 2)
            beside = Meanwhile(commits, partial(act, other))
            run_sync(one.act(beside if order.random() < 0.5 else SYNC))
        [cold] = memories(opener, 1)
        check_same(warm, cold)

        facts, rows = cold.access.view.facts()
        assert len(facts) > 20
        for _ in range(3):
            view, arrived = MemoryView("test"), list[Fact]()
            late = order.sample(facts, len(facts)) if order.random() < 0.5 else facts
            while len(arrived) < len(facts):
                chunk = late[len(arrived) :][: order.randint(1, 6)]
                arrived += chunk
                view.add([*chunk, *order.sample(arrived, 1)], rows)
                check_in_step(view, build_state(arrived, rows))
            assert view.version == cold.version()


def act(actor: Actor) -> None:
    run_sync(actor.act(SYNC))


def check_in_step(view: MemoryView, scratch: MemoryState) -> None:
    assert view.current == scratch.active_guidelines()
    assert view.answers() == scratch.answers
    assert view.pending() == scratch.pending
    assert view.rows() == [scratch.rows[key] for key in sorted(scratch.rows)]
    texts = {row.vector_key for row in view.rows()}
    assert view.missing_texts().keys() == texts
    row_id = {row.id for key in texts for row in view.rows_for_vector(key)}
    assert row_id == scratch.rows.keys()


def is_second_look() -> Callable[[Any], bool]:
    """Match the second reading of the head: the last one before feedback is merged."""
    looks = count(1)
    return lambda asked: reads_head(asked) and next(looks) == 2


def test_newer_of_two_concurrent_pieces_of_feedback_counts() -> None:
    here, there = memories(in_memory(), 2)
    here.remember(comment("one", "First."))
    there.version()
    older, newer = comment("one", "Older."), comment("one", "Newer.")
    write = partial(feedback.remember, access=here.access, feedback=[older])
    interleave(write, is_second_look(), partial(there.remember, newer), after=True)
    assert [commit.reason for commit in here.history()] == ["remember"] * 3
    for memory in (here, there):
        assert [episode.rationale for episode in memory.episodes()] == ["Newer."]


@pytest.mark.parametrize("is_value_first", [False, True])
def test_value_completes_a_comment_that_is_stored_at_the_same_time(*, is_value_first: bool) -> None:
    opener = in_memory()
    here, there = memories(opener, 2)
    here.remember(comment("known"))
    there.version()
    given = [comment("one", "Sorry first."), comment("one", None, value=False)]
    mine, theirs = given[::-1] if is_value_first else given
    write = partial(feedback.remember, access=here.access, feedback=[mine])
    result = interleave(write, commits, partial(there.remember, theirs))
    reopened = memories(opener, 1)[0]
    for episodes in (
        here.episodes()[1:],
        there.episodes()[1:],
        reopened.episodes()[1:],
        result.episodes,
    ):
        assert [(each.value, each.rationale) for each in episodes] == [(False, "Sorry first.")]


def test_comment_that_is_forgotten_while_a_value_is_stored_stays_forgotten() -> None:
    here, there = memories(in_memory(), 2)
    here.remember(comment("one", author="bob"))
    there.version()
    write = partial(
        feedback.remember, access=here.access, feedback=[comment("one", None, value=False)]
    )
    said = comment("one", "Sorry first.")
    interleave(write, is_second_look(), lambda: there.forget(there.remember(said).id), after=True)
    assert [(each.value, each.rationale) for each in here.episodes()[1:]] == [(False, None)]


SHARES = [((0, 1, 2, 3), (2, 3)), ((2, 3), (0, 1, 2, 3)), ((0, 1, 2), (1, 2, 3)), ((0, 1), (2, 3))]


def count_lessons(memory: JudgeMemory) -> Counter[str]:
    return Counter(key for guideline in memory.guidelines() for key in guideline.episode_ids)


@pytest.mark.parametrize("text", ["Rule B.", "RULE  a"])
def test_earlier_of_two_concurrent_lessons_from_one_feedback_counts(text: str) -> None:
    for share in [*SHARES, *((item, item) for item, _ in SHARES)]:
        one, other = memories(in_memory(), 2)
        feedback = [comment(f"q{number}") for number in range(4)]
        ids = [episode.id for episode in one.remember(feedback)]
        mine, theirs = ([ids[number] for number in numbers] for numbers in share)
        interleave(
            lesson(one, op("add", *mine, text="Rule A.")),
            commits,
            partial(run_sync, lesson(other, op("add", *theirs, text=text))(SYNC)),
        )
        assert count_lessons(one) == count_lessons(other) == dict.fromkeys({*mine, *theirs}, 1)
        statuses = {episode.id: episode.status for episode in one.episodes()}
        assert {statuses[key] for key in (*mine, *theirs)} == {"distilled"}
        texts = [normalize_text(guideline.text) for guideline in one.guidelines()]
        assert len(set(texts)) == len(texts)


MOST = 60
"""More puts than any of these changes makes."""

CHANGES = [name for name in OPERATIONS if name not in {"purge one", "learn from one"}]
"""All but a purge, see below, and a lesson that changes nothing."""


def reopened(store: InMemoryStore) -> JudgeMemory:
    [memory] = memories(in_memory(store), 1)
    return memory


@pytest.mark.parametrize(
    ("name", "awaits"), [*((name, False) for name in CHANGES), ("say something new", True)]
)
async def test_operation_cut_off_at_each_put(
    monkeypatch: pytest.MonkeyPatch, name: str, *, awaits: bool
) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 2)
    after: Any = None
    for puts in (None, *range(MOST)):
        memory, *_ = start(store := Failing())
        before, store.puts_left = content_of(reopened(store)), puts
        for attempt in (1, 2):
            try:
                if awaits:
                    await OPERATIONS[name](ASYNC, memory.access)
                else:
                    run_sync(OPERATIONS[name](SYNC, memory.access))
            except CutOffError:
                before_cut = content_of(reopened(store))
                assert before_cut in (before, after)
                assert memory.at(memory.version()).missing == []
                continue
            except InvalidInputError as error:
                assert (attempt, before_cut) == (2, after)
                assert "has no" in str(error)  # noqa: PT017 - it was removed at the first attempt
            break
        after = after or content_of(reopened(store))
        assert after != before
        assert content_of(reopened(store)) == after
        check_same([memory], reopened(store))
        if puts is not None and attempt == 1:
            assert puts > 1
            return
    pytest.fail("It never ended.")


class FailingSaver(InMemorySaver):
    """Crashes before it deletes a thread."""

    failing = False

    def delete_thread(self, thread_id: str) -> None:
        if self.failing:
            raise CutOffError
        super().delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)


PURGED: dict[str, Callable[[JudgeMemory, str], Any]] = {
    "live": lambda _memory, _key: None,
    "revised": lambda memory, key: memory.revise(key, {"rationale": "Now nothing is planted."}),
    "forgotten and said again": lambda memory, key: (
        memory.forget(key),
        memory.remember(planted("nothing")),
    ),
}


@pytest.mark.parametrize(
    ("before", "awaits"), [*((name, False) for name in PURGED), ("live", True)]
)
async def test_repeated_purge_completes_after_a_cut_off_at_any_write(
    monkeypatch: pytest.MonkeyPatch, before: str, *, awaits: bool
) -> None:
    monkeypatch.setattr(access, "BATCH_ITEMS", 4)
    every = 1 if before == "live" and not awaits else 3
    for number in (None, *range(0, 2 * MOST, every)):
        memory, one = fill(store := Failing())
        PURGED[before](memory, one.id)
        saver = FailingSaver()
        ask(saver, "episode", planted().episode_id)
        ask(saver, "case", f"zqxwhy, of {planted().example.id}")
        ask(saver, "clean", "Something else altogether.")
        store.puts_left, saver.failing = number, number is None
        is_over = True
        for _ in range(2):
            try:
                if awaits:
                    await memory.aforget(one.id, purge=True, checkpointer=saver)
                else:
                    memory.forget(one.id, purge=True, checkpointer=saver)
            except CutOffError:
                is_over = saver.failing = False
            store.puts_left = None
        assert threads_in(saver) == {"clean"}
        check_clean(memory)
        assert {episode.example.inputs for episode in memory.episodes()} <= {"kept", "other"}
        if is_over:
            assert number is not None
            assert number > 2
            return
    pytest.fail("The purge never ended.")
