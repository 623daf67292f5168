"""Lines that can't be imported: each is named by its number, and nothing is stored."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, InvalidInputError, JudgeMemory, MemAlignError
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, hashed, learn, op, said

Lines = list[dict[str, Any]]


def exported() -> str:
    """A memory of one guideline (line 2), two episodes (3 and 4) and their vectors (5 and 6)."""
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    one, _ = memory.remember([said("one", value=True), said("two")])
    learn(memory, op("add", one, text="Be warm."))
    return memory.export_jsonl()


def with_line(number: int, **fields: Any) -> list[str]:
    lines = [json.loads(line) for line in exported().splitlines()]
    lines[number - 1].update(fields)
    return [json.dumps(line) for line in lines]


def test_an_earlier_versions_export_is_read() -> None:
    lines = [json.loads(line) for line in exported().splitlines()]
    rule = {**lines[1], "superseded_by": None, "reason": None}
    gone = {**rule, "id": "a", "text": "Be cold.", "status": "superseded", "reason": "Newer."}
    blank = {**rule, "id": "b", "text": "", "status": "pending"}
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    given = [lines[0], rule, gone, blank, *lines[2:]]
    assert len(memory.import_jsonl(map(json.dumps, given))) == 2
    assert [(one.text, one.status) for one in memory.guidelines()] == [("Be warm.", "standing")]


def test_an_earlier_versions_memory_is_not_taken_for_an_empty_one() -> None:
    store = InMemoryStore()
    store.put(("memalign", CRITERION.name, "tip"), "tip", {"id": "x"})
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    for call in (memory.guidelines, lambda: memory.remember(said("one"))):
        with pytest.raises(MemAlignError, match="export it with that version"):
            call()


async def refused(bench: Bench, source: Any, problem: str, criterion: Any = CRITERION) -> None:
    """Import where something lies already, and find that nothing has changed."""
    memory = bench.memory(criterion, embeddings=hashed)
    await bench.remember(said("kept"), memory=memory)
    before = await bench.items()
    with pytest.raises(InvalidInputError, match=problem) as caught:
        await bench.do("import_jsonl", source, memory=memory)
    assert "\n" not in str(caught.value)
    assert await bench.items() == before
    assert len(await bench.do("recall", QUERY, memory=memory)) == 1


LINES: list[tuple[int, str, str]] = [
    (3, "prose", "line 3: it is no JSON"),
    (3, '{"type": "episode"', "line 3: it is no JSON"),
    (3, "[1, 2]", "line 3: it is no JSON object"),
    (3, "null", "line 3: it is no JSON object"),
    (3, '"episode"', "line 3: it is no JSON object"),
    (3, "{}", "line 3: its type None is not known"),
    (3, '{"type": "lesson"}', "line 3: its type 'lesson' is not known"),
    (3, '{"type": ["episode"]}', "line 3: its type"),
    (3, '{"type": "episode"}', "line 3: id: is missing"),
    (2, '{"type": "guideline"}', "line 2: id: is missing"),
    (5, '{"type": "vector"}', "line 5: .* is missing"),
    (4, "[" * 100_000, "line 4: "),
    (4, '{"a":' * 100_000, "line 4: "),
    (1, '{"type": "memory", "format": 2}', "line 1: an export begins with"),
    (1, '{"type": "episode"}', "line 1: an export begins with"),
    (1, "", "line 2: an export begins with"),
    (3, '{"type": "memory", "format": 1, "criterion": {"name": "tone"}}', "line 3: "),
]


@pytest.mark.parametrize(("number", "line", "problem"), LINES)
async def test_a_line_that_is_none(near: Bench, number: int, line: str, problem: str) -> None:
    lines = exported().splitlines()
    lines[number - 1] = line
    await refused(near, lines, problem)


NAIVE = "2024-01-01T00:00:00"
FIELDS: list[tuple[int, dict[str, Any], str]] = [
    (1, {"criterion": None}, "line 1: "),
    (1, {"criterion": "tone"}, "line 1: "),
    (1, {"format": "1"}, "line 1: an export begins with"),
    (2, {"text": ""}, "line 2: text: a guideline is a sentence"),
    (2, {"text": "a\x00b"}, "line 2: .*NUL"),
    (2, {"text": "x" * 2_001}, "line 2: text: .* at most 2,000"),
    (2, {"status": "pending", "text": "a\x00b"}, "line 2: .*NUL"),
    (2, {"status": "asleep"}, "line 2: status"),
    (2, {"author": "a\x00b"}, "line 2: .*NUL"),
    (2, {"position": 2**70}, "line 2: .*64 bits"),
    (2, {"position": "first"}, "line 2: position"),
    (2, {"id": ""}, "line 2: .*id"),
    (2, {"id": "\x00"}, "line 2: .*NUL"),
    (2, {"id": "\ud800"}, "line 2: .*surrogate"),
    (2, {"episode_ids": "one"}, "line 2: episode_ids"),
    (2, {"wording": "Be warm."}, "line 2: wording: is not a field that is known here"),
    (3, {"rationale": "a\x00b"}, "line 3: .*NUL"),
    (3, {"rationale": "\ud800"}, "line 3: .*surrogate"),
    (3, {"author": "ann"}, "line 3: id: the episode's id does not fit"),
    (3, {"id": "0" * 32}, "line 3: id: the episode's id does not fit"),
    (3, {"example_id": "0" * 32}, "line 3: id: the episode's id does not fit"),
    (3, {"example": {"inputs": "other", "outputs": "a"}}, "line 3: id: the episode's id does not"),
    (3, {"example": {"inputs": "one"}}, "line 3: example.outputs: is missing"),
    (3, {"example": {"inputs": float("nan"), "outputs": "a"}}, "line 3: .*nan"),
    (3, {"value": "perhaps"}, "line 3: 'perhaps' is not on the scale"),
    (3, {"status": "asleep"}, "line 3: status"),
    (3, {"thread_ids": ["\x00"]}, "line 3: .*NUL"),
    (3, {"given_at": "yesterday"}, "line 3: given_at"),
    (3, {"judgment": {"value": True}}, "line 3: judgment"),
    (5, {"vector": 3}, "line 5: "),
    (5, {"vector": "!!!"}, "line 5: "),
    (5, {"vector": ""}, "line 5: "),
    (5, {"vector": "AAAA"}, "line 5: "),
    (5, {"vector": "AAAAAA=="}, "line 5: "),  # the number zero
    (5, {"vector": "AADAfw=="}, "line 5: "),  # not a number
    (5, {"vector": "AACAPw=="}, "different dimensions"),  # one, and the next has 64
    (5, {"embedder": "\ud800"}, "line 5: .*surrogate"),
    (5, {"embedder": ["small"]}, "line 5: "),
    (5, {"key": ""}, "line 5: "),
    (5, {"key": 5}, "line 5: "),
    (5, {"key": "a\x00"}, "line 5: .*NUL"),
]


@pytest.mark.parametrize(("number", "fields", "problem"), FIELDS)
async def test_a_field_that_can_not_be_used(
    near: Bench, number: int, fields: dict[str, Any], problem: str
) -> None:
    await refused(near, with_line(number, **fields), problem)


@pytest.mark.parametrize("bench", ["sqlite-sync", "aiosqlite-async"], indirect=True)
async def test_in_a_file_too(bench: Bench) -> None:
    await refused(bench, with_line(3, rationale="a\x00b"), "line 3: .*NUL")


async def test_vectors_of_another_dimension_than_those_that_are_there(near: Bench) -> None:
    def short(texts: Any) -> list[list[float]]:
        return [vector[:8] for vector in hashed(texts)]

    short.__qualname__, short.__module__ = hashed.__qualname__, hashed.__module__
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=short)
    memory.remember(said("one"))
    await refused(near, memory.export_jsonl(), r"different dimensions \(8, 64\)")


SOURCES: list[Any] = ["", "\n \n", [], [1], [None], [b"{}"], None, 5, {"type": "memory"}, True]


@pytest.mark.parametrize("source", SOURCES)
async def test_what_is_no_export_at_all(near: Bench, source: Any) -> None:
    await refused(near, source, "export|line 1|source|text")


async def test_another_criterions_export(near: Bench) -> None:
    other = Criterion(name="brevity", instructions="Is it short?")
    await refused(near, exported(), "line 1: it is the memory of 'tone', not of 'brevity'", other)


async def test_half_an_export_is_cut_at_a_line_that_is_named(near: Bench) -> None:
    await refused(near, exported()[:-20], "line 6: it is no JSON")


DATES: list[tuple[int, str]] = [(2, "created_at"), (2, "updated_at"), (3, "given_at"),
                                (3, "created_at"), (3, "updated_at")]  # fmt: skip


@pytest.mark.parametrize(("number", "name"), DATES)
def test_a_date_without_a_zone_is_in_utc(number: int, name: str) -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    memory.remember(said("kept"))
    for _ in range(2):
        memory.import_jsonl(with_line(number, **{name: NAIVE}))
    items = [*memory.episodes(), *memory.guidelines()]
    assert len(items) == 4
    dates = [getattr(item, name, None) for item in items]
    assert datetime.fromisoformat(NAIVE).replace(tzinfo=UTC) in dates or name == "updated_at"


def test_blank_lines_are_passed_over() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    memory.import_jsonl(exported().replace("\n", "\n\n \r\n"))
    assert len(memory.episodes()) == 2


EDITS: list[Callable[[Lines], Lines]] = [
    lambda lines: [*lines[:2], *lines[3:]],  # without the guideline's source
    lambda lines: [lines[0], {**lines[1], "episode_ids": ["nope"]}, *lines[2:]],
]


@pytest.mark.parametrize("edit", EDITS)
def test_no_guideline_names_a_source_that_is_not_there(edit: Callable[[Lines], Lines]) -> None:
    lines = edit([json.loads(line) for line in exported().splitlines()])
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    try:
        memory.import_jsonl([json.dumps(line) for line in lines])
    except InvalidInputError as error:
        assert str(error).startswith("line 2: ")  # noqa: PT017 - one of two ways is right
    there = {one.id for one in memory.episodes()}
    for rule in memory.guidelines():
        assert set(rule.episode_ids) <= there
