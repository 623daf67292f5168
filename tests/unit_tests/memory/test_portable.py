"""Export and import: a memory moves whole, as text people can read; nothing is embedded again."""

import json
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore

from memalign_graph import Criterion, JudgeMemory, Judgment, Numeric
from tests.loopback import LoopbackServer
from tests.unit_tests.memory.support import CRITERION, QUERY, Bench, hashed, learn, op, said

VERDICT = Judgment(
    criterion="tone", example_id="x", value=True, rationale="Schön.", memory_version="0"
)
ODD = 'Zeile 1\nZeile 2\r\n\u2028\u2029\u0085\x1c\x1e „ß“ 🙂 \\n "quoted" \t'


async def fill(bench: Bench) -> None:
    """A memory with something of every kind."""
    one, two, three = await bench.remember(
        said("one", ODD, author="Jürgen", id="7", thread_id="t", value=False, judgment=VERDICT),
        said({"frage": ["zwei", 2.5, None]}, "Zu kühl.", outputs={"text": ODD}),
        said("three", None, value=True, author="ann"),
    )
    await bench.learn(
        op("add", one, two, text="Loses a source."),
        op("add", two, text="Stays."),
        op("add", three, text="Is retired."),
    )
    *_, old = await bench.do("guidelines")
    [four] = await bench.remember(said("four"))
    await bench.learn(op("retire", four, guideline_id=old.id, text="Takes its place."))
    await bench.do("add_guideline", "Größe zählt.", author="ann")
    await bench.do("forget", one.id)
    await bench.remember(said("one", ODD, author="Jürgen", id="7", judgment=VERDICT))


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]


async def test_a_round_trip_is_exact(bench: Bench) -> None:
    await fill(bench)
    text = await bench.do("export_jsonl")
    statuses = [line["status"] for line in lines_of(text) if line["type"] == "guideline"]
    assert sorted(statuses) == ["pending", "standing", "standing", "standing"]
    bench.embedded()

    elsewhere = bench.memory(namespace=("another", "place"))
    imported = await bench.do("import_jsonl", text, memory=elsewhere)
    assert await bench.do("export_jsonl", memory=elsewhere) == text
    assert await bench.do("version", memory=elsewhere) == await bench.do("version")
    for name in ("episodes", "guidelines"):
        assert await bench.do(name, memory=elsewhere) == await bench.do(name)
    assert {one.id for one in imported} == {one.id for one in await bench.do("episodes")}
    found = await bench.do("recall", QUERY, k=9, memory=elsewhere)
    assert found == await bench.do("recall", QUERY, k=9)
    assert len(bench.embedded()) == 2  # the question, once for each memory


async def test_into_another_store_nothing_is_embedded(bench: Bench) -> None:
    await fill(bench)
    text = await bench.do("export_jsonl")
    bench.embedded()
    other = Bench(bench.server, InMemoryStore(), bench.awaits)
    await other.do("import_jsonl", text)
    assert await other.contents() == await bench.contents()
    [nearest] = await other.do("recall", (await other.do("episodes"))[0].example, k=1)
    assert nearest.similarity > 0.999
    assert bench.embedded() == []
    [commit] = await other.do("history")
    assert (commit.reason, commit.episodes.added, commit.guidelines.added) == ("import", 4, 4)


async def test_importing_twice_changes_nothing(bench: Bench) -> None:
    await fill(bench)
    text = await bench.do("export_jsonl")
    before = await bench.contents()
    commits = len(await bench.do("history"))
    for _ in range(2):
        await bench.do("import_jsonl", text)
    assert await bench.contents() == before
    assert len(await bench.do("history")) == commits
    assert await bench.do("export_jsonl") == text


async def test_people_can_read_it(bench: Bench) -> None:
    await fill(bench)
    text = await bench.do("export_jsonl")
    for words in ("Größe zählt.", "„ß“ 🙂", "Jürgen", "Zu kühl.", "Loses a source.", "Stays."):
        assert words in text
    assert "Is retired." not in text
    assert "\\u" not in text.replace("\\u001c", "").replace("\\u001e", "")
    kinds = [line["type"] for line in lines_of(text)]
    assert kinds == ["memory", *["guideline"] * 4, *["episode"] * 4, *["vector"] * 4]
    assert text.endswith("}\n")


