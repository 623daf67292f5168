"""Learning from labels alone, from words alone, or from both."""

from tests.conftest import Bench
from tests.integration_tests.alignment_support import (
    BOTH_WAYS,
    DISTIL,
    Model,
    align,
    alignment,
    asked,
    builder,
    each_its_words,
    record,
    said,
)

LABELS = [record(n, rationale=None) for n in range(4)]
WORDS = [said(n, f"On #{n} name it.", value=None) for n in range(4, 8)]
BOTH = [said(n, f"On #{n} name it.") for n in range(8, 12)]


@BOTH_WAYS
async def test_learn_from_labels_alone(bench: Bench) -> None:
    bench.server.responder = Model()
    graph = alignment(bench, learn_from="labels")
    report = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert report["feedback"] == {"new": 8, "changed": 0, "unchanged": 0, "rejected": 4}
    assert [one["index"] for one in report["rejected"]] == [4, 5, 6, 7]
    for one in report["rejected"]:
        assert one["reason"].startswith("value: the record has none")
        assert "learn_from='labels'" in one["reason"]
    assert {one.rationale for one in await bench.episodes()} == {None}
    assert "<rationale>" not in asked(bench, DISTIL)[0].text
    assert asked(bench, DISTIL)[0].text.count("The expert's value: ") == 8
    again = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert (again["feedback"]["unchanged"], again["cost"]["chat_calls"]) == (8, 0)


@BOTH_WAYS
async def test_learn_from_words_alone(bench: Bench) -> None:
    bench.server.responder = Model(distil=each_its_words)
    graph = alignment(bench, learn_from="words")
    report = await align(bench, [*LABELS, *WORDS, *BOTH], graph)
    assert report["feedback"] == {"new": 8, "changed": 0, "unchanged": 0, "rejected": 4}
    assert [one["index"] for one in report["rejected"]] == [0, 1, 2, 3]
    for one in report["rejected"]:
        assert one["reason"].startswith("rationale: the record has none")
    assert {one.value for one in await bench.episodes()} == {None}
    assert "The expert's value" not in asked(bench, DISTIL)[0].text
    assert len(await bench.guidelines()) == 8
    assert (report["agreement"]["examples"], report["agreement"]["alpha"]) == (0, None)


@BOTH_WAYS
async def test_learn_from_both(bench: Bench) -> None:
    bench.server.responder = Model()
    report = await align(bench, [*LABELS, *WORDS, *BOTH])
    assert report["feedback"] == {"new": 12, "changed": 0, "unchanged": 0, "rejected": 0}
    text = asked(bench, DISTIL)[0].text
    assert text.count("The expert's value: ") == 8
    assert text.count("<rationale>") == 8


async def test_what_is_not_learned_from_may_be_wrong(bench: Bench) -> None:
    """A value off the scale is the scale's concern alone: words do not need it."""
    bench.server.responder = Model(distil=each_its_words)
    graph = builder(bench, learn_from="words").compile(store=bench.store)
    report = await align(bench, [said(1, "On #a name it.", value="5 stars")], graph, None)
    assert report["feedback"]["rejected"] == 0
