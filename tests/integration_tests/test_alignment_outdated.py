"""Two words of one expert on one case in one list: the newer counts, and the report says so."""

from typing import Any

import pytest

from tests.conftest import Bench
from tests.integration_tests.alignment_support import align, alignment

ROW = {"inputs": "q", "outputs": "a"}


@pytest.mark.parametrize(
    "first",
    [
        {"value": True},
        {"rationale": "Something else.", "given_at": "2026-01-01T00:00:00Z"},
    ],
)
async def test_a_word_that_a_newer_one_outdates_is_told(
    bench: Bench, first: dict[str, Any]
) -> None:
    given = [{**ROW, **first}, {**ROW, "value": False, "rationale": "Too cold."}]
    report = await align(bench, given, alignment(bench))
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 0, "rejected": 0}
    [warning] = report["warnings"]
    assert warning.startswith("1 record(s) do not count")
    assert [one.rationale for one in await bench.episodes()] == ["Too cold."]


async def test_a_value_confirmed_beside_words_is_no_other_word(bench: Bench) -> None:
    given = [{**ROW, "value": False, "rationale": "Too cold."}, {**ROW, "value": False}]
    report = await align(bench, given, alignment(bench))
    assert report["feedback"] == {"new": 1, "changed": 0, "unchanged": 1, "rejected": 0}
    assert report["warnings"] == []


async def test_anonymous_experts_with_ids_are_two(bench: Bench) -> None:
    given = [{**ROW, "value": True, "id": 1}, {**ROW, "value": False, "id": 2}]
    report = await align(bench, given, alignment(bench))
    assert report["feedback"]["new"] == 2
    assert len(report["agreement"]["disagreements"]) == 1
