"""Many proposals made into one set of guidelines."""

from typing import Any

import pytest

from memalign_graph.alignment.merging import Merging
from tests.unit_tests.alignment.alignment_cases import (
    add,
    after,
    at,
    by_hand,
    merge,
    relations,
    retire,
    revise,
    standing,
    stands,
)

OLD = standing("Say sorry.", "e1", position=1)
OTHER = standing("Thank them.", "e2", position=2)
HAND = by_hand("Be brief.", position=3, updated_at=at(5))


def actions(merged: Any) -> list[tuple[str, str | None]]:
    return [(one.action, one.text) for one in merged.operations]


def test_nothing_proposed_is_nothing_done() -> None:
    merged = merge([OLD, OTHER, HAND])
    assert (merged.operations, merged.conflicts) == ([], [])


def test_rules_stand_first_and_proposals_follow_in_order_of_their_batches() -> None:
    merging = Merging([OLD, HAND], [[add("B.", "e3")], [add("A.", "e4"), add("b", "e5")]], {})
    assert [rule.text for rule in merging.rules] == ["Say sorry.", "Be brief.", "B.", "A."]
    assert merging.touched == [2, 3]
    merged = merge([OLD, HAND], [add("B.", "e3")], [add("A.", "e4"), add("b", "e5")])
    assert [(one.text, one.episode_ids) for one in merged.operations] == [
        ("B.", ["e3", "e5"]),
        ("A.", ["e4"]),
    ]


def test_same_words_as_a_standing_one_give_it_a_source() -> None:
    found = after([OLD], merge([OLD], [add(" SAY  sorry", "e3")]))
    assert stands(found) == {"Say sorry.": {"e1", "e3"}}


def test_revised_guideline_keeps_its_id_and_sources() -> None:
    found = after([OLD], merge([OLD], [revise(OLD, "Say sorry first.", "e3")]))
    assert stands(found) == {"Say sorry first.": {"e1", "e3"}}
    assert found["Say sorry first."].id == OLD.id


def test_second_rewording_of_a_guideline_is_a_rule_of_its_own() -> None:
    merged = merge([OLD], [revise(OLD, "One.", "e3")], [revise(OLD, "Two.", "e4")])
    assert stands(after([OLD], merged)) == {"One.": {"e1", "e3"}, "Two.": {"e4"}}


def test_two_batches_with_the_same_rewording_agree() -> None:
    merged = merge([OLD], [revise(OLD, "One.", "e3")], [revise(OLD, "one", "e4")])
    assert stands(after([OLD], merged)) == {"One.": {"e1", "e3", "e4"}}


def test_guideline_that_is_gone_is_not_revised_but_added() -> None:
    assert stands(after([], merge([], [revise(OLD, "One.", "e3")]))) == {"One.": {"e3"}}


def test_experts_guideline_is_not_revised() -> None:
    found = after([HAND], merge([HAND], [revise(HAND, "Be long.", "e9")]))
    assert found["Be brief."] == HAND
    assert stands(found)["Be long."] == {"e9"}


def test_retiring_what_is_not_there_is_nothing() -> None:
    assert merge([], [retire(OLD, None, "e3")]).operations == []


@pytest.mark.parametrize(("source", "retired"), [("e0", False), ("e1", True), ("e3", True)])
def test_older_feedback_retires_nothing(source: str, retired: bool) -> None:  # noqa: FBT001
    found = after([OLD], merge([OLD], [retire(OLD, None, source)]))
    assert ("Say sorry." not in found) is retired


@pytest.mark.parametrize(("source", "winner"), [("e0", "Say sorry."), ("e3", "Never do.")])
def test_rule_instead_is_settled_by_age(source: str, winner: str) -> None:
    merged = merge([OLD], [retire(OLD, "Never do.", source)])
    assert [one.id for one in merged.conflicts] == ["C1"]
    assert list(stands(after([OLD], merged))) == [winner]


def test_experts_guideline_is_not_retired() -> None:
    for text in (None, "Be long."):
        found = after([HAND], merge([HAND], [retire(HAND, text, "e9")]))
        assert found["Be brief."] == HAND


