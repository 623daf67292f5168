"""Every operation with every other in its midst: whatever comes of it holds together."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Episode, Guideline, InvalidInputError, JudgeMemory
from memalign_graph.io import BLOCKING, IO, run
from memalign_graph.memory import checking, history, learning, operations, portable, purge
from tests.unit_tests.memory.purging import everything_in, left_in
from tests.unit_tests.memory.stores import Asked, Meanwhile, commits, in_memory
from tests.unit_tests.memory.support import CRITERION, hashed, op, said

ANN = "zqxann"
EMPTY = "0" * 32


@dataclass
class Case:
    """One memory as two processes see it, and what was in it before either did anything."""

    here: JudgeMemory
    there: JudgeMemory
    cold: JudgeMemory
    episodes: dict[str, Episode]
    rules: dict[str, Guideline]
    version: str
    exported: str

    def words(self, *names: str) -> dict[str, str]:
        return {self.episodes[name].id: self.episodes[name].word for name in names}


@cache
def begun() -> tuple[InMemoryStore, Case]:
    """The memory that each case begins with, made once."""
    store = InMemoryStore()
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    one, two, three = memory.remember(
        [said("one", "zqxone", author=ANN), said("two", "Two."), said("three", "Three.")]
    )
    rules = [
        op("add", one, text="Of zqxone."),
        op("add", one, two, text="Of zqxone and two.", question="Is it zqxone?"),
        op("add", two, text="Of two."),
        op("add", two, text="Old."),
    ]
    run(learning.learn(BLOCKING, memory.access, rules, {one.id: one.word, two.id: two.word}))
    known = {rule.text: rule for rule in memory.guidelines()}
    retire = op("retire", guideline_id=known["Old."].id, superseded_by=known["Of two."].id)
    run(learning.learn(BLOCKING, memory.access, [retire], {}))
    version, exported = memory.version(), memory.export_jsonl()
    memory.remember(said("four"))
    episodes = {"one": one, "two": two, "three": three}
    return store, Case(memory, memory, memory, episodes, known, version, exported)


def start() -> Case:
    store, case = begun()
    opener = in_memory()
    here, there, cold = (JudgeMemory(opener(), CRITERION, embeddings=hashed) for _ in range(3))
    data = here.access.store._data  # type: ignore[attr-defined]
    data.update({namespace: dict(items) for namespace, items in store._data.items()})
    here.version()
    there.version()
    return replace(case, here=here, there=there, cold=cold)


Doing = Callable[[IO, JudgeMemory, Case], Coroutine[Any, Any, Any]]


def forget(name: str) -> Doing:
    return lambda io, memory, case: operations.forget(
        io, memory.access, operations.Selection(episode_ids=[case.episodes[name].id])
    )


def revise(name: str, word: str) -> Doing:
    return lambda io, memory, case: operations.revise(
        io, memory.access, case.episodes[name].id, {"rationale": word}
    )


def learn(
    name: str | None, action: str, rule: str | None = None, by: str | None = None, **fields: Any
) -> Doing:
    async def doing(io: IO, memory: JudgeMemory, case: Case) -> Any:
        change = op(
            action,
            *([case.episodes[name]] if name else []),
            guideline_id=case.rules[rule].id if rule else None,
            superseded_by=case.rules[by].id if by else None,
            **fields,
        )
        words = case.words(*([name] if name else []))
        return await learning.learn(io, memory.access, [change], words)

    return doing


DOING: dict[str, Doing] = {
    "say another word": lambda io, memory, _: operations.remember(
        io, memory.access, [said("one", "Word 2.", author=ANN)]
    ),
    "say something new": lambda io, memory, _: operations.remember(
        io, memory.access, [said("five")]
    ),
    "revise one": revise("one", "Word 3."),
    "revise two": revise("two", "Word 4."),
    "forget one": forget("one"),
    "forget two": forget("two"),
    "purge one": lambda io, memory, case: purge.purge(
        io, memory.access, operations.Selection(episode_ids=[case.episodes["one"].id]), None
    ),
    "learn from one": learn("one", "add", text="Again of zqxone."),
    "learn from three": learn("three", "add", text="Of three."),
    "reword of two": learn("three", "revise", "Of two.", text="Of two and three."),
    "merge": learn(None, "merge", "Of two.", by="Of zqxone and two."),
    "merge the other way": learn(None, "merge", "Of zqxone and two.", by="Of two."),
    "retire": learn(None, "retire", "Of two.", by="Of zqxone."),
    "word by hand": lambda io, memory, case: operations.edit_guideline(
        io, memory.access, case.rules["Of two."].id, "By hand.", author=None
    ),
    "take away by hand": lambda io, memory, case: operations.remove_guideline(
        io, memory.access, case.rules["Of two."].id, author=None
    ),
    "write by hand": lambda io, memory, _: operations.add_guideline(
        io, memory.access, "New.", author=None
    ),
    "ask": lambda io, memory, case: checking.note_questions(
        io, memory.access, {text: f"{text}?" for text in case.rules}
    ),
    "check": lambda io, memory, case: checking.note_answers(
        io, memory.access, {"q": {case.episodes["one"].example_id: 0.5}}
    ),
    "roll back to nothing": lambda io, memory, _: history.rollback(io, memory.access, EMPTY),
    "roll back": lambda io, memory, case: history.rollback(io, memory.access, case.version),
    "import": lambda io, memory, case: portable.import_jsonl(
        io, memory.access, case.exported.split("\n")
    ),
}

BRINGS_ONE = {"say another word", "revise one", "import", "roll back"}
TAKES_ONE = {"forget one", "purge one", "roll back to nothing"}
TAKES_RULE = {"forget two", "revise two", "take away by hand", "roll back to nothing", "roll back"}


READS = 6
"""How many calls go before an operation is in the midst of its reading."""


def carry_out(
    operation: Doing, memory: JudgeMemory, case: Case, other: Callable[[], object], moment: Any
) -> None:
    """Carry an operation out, and the other in its midst, or at one of its calls, or after it."""
    step = READS if moment == "while it reads" else moment
    calls = count(1)

    def when(asked: Asked) -> bool:
        return next(calls) == step if isinstance(step, int) else commits(asked)

    meanwhile = Meanwhile(when, other)
    run(operation(meanwhile, memory, case))
    if not meanwhile.done:
        other()


def check_whole(case: Case) -> None:
    """All see the same, its version is found, and nothing in it points nowhere."""
    version = case.cold.version()
    assert case.here.version() == case.there.version() == version
    then = case.there.at(version)
    rules = case.here.guidelines()
    assert then.missing == []
    assert (then.episodes, then.guidelines) == (case.here.episodes(), rules)
    answers = case.cold.access.view.answers()
    assert case.here.access.view.answers() == case.there.access.view.answers() == answers
    episodes = {one.id for one in then.episodes}
    for rule in rules:
        assert set(rule.episode_ids) <= episodes, rule


def check_promises(case: Case, both: set[str]) -> None:
    episodes = {one.id: one for one in case.here.episodes()}
    rules = case.here.guidelines()
    one, rule = case.episodes["one"], case.rules["Of two."]
    if "purge one" in both and not both & {"import", "roll back"}:
        assert left_in(everything_in(case.here.access.store), "zqxone") == []
        if "say another word" not in both and "revise one" not in both:
            assert left_in(everything_in(case.here.access.store), one.example_id) == []
    if both & TAKES_ONE and not both & BRINGS_ONE:
        assert one.id not in episodes
    for doing, word in (("say another word", "Word 2."), ("revise one", "Word 3.")):
        others = both - {doing}
        if doing in both and not others & (TAKES_ONE | BRINGS_ONE - {"import"}):
            assert episodes[one.id].rationale == word
            assert not any(one.id in each.episode_ids for each in rules if each.text)
    if "word by hand" in both and not both & TAKES_RULE:
        assert "By hand." in {each.text for each in rules if each.status == "standing"}
    if "take away by hand" in both and not both & {"import", "roll back", "word by hand"}:
        assert rule.id not in {each.id for each in rules if each.status == "standing"}
    if "learn from three" in both and not both & {"roll back", "roll back to nothing"}:
        three = case.episodes["three"].id
        taught = any(three in each.episode_ids for each in rules)
        assert taught or episodes[three].status == "pending"


def _do(doing: Doing, case: Case) -> None:
    run(doing(BLOCKING, case.there, case))


@pytest.mark.parametrize("moment", ["while it reads", "before its commit"])
@pytest.mark.parametrize("name", DOING)
def test_with_every_other_in_its_midst(name: str, moment: str) -> None:
    problems = []
    for other, doing in DOING.items():
        case = start()
        beside = partial(_do, doing, case)
        try:
            carry_out(DOING[name], case.here, case, beside, moment)
        except InvalidInputError as error:
            assert "names no" in str(error)  # noqa: PT017 - what it speaks of is gone meanwhile
            continue
        try:
            check_whole(case)
            check_promises(case, {name, other})
            case.here.remember(said("one more"))
            check_whole(case)
        except (AssertionError, InvalidInputError) as error:
            problems.append(f"{other}: {str(error).splitlines()[0][:200]}")
    assert problems == []


AT_EVERY_STEP = [
    ("roll back", "forget one"),
    ("forget one", "learn from three"),
    ("purge one", "say something new"),
    ("reword of two", "word by hand"),
    ("import", "revise one"),
]


@pytest.mark.parametrize(("name", "other"), AT_EVERY_STEP)
def test_at_every_step(name: str, other: str) -> None:
    for step in range(1, 35):
        case = start()
        beside = partial(_do, DOING[other], case)
        carry_out(DOING[name], case.here, case, beside, step)
        check_whole(case)
        check_promises(case, {name, other})