async def test_by_way_of_a_file(near: Bench, tmp_path: Path) -> None:
    await fill(near)
    path = tmp_path / "memory.jsonl"
    text = await near.do("export_jsonl", path)
    assert path.read_text(encoding="utf-8") == text
    for number, source in enumerate((path, text, text.split("\n"), iter(lines_as_text(text)))):
        memory = near.memory(namespace=f"copy {number}")
        memory.import_jsonl(source)
        assert memory.export_jsonl() == text
    with path.open(encoding="utf-8") as file:
        memory = near.memory(namespace="from an open file")
        memory.import_jsonl(file)
        assert memory.export_jsonl() == text
    assert near.memory().export_jsonl(str(path)) == text


def lines_as_text(text: str) -> list[str]:
    return [f"{line}\r\n" for line in text.split("\n")]


async def test_the_newer_stays_on_both_sides(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one", "First."), said("two", "First."))
    rule = await bench.do("add_guideline", "First.")
    there = bench.memory(namespace="there")
    await bench.do("import_jsonl", await bench.do("export_jsonl"), memory=there)

    await bench.do("revise", one.id, {"rationale": "Newer here."})
    await bench.do("edit_guideline", rule.id, "Newer here.")
    await bench.do("revise", two.id, {"rationale": "Newer there."}, memory=there)
    await bench.do("import_jsonl", await bench.do("export_jsonl", memory=there))
    await bench.do("import_jsonl", await bench.do("export_jsonl"), memory=there)
    for memory in (None, there):
        words = {e.id: e.rationale for e in await bench.do("episodes", memory=memory)}
        assert words == {one.id: "Newer here.", two.id: "Newer there."}
        [standing] = await bench.do("guidelines", memory=memory)
        assert standing.text == "Newer here."
    assert await bench.do("version") == await bench.do("version", memory=there)


async def test_a_newer_word_takes_the_old_words_rules_away(bench: Bench) -> None:
    [one, two] = await bench.remember(said("one", "Old."), said("two"))
    await bench.learn(op("add", one, text="Old rule."), op("add", one, two, text="Of both."))
    there = bench.memory(namespace="there")
    await bench.do("import_jsonl", await bench.do("export_jsonl"), memory=there)
    await bench.do("revise", one.id, {"rationale": "New."}, memory=there)
    await bench.do("import_jsonl", await bench.do("export_jsonl", memory=there))
    [pending] = await bench.do("guidelines")
    assert (pending.text, pending.status) == ("Of both.", "pending")
    assert pending.episode_ids == [two.id]


async def test_an_older_export_does_not_bring_back_the_old_words_rules(bench: Bench) -> None:
    one, two = await bench.remember(said("one", "Old."), said("two"))
    await bench.learn(
        op("add", one, text="Old rule."), op("add", one, two, text="Of both."),
        op("add", two, text="Stays."),
    )  # fmt: skip
    text = await bench.do("export_jsonl")
    await bench.do("revise", one.id, {"rationale": "New."})
    await bench.learn(op("add", one, text="New rule."))
    contents = await bench.contents()
    await bench.do("import_jsonl", text)
    assert await bench.guidelines() == {
        "New rule.": {one.id}, "Of both.": {two.id}, "Stays.": {two.id},
    }  # fmt: skip
    assert await bench.contents() == contents


def test_what_the_newer_word_taught_comes_along() -> None:
    here, there = (
        JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed) for _ in ("here", "there")
    )
    one = here.remember(said("one", "Old."))
    learn(here, op("add", one, text="Old rule."))
    there.import_jsonl(here.export_jsonl())
    there.revise(one.id, {"rationale": "New."})
    learn(there, op("add", one, text="New rule."))
    here.import_jsonl(there.export_jsonl())
    assert [(rule.text, rule.episode_ids) for rule in here.guidelines()] == [
        ("New rule.", [one.id])
    ]