def test_duplicates_join_their_sources_in_the_best_words() -> None:
    proposals = [add("A.", "e3")], [add("B.", "e4")], [add("C.", "e5")]
    merged = merge([], *proposals, found=relations(duplicates=[[1, 0, 2]]))
    assert stands(after([], merged)) == {"B.": {"e3", "e4", "e5"}}


def test_of_duplicates_a_standing_one_keeps_its_words() -> None:
    merged = merge([OLD], [add("Apologise.", "e3")], found=relations(duplicates=[[1, 0]]))
    assert stands(after([OLD], merged)) == {"Say sorry.": {"e1", "e3"}}


def test_of_two_standing_duplicates_the_first_keeps_its_words() -> None:
    merged = merge([OLD, OTHER], [], found=relations(duplicates=[[1, 0]]))
    found = after([OLD, OTHER], merged)
    assert stands(found) == {"Say sorry.": {"e1", "e2"}}
    assert "Thank them." not in found


def test_of_duplicates_the_experts_stands_untouched() -> None:
    found = relations(duplicates=[[2, 0, 1]])
    merged = merge([OLD, HAND], [add("Keep it short.", "e3")], found=found)
    left = after([OLD, HAND], merged)
    assert stands(left) == {"Be brief.": set()}
    assert left["Be brief."] == HAND
    [merged_away] = [one for one in merged.operations if one.action == "merge"]
    assert (merged_away.guideline_id, merged_away.superseded_by) == (OLD.id, HAND.id)


def test_groups_that_overlap_are_one() -> None:
    proposals = [add(text, f"e{n}") for n, text in enumerate("ABCD", start=3)]
    found = relations(duplicates=[[0, 1], [2, 3], [1, 2]])
    merged = merge([], proposals, found=found)
    assert list(stands(after([], merged)).values()) == [{"e3", "e4", "e5", "e6"}]


@pytest.mark.parametrize(
    "duplicates",
    [[[0, 1]], [[0, 2], [2, 1]], [[2, 1], [0, 2]], [[0, 1, 2]], [[0, 3], [3, 2], [2, 1]]],
)
def test_what_contradicts_each_other_is_never_joined(duplicates: Any) -> None:
    proposals = [add(text, f"e{n}") for n, text in enumerate("ABCD", start=3)]
    found = relations(duplicates=duplicates, contradictions=[(0, 1)])
    merged = merge([], proposals, found=found)
    assert len(merged.conflicts) == 1
    both = after([], merged, {"C1": "both"})
    assert not any({"e3", "e4"} <= set(one.episode_ids) for one in both.values())
    assert {key for one in both.values() for key in one.episode_ids} == {"e3", "e4", "e5", "e6"}


def test_two_that_stood_before_are_left_as_they_are_unless_touched() -> None:
    found = relations(contradictions=[(0, 1)])
    assert merge([OLD, OTHER], [add("X.", "e9")], found=found).conflicts == []
    assert len(merge([OLD, OTHER], [add("Thank them.", "e9")], found=found).conflicts) == 1
    assert len(merge([OLD, OTHER], found=found, touched_only=False).conflicts) == 1


@pytest.mark.parametrize("pairs", [[(0, 1)], [(1, 0)], [(0, 1), (1, 0), (0, 1)]])
@pytest.mark.parametrize(("first", "second", "newer"), [(3, 4, "B"), (4, 3, "A"), (3, 3, "B")])
def test_newer_of_two_wins_whatever_the_order(
    pairs: Any, first: int, second: int, newer: str
) -> None:
    proposals = [add("A", f"e{first}")], [add("B", f"e{second}")]
    given_at = {"e3": at(3), "e4": at(4)}
    merged = merge([], *proposals, found=relations(contradictions=pairs), given_at=given_at)
    [conflict] = merged.conflicts
    assert (conflict.first.text, conflict.second.text) == ("A", "B")
    assert list(stands(after([], merged))) == [newer]


def test_newest_of_all_sources_counts() -> None:
    proposals = [add("A", "e3", "e9")], [add("B", "e7")]
    merged = merge([], *proposals, found=relations(contradictions=[(0, 1)]))
    assert merged.conflicts[0].newer == "first"


