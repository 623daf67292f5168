"""Proposals of many batches brought together with each other and with what stands."""

from typing import Any

import pytest

from tests.conftest import CASE, Bench, judgings
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    COMPARE,
    DISTIL,
    Model,
    add,
    align,
    alignment,
    asked,
    by_text,
    each_its_words,
    record,
    records,
    retire,
    retired,
    revise,
    said,
    sources,
)

ALWAYS = "On #sorry always apologise for what went wrong."
NEVER = "On #sorry never apologise for what went wrong."
WORDS = Model(distil=each_its_words)


async def test_duplicates_in_other_words_become_one_with_both_sources(bench: Bench) -> None:
    bench.server.responder = WORDS
    one, other = "On #name name the order.", "On #name say which order it is."
    report = await align(bench, [said(1, one), said(2, other)], alignment(bench, batch_size=1))
    [guideline] = await bench.guidelines()
    assert (guideline.text, len(guideline.episode_ids)) == (one, 2)
    assert by_text(report["guidelines"]["added"]) == {one: 2}
    assert [chat.schema_name for chat in bench.server.chats].count(COMPARE) == 1


async def test_duplicate_of_what_stands_gives_it_a_source(bench: Bench) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=1)
    await align(bench, [said(1, "On #name name the order.")], graph)
    given = [said(2, "On #name say which order it is."), said(3, "On #thanks thank them.")]
    report = await align(bench, given, graph)
    assert sources(await bench.guidelines()) == {
        "On #name name the order.": 2,
        "On #thanks thank them.": 1,
    }
    assert by_text(report["guidelines"]["revised"]) == {"On #name name the order.": 2}


@BOTH_WAYS
async def test_same_words_are_one_without_a_model(bench: Bench) -> None:
    """Other letters, blanks and a full stop make no other rule; the comparison has one to show."""
    texts = ["Name the order at once.", "name  THE order at once", " Name the order\nat once. "]
    bench.server.responder = Model(
        distil=lambda chat: {"operations": [add(texts["case 2" in chat.text])]},
        compare=lambda _: pytest.fail("one rule is compared with none"),
    )
    await align(bench, records(4), alignment(bench, batch_size=1))
    assert sources(await bench.guidelines()) == {texts[0]: 4}
    assert asked(bench, COMPARE) == []


@BOTH_WAYS
async def test_one_batch_is_not_compared(bench: Bench) -> None:
    bench.server.responder = WORDS
    await align(bench, records(5))
    assert (len(asked(bench, DISTIL)), len(asked(bench, COMPARE))) == (1, 0)


@pytest.mark.parametrize("turned", [False, True], ids=["newer-last", "newer-first"])
async def test_contradiction_is_settled_by_the_newer_word(bench: Bench, turned: bool) -> None:  # noqa: FBT001
    bench.server.responder = WORDS
    given = [said(1, ALWAYS), said(2, NEVER)]
    report = await align(bench, given[::-1] if turned else given, alignment(bench, batch_size=1))
    assert [one.text for one in await bench.guidelines()] == [NEVER]
    [conflict] = report["conflicts"]
    assert {conflict["first"]["text"], conflict["second"]["text"]} == {ALWAYS, NEVER}
    assert conflict[conflict["newer"]]["text"] == NEVER
    assert by_text(report["guidelines"]["added"]) == {NEVER: 1}
    await bench.invoke(bench.judge_graph(k=0), CASE)
    prompt = judgings(bench.server)[-1].text
    assert NEVER in prompt
    assert ALWAYS not in prompt


@BOTH_WAYS
async def test_contradiction_with_what_stands_is_settled_by_the_newer_word(bench: Bench) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=1)
    await align(bench, [said(1, ALWAYS)], graph)
    report = await align(bench, [said(2, NEVER), said(3, "On #thanks thank them.")], graph)
    assert sources(await bench.guidelines()) == {NEVER: 1, "On #thanks thank them.": 1}
    [told] = report["guidelines"]["retired"]
    [gone] = await retired(bench)
    assert (told["id"], told["text"]) == (gone.guideline_id, ALWAYS)
    assert told["reason"] == gone.reason
    assert gone.reason
    winner = report["conflicts"][0]["second"]["guideline_id"]
    assert told["superseded_by"] == gone.superseded_by == winner


@BOTH_WAYS
async def test_older_word_that_comes_late_does_not_win(bench: Bench) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=1)
    await align(bench, [said(5, NEVER)], graph)
    report = await align(bench, [said(1, ALWAYS), said(2, "On #thanks thank them.")], graph)
    assert sources(await bench.guidelines()) == {NEVER: 1, "On #thanks thank them.": 1}
    assert report["guidelines"]["retired"] == []
    # And the newest word of all brings it back.
    await align(bench, [said(8, ALWAYS), said(9, "On #name name it.")], graph)
    assert ALWAYS in sources(await bench.guidelines())
    assert NEVER not in sources(await bench.guidelines())


@BOTH_WAYS
@pytest.mark.parametrize("group", [[1, 2], [2, 1], [1, 2, 3]])
async def test_answer_that_calls_opposites_the_same_merges_nothing(
    bench: Bench, group: list[int]
) -> None:
    bench.server.responder = Model(
        distil=each_its_words,
        compare=lambda _: {"duplicates": [group], "contradictions": [[2, 1]]},
    )
    given = [said(1, ALWAYS), said(2, NEVER), said(3, "On #sorry say sorry.")]
    await align(bench, given, alignment(bench, batch_size=1))
    assert sources(await bench.guidelines()) == {NEVER: 1, "On #sorry say sorry.": 1}


