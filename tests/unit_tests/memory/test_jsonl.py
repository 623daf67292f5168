"""Export and import as JSON lines: round trips and errors."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, InvalidInputError, JudgeMemory, MemAlignError
from tests.builders import make_judgment
from tests.unit_tests.memory.purging import everything_in
from tests.unit_tests.memory.support import (
    CRITERION,
    EVERY_STORE,
    QUERY,
    Bench,
    comment,
    hashed,
    learn,
    op,
)

VERDICT = make_judgment(rationale="Schön.")
ODD = 'Zeile 1\nZeile 2\r\n\u2028\u2029\u0085\x1c\x1e „ß“ 🙂 \\n "quoted" \t'


async def fill(bench: Bench) -> None:
    """A memory with every kind of item."""
    episode, two, three = await bench.remember(
        comment("one", ODD, author="Jürgen", id="7", thread_id="t", value=False, judgment=VERDICT),
        comment({"frage": ["zwei", 2.5, None]}, "Zu kühl.", outputs={"text": ODD}),
        comment("three", None, value=True, author="ann"),
    )
    await bench.learn(
        op("add", episode, two, text="Loses a source."),
        op("add", two, text="Stays."),
        op("add", three, text="Is retired."),
    )
    *_, old = await bench.do("guidelines")
    [four] = await bench.remember(comment("four"))
    await bench.learn(op("retire", four, guideline_id=old.id, text="Takes its place."))
    await bench.do("add_guideline", "Größe zählt.", author="ann")
    [gone] = await bench.remember(comment("gone"))
    await bench.do("forget", [episode.id, gone.id])
    await bench.remember(comment("one", ODD, author="Jürgen", id="7", judgment=VERDICT))


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]


@EVERY_STORE
async def test_round_trip_is_exact(bench: Bench) -> None:
    await fill(bench)
    text = await bench.do("export_jsonl")
    statuses = [line["status"] for line in lines_of(text) if line["type"] == "guideline"]
    assert sorted(statuses) == ["pending", "standing", "standing", "standing"]
    for feedback in ("Größe zählt.", "„ß“ 🙂", "Jürgen", "Zu kühl."):
        assert feedback in text
    assert "Is retired." not in text
    kinds = [line["type"] for line in lines_of(text)]
    assert kinds == [
        "memory", *["guideline"] * 4, *["episode"] * 4, "repeated", *["vector"] * 4
    ]  # fmt: skip
    bench.embedded()

    elsewhere = bench.memory(namespace=("another", "place"))
    imported = await bench.do("import_jsonl", text, memory=elsewhere, author="eve")
    [commit] = await bench.do("history", memory=elsewhere)
    assert (commit.reason, commit.author, commit.guidelines.added) == ("import", "eve", 4)
    await bench.do("import_jsonl", text, memory=elsewhere)  # no further change
    assert len(await bench.do("history", memory=elsewhere)) == 1
    assert await bench.do("export_jsonl", memory=elsewhere) == text
    assert await bench.do("version", memory=elsewhere) == await bench.do("version")
    for name in ("episodes", "guidelines"):
        assert await bench.do(name, memory=elsewhere) == await bench.do(name)
    assert {item.id for item in imported} == {episode.id for episode in await bench.do("episodes")}
    recalled = await bench.do("recall", QUERY, k=9, memory=elsewhere)
    assert recalled == await bench.do("recall", QUERY, k=9)
    assert len(bench.embedded()) == 2  # the question, once for each memory


async def test_importing_a_table_into_an_imported_memory_withdraws_nothing(bench: Bench) -> None:
    table = [
        comment(name, "Too cold.", author="ann") for name in ("revised", "forgotten", "purged")
    ]
    revised, forgotten, purged = await bench.remember(*table)
    await bench.do("revise", revised.id, {"rationale": "It is fine."})
    await bench.do("forget", forgotten.id)
    await bench.do("revise", purged.id, {"rationale": "Too long."})
    await bench.do("forget", purged.id, purge=True)
    text = await bench.do("export_jsonl")
    assert "Too cold." not in text
    # A hash confirms a guess.
    assert (purged.id in text, purged.word in text) == (False, False)
    elsewhere = bench.memory(namespace=("another", "place"))
    await bench.do("import_jsonl", text, memory=elsewhere)
    await bench.do("remember", table[:2], memory=elsewhere)
    [episode] = await bench.do("episodes", memory=elsewhere)
    assert episode.rationale == "It is fine."
    assert await bench.do("export_jsonl", memory=elsewhere) == text


async def test_export_to_a_file_and_import(near: Bench, tmp_path: Path) -> None:
    await fill(near)
    path = tmp_path / "memory.jsonl"
    text = await near.do("export_jsonl", path)
    assert path.read_text(encoding="utf-8") == text
    lines = (f"{line}\r\n" for line in text.split("\n"))
    marked = tmp_path / "marked.jsonl"
    marked.write_text(text, encoding="utf-8-sig")
    marked_text = marked.read_text(encoding="utf-8")
    assert marked_text == f"\ufeff{text}"
    sources = (path, text, text.split("\n"), lines, marked, marked_text, marked_text.split("\n"))
    for number, source in enumerate(sources):
        memory = near.memory(namespace=f"copy {number}")
        memory.import_jsonl(source)
        assert memory.export_jsonl() == text
    assert near.memory().export_jsonl(str(path)) == text


async def test_failed_export_keeps_the_earlier_file(near: Bench, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, link = tmp_path / "memory.jsonl", tmp_path / "link"
    link.symlink_to(path)
    await near.remember(comment("one"))
    text = await near.do("export_jsonl", link)
    path.chmod(0o600)
    await fill(near)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 10, before[1]))  # as a full disk
    try:
        with pytest.raises(InvalidInputError, match=r"link can.t be written: File too large"):
            await near.do("export_jsonl", link)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text(encoding="utf-8") == text
    assert sorted(os.listdir(tmp_path)) == ["link", "memory.jsonl"]  # noqa: PTH208
    text = await near.do("export_jsonl", link)
    assert (path.read_text(encoding="utf-8"), link.is_symlink()) == (text, True)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["a\0b", "x" * 5_000, "x" * 250, "\ud800"])
def test_export_to_a_name_that_no_file_can_have(
    memory: JudgeMemory, tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"path: .* can't be written: .*\."):
        memory.export_jsonl(tmp_path / name)
    assert not list(tmp_path.iterdir())


async def test_newer_feedback_is_kept_on_both_sides(bench: Bench) -> None:
    [episode, two] = await bench.remember(comment("one", "First."), comment("two", "First."))
    guideline = await bench.do("add_guideline", "First.")
    there = bench.memory(namespace="there")
    await bench.do("import_jsonl", await bench.do("export_jsonl"), memory=there)

    await bench.do("revise", episode.id, {"rationale": "Newer here."})
    await bench.do("edit_guideline", guideline.id, "Newer here.")
    await bench.do("revise", two.id, {"rationale": "Newer there."}, memory=there)
    await bench.do("import_jsonl", await bench.do("export_jsonl", memory=there))
    await bench.do("import_jsonl", await bench.do("export_jsonl"), memory=there)
    for memory in (None, there):
        comments = {e.id: e.rationale for e in await bench.do("episodes", memory=memory)}
        assert comments == {episode.id: "Newer here.", two.id: "Newer there."}
        [line] = await bench.do("guidelines", memory=memory)
        assert line.text == "Newer here."
    assert await bench.do("version") == await bench.do("version", memory=there)


async def test_older_export_does_not_restore_guidelines_of_replaced_feedback(bench: Bench) -> None:
    episode, two = await bench.remember(comment("one", "Old."), comment("two"))
    await bench.learn(
        op("add", episode, text="Old rule."), op("add", episode, two, text="Of both."),
        op("add", two, text="Stays."),
    )  # fmt: skip
    text = await bench.do("export_jsonl")
    await bench.do("revise", episode.id, {"rationale": "New."})
    await bench.learn(op("add", episode, text="New rule."))
    contents = await bench.contents()
    await bench.do("import_jsonl", text)
    assert await bench.guidelines() == {
        "New rule.": {episode.id}, "Of both.": {two.id}, "Stays.": {two.id},
    }  # fmt: skip
    assert await bench.contents() == contents


def test_imported_guideline_with_a_replaced_source_is_distilled_again(memory: JudgeMemory) -> None:
    one, two = memory.remember([comment("one"), comment("two")])
    learn(memory, op("add", one, two, text="Of both."))
    other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    other.remember(comment("one", "Newer words."))
    other.import_jsonl(memory.export_jsonl())
    [guideline] = other.guidelines()
    assert (guideline.text, guideline.status) == ("Of both.", "pending")
    assert guideline.episode_ids == [two.id]


def test_imported_newer_feedback_is_distilled_once(memory: JudgeMemory) -> None:
    episode = memory.remember(comment("one", "Old words."))
    learn(memory, op("add", episode, text="Old rule."))
    other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    other.import_jsonl(memory.export_jsonl())
    learn(other, op("add", other.revise(episode.id, {"rationale": "New words."}), text="New rule."))
    memory.import_jsonl(other.export_jsonl())
    assert [each.status for each in memory.episodes()] == ["distilled"]
    assert memory.version() == other.version()


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_guideline_with_a_text_of_this_memory_is_left_out(
    memory: JudgeMemory, *, is_by_hand: bool
) -> None:
    own = memory.add_guideline("Say sorry.")
    other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    if is_by_hand:
        other.add_guideline("Say  sorry")
    else:
        learn(other, op("add", other.remember(comment("one")), text="Say sorry."))
    memory.import_jsonl(other.export_jsonl())
    assert memory.guidelines() == [own]


def test_guideline_that_an_expert_reworded_keeps_these_words(memory: JudgeMemory) -> None:
    learn(memory, op("add", memory.remember(comment("one")), text="Say sorry."))
    other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    other.import_jsonl(memory.export_jsonl())
    [rule] = memory.guidelines()
    edited = memory.edit_guideline(rule.id, "Say sorry once.")
    learn(other, op("add", other.remember(comment("two")), text="Say sorry."))
    memory.import_jsonl(other.export_jsonl())
    assert memory.guidelines() == [edited]
    other.import_jsonl(memory.export_jsonl())
    assert [guideline.text for guideline in other.guidelines()] == ["Say sorry once."]


def test_vectors_of_other_texts_are_left_out(memory: JudgeMemory) -> None:
    lines = [line for line in exported().splitlines() if '"inputs": "two"' not in line]
    memory.import_jsonl(lines)
    vectors = [each for each in everything_in(memory.access.store) if "vectors" in each.namespace]
    assert len(vectors) == len(memory.episodes()) == 1


async def test_purged_feedback_can_be_imported_again(bench: Bench) -> None:
    [episode, _] = await bench.remember(comment("one"), comment("two"))
    await bench.learn(op("add", episode, text="Of one."))
    version, contents = await bench.do("version"), await bench.contents()
    text = await bench.do("export_jsonl")
    await bench.do("forget", episode.id, purge=True)
    await bench.do("import_jsonl", text)
    assert await bench.contents() == contents
    assert await bench.do("version") == version


def test_feedback_given_again_after_a_purge_and_replaced_stays_replaced(
    memory: JudgeMemory,
) -> None:
    purged = memory.remember(comment("one", "Purged."))
    memory.forget(purged.id, purge=True)
    table = [comment("one", "In the table.")]
    memory.remember(table)
    memory.revise(purged.id, {"rationale": "Newest."})
    text = memory.export_jsonl()
    assert purged.word not in text
    other = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    other.import_jsonl(text)
    other.remember(table)
    assert [episode.rationale for episode in other.episodes()] == ["Newest."]


@cache
def exported() -> str:
    """An export of one guideline (line 2), two episodes (3, 4) and their vectors (5, 6)."""
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    episode, _ = memory.remember([comment("one", value=True), comment("two")])
    learn(memory, op("add", episode, text="Be warm."))
    return memory.export_jsonl()


def test_export_of_an_earlier_release_is_accepted(memory: JudgeMemory) -> None:
    lines = [json.loads(line) for line in exported().splitlines()]
    guideline = {**lines[1], "superseded_by": None, "reason": None}
    gone = {**guideline, "id": "a", "text": "Be cold.", "status": "superseded", "reason": "Newer."}
    blank = {**guideline, "id": "b", "text": "", "status": "pending"}
    changed_lines = [lines[0], guideline, gone, blank, *lines[2:]]
    assert len(memory.import_jsonl(map(json.dumps, changed_lines))) == 2
    [left] = memory.guidelines()
    assert (left.text, left.status) == ("Be warm.", "standing")


def test_memory_of_an_earlier_release_is_not_mistaken_for_an_empty_one() -> None:
    store = InMemoryStore()
    store.put(("memalign", CRITERION.name, "tip"), "tip", {"id": "x"})
    memory = JudgeMemory(store, CRITERION, embeddings=hashed)
    for call in (memory.guidelines, lambda: memory.remember(comment("one"))):
        with pytest.raises(MemAlignError, match="export it with that version"):
            call()


def check_refused(memory: JudgeMemory, source: Any, problem: str) -> None:
    """Check that a failed import changes nothing."""
    memory.remember(comment("kept"))
    before = everything_in(memory.access.store)
    with pytest.raises(InvalidInputError, match=problem) as caught:
        memory.import_jsonl(source)
    assert "\n" not in str(caught.value)
    assert everything_in(memory.access.store) == before


WRONG: list[tuple[int, str | dict[str, Any], str]] = [
    (3, "prose", "line 3: it is not JSON"),
    (3, "[1, 2]", "line 3: it is not a JSON object"),
    (3, "{}", "line 3: unknown type None"),
    (3, '{"type": "episode"}', "line 3: id: is missing"),
    (5, '{"type": "vector"}', "line 5: .* is missing"),
    (4, "[" * 100_000, "line 4: "),
    (1, '{"type": "memory", "format": 2}', "line 1: an export begins with"),
    (1, "", "line 2: an export begins with"),
    (3, '{"type": "memory", "format": 1, "criterion": {"name": "tone"}}', "line 3: "),
    (2, {"text": ""}, "line 2: text: expected a guideline as a sentence"),
    (2, {"text": "x" * 2_001}, "line 2: text: .* at most 2,000"),
    (2, {"id": ""}, "line 2: id: expected text, not empty"),
    (2, {"question": "x" * 2_001}, "line 2: question: over 300 characters. Shorten it"),
    (2, {"position": 2**70}, "line 2: .*64 bits"),
    (2, {"wording": "Be warm."}, "line 2: wording: is not a known field"),
    (3, {"rationale": "\ud800"}, "line 3: .*surrogate"),
    (3, {"author": "ann"}, "line 3: id: the episode's id does not match"),
    (3, {"example": {"inputs": "other", "outputs": "a"}}, "line 3: id: the episode's id does not"),
    (3, {"example": {"inputs": float("nan"), "outputs": "a"}}, "line 3: .*nan"),
    (3, {"value": "perhaps"}, "line 3: 'perhaps' is not on the scale"),
    (3, {"value": 1}, "line 3: 1 is not on the scale"),  # the lowest of five grades, perhaps
    (3, {"value": None, "rationale": None}, "line 3: the episode has neither a value nor"),
    (5, {"vector": "!!!"}, "line 5: "),
    (5, {"vector": "AAAAAA=="}, "line 5: "),  # the number zero
    (5, {"vector": "AACAPw=="}, "different dimensions"),  # one, and the next has 64
]
"""By the number of a line: what stands there, or changed fields of it."""


def test_unusable_line(memory: JudgeMemory) -> None:
    for number, change, problem in WRONG:
        lines = exported().splitlines()
        fields = {} if isinstance(change, str) else {**json.loads(lines[number - 1]), **change}
        lines[number - 1] = change if isinstance(change, str) else json.dumps(fields)
        check_refused(memory, lines, problem)
    check_refused(memory, exported()[:-20], "line 6: it is not JSON")


def test_unusable_vectors_of_one_of_two_embedders(memory: JudgeMemory) -> None:
    *lines, vector, other = exported().splitlines()
    short = {**json.loads(vector), "embedder": "other", "vector": "AACAPw=="}
    longer = {**json.loads(other), "embedder": "other"}
    source = [*lines, vector, other, json.dumps(short), json.dumps(longer)]
    check_refused(memory, source, r"of the embeddings other have different dimensions \(1, 64\)")


SOURCES: list[Any] = [
    "",
    "\ufeff",
    "\n \n",
    [],
    [1],
    [None],
    [b"{}"],
    None,
    5,
    {"type": "memory"},
    True,
]


def test_files_that_are_not_exports_of_this_memory(memory: JudgeMemory) -> None:
    for source in SOURCES:
        check_refused(memory, source, "export|line 1|source|text")
    for source in ("a\0b", "\ud800", "x" * 5_000, f"[]\n{exported()}", Path("no\nfile")):
        check_refused(memory, source, "source: .{1,300} can't be read: .*Give the text of an")
    brevity = Criterion(name="brevity", instructions="Is it short?")
    other = JudgeMemory(InMemoryStore(), brevity, embeddings=hashed)
    check_refused(
        other, exported(), "line 1: it is the memory of criterion 'tone', not of 'brevity'"
    )

    def short(texts: Any) -> list[list[float]]:
        return [vector[:8] for vector in hashed(texts)]

    short.__qualname__, short.__module__ = hashed.__qualname__, hashed.__module__
    small = JudgeMemory(InMemoryStore(), CRITERION, embeddings=short)
    small.remember(comment("one"))
    check_refused(memory, small.export_jsonl(), r"different dimensions \(8, 64\)")