def test_sources_that_are_gone_are_older_than_all_others() -> None:
    proposals = [add("A", "e3")], [add("B", "e7")]
    found = relations(contradictions=[(0, 1)])
    assert merge([], *proposals, found=found, given_at={"e3": at(3)}).conflicts[0].newer == "first"
    assert merge([], *proposals, found=found, given_at={}).conflicts[0].newer == "second"


def test_conflict_of_joined_rules_is_one() -> None:
    proposals = [add("A", "e3")], [add("A too", "e4")], [add("B", "e5")]
    found = relations(duplicates=[[0, 1]], contradictions=[(0, 2), (1, 2)])
    merged = merge([], *proposals, found=found)
    [conflict] = merged.conflicts
    assert set(conflict.first.episode_ids) >= {"e3"}
    assert list(stands(after([], merged))) == ["B"]


def test_conflict_names_all_sources_of_a_joined_rule_and_the_newest_of_them_decides() -> None:
    proposals = [add("A", "e3")], [add("B", "e5")], [add("A too", "e9")]
    found = relations(duplicates=[[0, 2]], contradictions=[(0, 1)])
    merged = merge([], *proposals, found=found)
    [conflict] = merged.conflicts
    assert set(conflict.first.episode_ids) == {"e3", "e9"}
    assert list(stands(after([], merged))) == ["A"]


def test_first_words_of_a_reworded_guideline_get_an_id_of_their_own() -> None:
    reworded = standing("Never do.", "e1", "e2", id=OLD.id)
    proposals = [add("Say sorry.", "e8")]
    merged = merge([reworded], proposals, found=relations(contradictions=[(0, 1)]))
    [conflict] = merged.conflicts
    assert conflict.first.guideline_id != conflict.second.guideline_id
    found = after([reworded], merged)
    assert stands(found) == {"Say sorry.": {"e8"}}


def test_rule_instead_of_what_is_gone_already_is_kept() -> None:
    """Another run retired the guideline while this one distilled."""
    merged = merge([], [retire(OLD, "Never do.", "e3")])
    assert stands(after([], merged)) == {"Never do.": {"e3"}}


def test_rule_that_becomes_the_same_as_a_reworded_one_is_one_with_it() -> None:
    proposals = [add("E.", "e8")], [revise(OLD, "E.", "e9")], [add("D.", "e2")]
    texts = [one.text for one in Merging([OLD], [list(one) for one in proposals], {}).rules]
    first, last = texts.index("E."), len(texts) - 1 - texts[::-1].index("E.")
    for place in {first, last}:
        pair = sorted((place, texts.index("D.")))
        merged = merge([OLD], *proposals, found=relations(contradictions=[pair]))
        assert stands(after([OLD], merged)) == {"E.": {"e1", "e8", "e9"}}


def test_new_source_of_a_guideline_that_is_merged_is_kept() -> None:
    merged = merge([OLD, OTHER], [add("Thank them.", "e9")], found=relations(duplicates=[[0, 1]]))
    assert stands(after([OLD, OTHER], merged)) == {"Say sorry.": {"e1", "e2", "e9"}}


def test_two_ways_to_say_the_same_change_are_no_conflict() -> None:
    proposals = [retire(OLD, "Be kind.", "e8")], [revise(OLD, "Be kind.", "e9")]
    for given in (proposals, proposals[::-1]):
        merged = merge([OLD], *given)
        assert merged.conflicts == []
        assert list(stands(after([OLD], merged))) == ["Be kind."]


def test_guideline_reworded_into_the_words_of_another_that_stands() -> None:
    proposals = [revise(OLD, "thank them", "e8")], [add("Never thank.", "e3")]
    merged = merge([OLD, OTHER], *proposals, found=relations(contradictions=[(0, 1)]))
    assert stands(after([OLD, OTHER], merged)) == {"Thank them.": {"e1", "e2", "e8"}}


def test_first_words_of_a_guideline_that_is_merged_away() -> None:
    proposals = [revise(OLD, "Thank them.", "e8")], [add("Say sorry.", "e9")]
    texts = [one.text for one in Merging([OLD, OTHER], [list(one) for one in proposals], {}).rules]
    pair = (texts.index("Thank them."), texts.index("Say sorry."))
    merged = merge([OLD, OTHER], *proposals, found=relations(contradictions=[pair]))
    assert stands(after([OLD, OTHER], merged)) == {"Say sorry.": {"e1", "e9"}}
