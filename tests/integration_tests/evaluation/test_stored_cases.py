"""Cases in memory judged again: flips since a version, and a change to another model."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import (
    Categorical,
    InvalidInputError,
    Judge,
    JudgeMemory,
    create_judge_graph,
    runtime,
)
from memalign_graph.evaluation import Migration, amigrate, flips, migrate
from memalign_graph.evidence import cases
from memalign_graph.io import SYNC, run_sync
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson
from tests.conftest import CRITERION, judgings
from tests.integration_tests.alignment_model import (
    few_shot_cases_in,
    judge_by_guidelines,
    judged_case,
)
from tests.integration_tests.evaluation.support import (
    SCALES,
    Caller,
    Model,
    asked,
    contents,
    memory_of,
    record,
    records,
    remember,
)
from tests.integration_tests.evidence import judging_support as judging
from tests.integration_tests.evidence.judging_support import case, number_of, truth, words
from tests.loopback import LoopbackServer, answer, error

TRUE = [record(number, values=(True,)) for number in range(8)]


def remembered(server: LoopbackServer, feedback: Any, *guidelines: str) -> tuple[JudgeMemory, str]:
    """A memory with some feedback and guidelines, and its version."""
    memory = memory_of(server, feedback, *guidelines)
    return memory, memory.version()


async def test_flip_by_a_guideline(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=judge_by_guidelines(wrong=(4,)))
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    memory.add_guideline("On #good thank them; true if they are thanked.")
    bad = memory.add_guideline("On #bad it is false of cases 1 3 4, always.")
    was = contents(memory)
    found = await call("flips", memory, since=since)
    assert contents(memory) == was
    # The judge was wrong on case 4 before.
    assert [flip.example.inputs for flip in found] == [TRUE[1]["inputs"], TRUE[3]["inputs"]]
    for flip in found:
        assert (flip.guidelines, flip.removed) == ([bad], [])


@pytest.mark.parametrize("adds_another", [False, True])
async def test_flip_by_a_retired_guideline(
    call: Caller, server: LoopbackServer, *, adds_another: bool
) -> None:
    server.responder = Model(judge=judge_by_guidelines(wrong=(2,)))
    guideline = "On #keep it is true of cases 2, which look false."
    memory, _ = remembered(server, TRUE[:5])
    guideline_kept = memory.add_guideline(guideline)
    since = memory.version()
    memory.remove_guideline(guideline_kept.id)
    if adds_another:
        memory.add_guideline("On #good thank them; true if they are thanked.")
    (flip,) = await call("flips", memory, since=since)
    assert [item.text for item in flip.removed] == [guideline]
    assert len(flip.guidelines) == adds_another


async def test_guideline_that_lost_a_source_is_used(call: Caller, server: LoopbackServer) -> None:
    """As by the deployed judge: it waits to be distilled again."""
    server.responder = Model(judge=judge_by_guidelines(wrong=(2,)))
    memory = memory_of(server, TRUE[:5])
    read = {episode.id: episode.word for episode in memory.episodes()[3:]}
    text = "On #keep it is true of cases 2, which look false."
    lesson = GuidelineOperation(action="add", text=text, episode_ids=list(read))
    run_sync(commit_lesson(SYNC, memory.access, [lesson], read))
    memory.forget(next(iter(read)))
    assert [guideline.status for guideline in memory.guidelines()] == ["pending"]
    since = memory.version()
    bad = memory.add_guideline("On #bad it is false of cases 2, always.")
    (flip,) = await call("flips", memory, since=since)
    assert (flip.example.inputs, flip.guidelines) == (TRUE[2]["inputs"], [bad])


async def test_unusable_arguments(call: Caller, server: LoopbackServer) -> None:
    memory, version = remembered(server, TRUE[:5])
    asked(server)
    for since in ("nonsense", None):
        with pytest.raises(InvalidInputError, match="never had the version"):
            await call("flips", memory, since=since)
    calls: dict[str, dict[str, Any]] = {"flips": {"since": version}, "migrate": {}}
    for name, options in calls.items():
        with pytest.raises(InvalidInputError, match=r"^memory: expected a JudgeMemory"):
            await call(name, InMemoryStore(), **options)
    with pytest.raises(InvalidInputError, match="memory: no case has an expert's value"):
        await call("migrate", memory_of(server))
    assert asked(server) == (0, 0)


async def test_unusable_answer_is_requested_again(call: Caller, server: LoopbackServer) -> None:
    follows, cache = judge_by_guidelines(), InMemoryStore()
    server.responder = Model(
        judge=lambda chat: answer("{}") if judged_case(chat) == 1 else follows(chat)
    )
    memory, since = remembered(server, TRUE[:3])
    memory.add_guideline("On #bad it is false of cases 1, always.")
    assert await call("flips", memory, since=since, cache=cache) == []
    server.responder = Model(judge=follows)
    [flip] = await call("flips", memory, since=since, cache=cache)
    assert flip.example.inputs == TRUE[1]["inputs"]


async def test_cases_with_new_feedback_are_not_flips(call: Caller, server: LoopbackServer) -> None:
    """Cases whose feedback changed or got another expert's feedback."""
    server.responder = Model(judge=judge_by_guidelines())
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #bad it is false of cases 0 1 2, always.")
    inputs = TRUE[0]["inputs"]
    first = next(item for item in memory.episodes() if item.example.inputs == inputs)
    memory.revise(first.id, {"value": False, "rationale": "It is late."})
    remember(memory, record(1, values=(True,), author="bob"))
    found = await call("flips", memory, since=since)
    assert [flip.example.inputs for flip in found] == [TRUE[2]["inputs"]]