async def test_an_edited_line_that_is_not_newer_changes_nothing(near: Bench) -> None:
    await fill(near)
    contents = await near.contents()
    text = (await near.do("export_jsonl")).replace("Größe zählt.", "Größe zählt nicht.")
    await near.do("import_jsonl", text)
    assert await near.contents() == contents


async def test_two_memories_become_one(bench: Bench) -> None:
    await bench.remember(said("one"), said("shared"))
    there = bench.memory(namespace="there")
    await bench.remember(said("two"), said("shared", "Bob's.", author="bob"), memory=there)
    await bench.do("add_guideline", "Of there.", memory=there)
    await bench.do("import_jsonl", await bench.do("export_jsonl", memory=there), author="eve")
    assert len(await bench.do("episodes")) == 4
    assert len(await bench.recall("one", k=9)) == 3
    assert await bench.guidelines() == {"Of there.": set()}
    [newest, *_] = await bench.do("history")
    assert (newest.reason, newest.author) == ("import", "eve")


async def test_an_import_can_be_rolled_back(bench: Bench) -> None:
    await bench.remember(said("one"))
    version, contents = await bench.do("version"), await bench.contents()
    there = bench.memory(namespace="there")
    await bench.remember(said("two"), memory=there)
    await bench.do("import_jsonl", await bench.do("export_jsonl", memory=there))
    await bench.do("rollback", version)
    assert await bench.contents() == contents


async def test_what_was_purged_can_be_brought_in_again(bench: Bench) -> None:
    [one, _] = await bench.remember(said("one"), said("two"))
    await bench.learn(op("add", one, text="Of one."))
    version, contents = await bench.do("version"), await bench.contents()
    text = await bench.do("export_jsonl")
    await bench.do("forget", one.id, purge=True)
    await bench.do("import_jsonl", text)
    assert await bench.contents() == contents
    assert await bench.do("version") == version


async def test_the_vectors_of_all_embedders_come_along(bench: Bench) -> None:
    small = bench.memory(embeddings=bench.server.embedder(model="small", dimensions=16))
    await bench.remember(said("one"), said("two"))
    await bench.recall("new", memory=small)
    text = await bench.do("export_jsonl")
    assert [line["type"] for line in lines_of(text)].count("vector") == 4
    for embeddings in (bench.embeddings, bench.server.embedder(model="small", dimensions=16)):
        there = bench.memory(namespace="there", embeddings=embeddings)
        await bench.do("import_jsonl", text, memory=there)
        bench.embedded()
        assert set(await bench.recall("one", memory=there)) == {"one", "two"}
        assert bench.embedded() == []


async def test_a_forgotten_texts_vector_does_not_come_along(bench: Bench) -> None:
    [one, _] = await bench.remember(said("one"), said("two"))
    await bench.do("forget", one.id)
    text = await bench.do("export_jsonl")
    assert [line["type"] for line in lines_of(text)].count("vector") == 1
    assert one.id not in text


def test_another_embedder_embeds_anew(server: LoopbackServer) -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    memory.remember([said("one"), said("two")])
    there = JudgeMemory(InMemoryStore(), CRITERION, embeddings=server.embedder())
    there.import_jsonl(memory.export_jsonl())
    assert {one.example.inputs for one in there.recall(QUERY)} == {"one", "two"}


def test_values_are_read_by_the_scale_of_the_memory() -> None:
    scale = Numeric(minimum=1, maximum=5, integer=True)
    grade = Criterion(name="grade", instructions="How good?", scale=scale)
    memory = JudgeMemory(InMemoryStore(), grade, embeddings=hashed)
    memory.remember(said("one", value=4))
    there = JudgeMemory(InMemoryStore(), grade, embeddings=hashed)
    there.import_jsonl(memory.export_jsonl())
    assert [one.value for one in there.episodes()] == [4]


def test_megabytes_come_through() -> None:
    memory = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    memory.remember(said("ü" * 2_000_000, "w" * 1_000_000))
    text = memory.export_jsonl()
    there = JudgeMemory(InMemoryStore(), CRITERION, embeddings=hashed)
    there.import_jsonl(text)
    assert there.export_jsonl() == text