@BOTH_WAYS
async def test_opposites_are_not_joined_over_a_third(bench: Bench) -> None:
    """1 says the same as 3, and 3 the same as 2; but 1 and 2 contradict each other."""
    bench.server.responder = Model(
        distil=each_its_words,
        compare=lambda _: {"duplicates": [[1, 3], [3, 2]], "contradictions": [[1, 2]]},
    )
    given = [said(1, ALWAYS), said(2, NEVER), said(3, "On #sorry say sorry.")]
    await align(bench, given, alignment(bench, batch_size=1))
    # The newest word, 3, is on the side of 1.
    assert sources(await bench.guidelines()) == {ALWAYS: 2}


@BOTH_WAYS
async def test_a_rule_reworded_and_then_said_again_in_its_first_words(bench: Bench) -> None:
    """A guideline's id comes from its first words: those may come back against its present ones."""
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, batch_size=1)
    await align(bench, [said(1, ALWAYS)], graph)
    bench.server.responder = Model(distil=lambda _: {"operations": [revise("G1", NEVER)]})
    await align(bench, [record(2)], graph)
    assert sources(await bench.guidelines()) == {NEVER: 2}
    bench.server.responder = Model(distil=each_its_words)
    report = await align(bench, [said(8, ALWAYS), said(9, "On #name name it.")], graph)
    assert len(report["conflicts"]) == 1
    assert sources(await bench.guidelines()) == {ALWAYS: 1, "On #name name it.": 1}


@BOTH_WAYS
@pytest.mark.parametrize("batch_size", [1, 50])
async def test_retire_without_a_rule_instead(bench: Bench, batch_size: int) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=batch_size)
    await align(bench, [said(1, ALWAYS), said(2, "On #name name it.")], graph)
    bench.server.responder = Model(distil=lambda _: {"operations": [retire("G1", "")]})
    report = await align(bench, [record(3)], graph)
    assert sources(await bench.guidelines()) == {"On #name name it.": 1}
    [told] = report["guidelines"]["retired"]
    assert (told["text"], told["superseded_by"]) == (ALWAYS, None)
    assert told["reason"] == "Newer feedback says that it does not hold."
    assert report["conflicts"] == []


@BOTH_WAYS
@pytest.mark.parametrize("batch_size", [1, 50])
async def test_retire_with_a_rule_instead(bench: Bench, batch_size: int) -> None:
    bench.server.responder = WORDS
    graph = alignment(bench, batch_size=batch_size)
    await align(bench, [said(1, ALWAYS)], graph)
    bench.server.responder = Model(distil=lambda _: {"operations": [retire("G1", NEVER)]})
    report = await align(bench, [record(3)], graph)
    assert sources(await bench.guidelines()) == {NEVER: 1}
    [winner] = await bench.guidelines()
    assert [one.superseded_by for one in await retired(bench)] == [winner.id]
    assert by_text(report["guidelines"]["added"]) == {NEVER: 1}
    [conflict] = report["conflicts"]
    assert conflict["second"]["guideline_id"] == winner.id


@BOTH_WAYS
async def test_rule_retired_for_one_that_sounds_the_same(bench: Bench) -> None:
    """The distiller saw why; the comparison sees two sentences and takes them for the same."""
    bench.server.responder = WORDS
    await align(bench, [said(1, "On #name name it.")])
    instead = "On #name spell it out."

    def distil(chat: Any) -> Any:
        if "case 3" in chat.text:
            return {"operations": [retire("G1", instead)]}
        return each_its_words(chat)

    bench.server.responder = Model(distil=distil)
    await align(bench, [record(3), said(4, "On #c thank them.")], alignment(bench, batch_size=1))
    assert sources(await bench.guidelines()) == {instead: 1, "On #c thank them.": 1}


@BOTH_WAYS
@pytest.mark.parametrize("text", ["", NEVER])
async def test_older_feedback_does_not_retire_a_newer_guideline(bench: Bench, text: str) -> None:
    bench.server.responder = WORDS
    await align(bench, [said(5, ALWAYS)])
    bench.server.responder = Model(distil=lambda _: {"operations": [retire("G1", text)]})
    report = await align(bench, [record(1)])
    assert sources(await bench.guidelines()) == {ALWAYS: 1}
    assert report["guidelines"]["retired"] == report["guidelines"]["added"] == []


async def test_hand_written_guideline_wins_and_stays(bench: Bench) -> None:
    await bench.add_guideline(ALWAYS)
    [by_hand] = await bench.guidelines()
    bench.server.responder = WORDS
    given = [
        said(1, NEVER),
        said(2, "On #sorry it always apologises."),
        said(3, "on #sorry ALWAYS apologise for what went wrong"),
        said(4, "On #name name it."),
    ]
    report = await align(bench, given, alignment(bench, batch_size=1))
    standing = await bench.guidelines()
    assert standing[0] == by_hand
    assert sources(standing) == {ALWAYS: 0, "On #name name it.": 1}
    assert report["conflicts"][0]["newer"] == "first"
    assert "(written by an expert, can't be changed): " + ALWAYS in asked(bench, DISTIL)[0].text