async def test_embeddings_are_kept(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No API key for default embeddings is needed, and nothing is embedded again."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    memory, since = remembered(server, TRUE[:5])
    memory.add_guideline("On #good thank them; true if they are thanked.")
    asked(server)
    options: dict[str, Any] = {"model": server.chat_model(), "progress": False}
    assert flips(memory, since=since, **options) == []
    assert server.embeddings == []


async def test_memory_whose_scale_lost_a_choice_is_only_read(
    call: Caller, server: LoopbackServer
) -> None:
    """Also if its cases have no vectors of these embeddings."""
    memory = JudgeMemory(InMemoryStore(), SCALES["categorical"], embeddings=server.embedder())
    remember(memory, *records(6, "categorical"))
    since, two = memory.version(), Categorical(choices=("warm", "cold"))
    criterion = memory.criterion.model_copy(update={"scale": two})
    other = server.embedder(model="other")
    memory = JudgeMemory(memory.access.store, criterion, embeddings=other)
    memory.add_guideline("On #good thank them; warm if they are thanked.")
    was, server.responder = contents(memory), Model(judge=lambda chat: "cold")
    assert await call("flips", memory, since=since) == []
    migration = await call("migrate", memory)
    assert (migration.cases, migration.after.value) == (5, 3 / 5)
    assert contents(memory) == was
    assert len(few_shot_cases_in(judgings(server)[-1])) > 0


async def test_seen_cases_get_the_deployed_prompt(call: Caller, server: LoopbackServer) -> None:
    """The prompts are identical, so a reported flip also happens in production."""
    memory, since = remembered(server, TRUE[:5], "On #old name the order; true if it is named.")
    graph: Any = create_judge_graph(CRITERION, **call.models()).compile(store=memory.access.store)
    for episode in memory.episodes():
        graph.invoke({"inputs": episode.example.inputs, "outputs": episode.example.outputs})
    deployed = Counter(chat.text for chat in judgings(server))
    asked(server)
    await call("flips", memory, since=since)
    assert Counter(chat.text for chat in judgings(server)) == deployed


CASES, WRONG = 48, range(0, 24, 4)  # the new model passes what the experts pass, but for some


def belief(judge: Callable[[int], bool]) -> Callable[[int], float]:
    return lambda number: 0.95 if judge(number) else 0.05


def new_says(number: int) -> bool:
    return truth(number) and number not in WRONG


@pytest.fixture
def memory(server: LoopbackServer) -> JudgeMemory:
    """A memory of cases with correct verdicts by the old model."""
    doubles = {
        "old": judging.Judge(value=truth, belief=belief(truth)),
        "new": judging.Judge(value=new_says, belief=belief(new_says)),
    }
    server.responder = lambda chat: doubles[chat.model](chat)
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    memory.remember(words(CASES))
    migrate(memory, apply=True, progress=False, **judge_of(server).options)
    server.chats.clear()
    return memory


def judge_of(server: LoopbackServer, name: str = "old", **options: Any) -> Judge:
    arguments = {"k": 3, "confidence": True, **options}
    model, embeddings = server.chat_model(model=name), server.embedder()
    return Judge(criterion=CRITERION, model=model, embeddings=embeddings, **arguments)


def migrated(memory: JudgeMemory, server: LoopbackServer, **options: Any) -> Migration:
    to = server.chat_model(model="new")
    return migrate(memory, to, progress=False, **judge_of(server).options, **options)


def deployed(memory: JudgeMemory, judge: Judge, number: int = 101) -> dict[str, Any]:
    graph = create_judge_graph(CRITERION, **judge.options).compile(store=memory.access.store)
    judgment: dict[str, Any] = graph.invoke(case(number))["judgment"]
    return judgment


def by_key(memory: JudgeMemory) -> list[Any]:
    return [episode.judgment and episode.judgment.judge_key for episode in memory.episodes()]


def test_no_model_sees_feedback_on_its_case(memory: JudgeMemory, server: LoopbackServer) -> None:
    was = contents(memory)
    migration = migrated(memory, server)
    assert contents(memory) == was
    assert (migration.cases, migration.before.value, migration.after.value) == (CASES, 1, 42 / 48)
    assert migration.difference.value == pytest.approx(-6 / 48)
    assert migration.difference.high is not None
    assert migration.difference.high < 0
    assert len(migration.changed) == len(WRONG)
    turned = {(item.expected, item.before, item.after) for item in migration.changed}
    assert turned == {(True, True, False)}
    usage = {row.judge: row for row in migration.usage if row.purpose == "judge"}
    assert (usage["old"].chat_calls, usage["new"].chat_calls) == (CASES, CASES)
    assert usage["new"].input_tokens > 0
    asked_for = [chat for chat in server.chats if not judging.asks_for_value(chat)]
    assert len(asked_for) == 2 * CASES
    assert all(number_of(chat) not in judging.earlier(chat) for chat in asked_for)
    # It takes 40 decisions with one verdict.
    assert migration.more_labels == {"false": 40 - 30, "true": 40 - 18}


def test_regressed_cases_are_listed_first(memory: JudgeMemory, server: LoopbackServer) -> None:
    memory.remember({**case(0), "value": False, "author": "bob", "given_at": "2026-03-01"})
    memory.remember({**case(0), "value": False, "author": "cy", "given_at": "2026-03-01"})
    migration = migrated(memory, server)
    assert [item.after == item.expected for item in migration.changed] == [False] * 5 + [True]


async def test_applied_verdicts_are_deployed(memory: JudgeMemory, server: LoopbackServer) -> None:
    new, before = judge_of(server, "new"), memory.version()
    old_ids = [episode.judgment and episode.judgment.id for episode in memory.episodes()]
    assert deployed(memory, new)["calibrated_on"] is None
    migration = await amigrate(
        memory,
        server.chat_model(model="new"),
        apply=True,
        progress=False,
        **judge_of(server).options,
    )
    judgment = deployed(memory, new)
    assert {*by_key(memory)} == {migration.judge_key} == {judgment["judge_key"]}
    assert judgment["calibrated_on"] == CASES
    assert judgment["evidence"]["cases"] == CASES
    assert memory.trust().decisions == CASES
    assert {episode.status for episode in memory.episodes()} == {"pending"}  # unchanged
    for old_id, episode in zip(old_ids, memory.episodes(), strict=True):
        assert episode.judgment is not None
        assert episode.judgment.rationale == ""
        assert old_id in episode.verdicts
    memory.rollback(before)
    assert migration.judge_key not in by_key(memory)


def test_changed_prompt_version_needs_a_migration(
    memory: JudgeMemory, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "PROMPT_VERSION", 2)
    judge = judge_of(server)
    assert deployed(memory, judge)["calibrated_on"] is None
    server.chats.clear()
    migration = migrate(memory, apply=True, progress=False, **judge.options)
    assert (migration.before.value, migration.after.value, migration.changed) == (1, 1, [])
    assert {row.judge for row in migration.usage if row.chat_calls} == {"new"}
    assert deployed(memory, judge)["calibrated_on"] == CASES


def test_all_stored_verdicts_are_compared_however_many_the_evidence_counts(
    memory: JudgeMemory, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated(memory, server, apply=True)
    monkeypatch.setattr(cases, "MAX_CASES", 10)  # on the newest the new model makes no mistake
    migration = migrate(memory, progress=False, **judge_of(server, "new").options)
    assert (migration.before.value, migration.after.value) == (42 / 48, 42 / 48)


def test_few_verdicts_of_the_present_judge_do_not_hide_a_fall(
    memory: JudgeMemory, server: LoopbackServer
) -> None:
    new = judge_of(server, "new")
    for number in (100, 101, 105):
        judgment = deployed(memory, new, number)
        memory.remember({**case(number), "value": truth(number), "judgment": judgment})
    migration = migrate(memory, progress=False, **new.options)
    assert (migration.cases, migration.cases_before) == (CASES + 3, CASES)
    assert migration.before.value == 1
    assert migration.difference.value == pytest.approx(-6 / 48)


def test_verdict_of_a_judge_that_was_shown_the_answer_is_not_compared(
    memory: JudgeMemory, server: LoopbackServer
) -> None:
    server.responder = judging.Judge(value=lambda _: False)
    answer = {**case(100), "value": True, "author": "ann"}
    memory.remember(answer)
    memory.remember({**answer, "judgment": deployed(memory, judge_of(server, "new"), 100)})
    options = judge_of(server, "third", confidence=False, decide="verdict").options
    migration = migrate(memory, progress=False, **options)
    assert (migration.cases, migration.cases_before) == (CASES + 1, CASES)
    # Without a confidence all labels of a verdict count; all verdicts are false.
    assert migration.more_labels == {"false": 1}


def test_refused_case_keeps_its_verdict(memory: JudgeMemory, server: LoopbackServer) -> None:
    refused = error(400, "This prompt is not allowed.", code="content_filter")
    double = judging.Judge(
        value=lambda number: refused if number == 7 else new_says(number), belief=belief(new_says)
    )
    server.responder = double
    options, keys = judge_of(server, k=0).options, by_key(memory)
    model = server.chat_model(model="new")
    migration = migrate(memory, model, apply=True, progress=False, **options)
    [why] = migration.failures.values()
    assert "This prompt is not allowed." in why
    changed = [was != now for was, now in zip(keys, by_key(memory), strict=True)]
    assert changed.count(False) == 1


def test_case_without_a_vector_is_migrated(memory: JudgeMemory, server: LoopbackServer) -> None:
    refused = case(1000)
    server.refused_text = refused["inputs"]
    memory.remember({**refused, "value": True})
    migration = migrated(memory, server)
    assert (migration.cases, migration.failures) == (CASES + 1, {})
