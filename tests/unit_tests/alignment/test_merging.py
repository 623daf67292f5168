"""Many proposals made into one set of guidelines, and conflicts settled."""

from typing import Any

import pytest

from memalign_graph.alignment.merge import (
    ProposalMerger,
    overruled_warnings,
    resolve_conflicts,
    unresolved_warnings,
)
from memalign_graph.alignment.report import Conflict, ConflictSide
from memalign_graph.memory.guidelines import apply_operations
from memalign_graph.types import Worth
from tests.unit_tests.alignment.alignment_cases import (
    NONE,
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
REWORDED = standing("Never do.", "e1", "e2", id=OLD.id)
FOUR = [add(text, f"e{n}") for n, text in enumerate("ABCD", start=3)]
OPPOSED = relations(contradictions=[(0, 1)])

MERGED: dict[str, tuple[Any, Any, Any, dict[str, set[str]]]] = {
    "nothing": ([OLD], [], NONE, {"Say sorry.": {"e1"}}),
    "same words": ([OLD], [[add(" SAY  sorry", "e3")]], NONE, {"Say sorry.": {"e1", "e3"}}),
    "revised": ([OLD], [[revise(OLD, "One.", "e3")]], NONE, {"One.": {"e1", "e3"}}),
    "revised by older": (
        [OLD], [[revise(OLD, "One.", "e0")]], NONE, {"Say sorry.": {"e1"}, "One.": {"e0"}},
    ),
    "revised twice": (
        [OLD], [[revise(OLD, "One.", "e3")], [revise(OLD, "Two.", "e4")]], NONE,
        {"One.": {"e1", "e3"}, "Two.": {"e4"}},
    ),
    "revised alike": (
        [OLD], [[revise(OLD, "One.", "e3")], [revise(OLD, "one", "e4")]], NONE,
        {"One.": {"e1", "e3", "e4"}},
    ),
    "revised though gone": ([], [[revise(OLD, "One.", "e3")]], NONE, {"One.": {"e3"}}),
    "an expert's revised": (
        [HAND], [[revise(HAND, "Be long.", "e9")]], NONE, {"Be brief.": set(), "Be long.": {"e9"}},
    ),
    "retired by older": ([OLD], [[retire(OLD, None, "e0")]], NONE, {"Say sorry.": {"e1"}}),
    "retired by newer": ([OLD], [[retire(OLD, None, "e3")]], NONE, {}),
    "retired though gone": ([], [[retire(OLD, None, "e3")]], NONE, {}),
    "an expert's retired": ([HAND], [[retire(HAND, None, "e9")]], NONE, {"Be brief.": set()}),
    "an expert's replaced": ([HAND], [[retire(HAND, "Long.", "e9")]], NONE, {"Be brief.": set()}),
    "replaced by older": ([OLD], [[retire(OLD, "No.", "e0")]], NONE, {"Say sorry.": {"e1"}}),
    "replaced by newer": ([OLD], [[retire(OLD, "No.", "e3")]], NONE, {"No.": {"e3"}}),
    "replaced though gone": ([], [[retire(OLD, "No.", "e3")]], NONE, {"No.": {"e3"}}),
    "duplicates": (
        [], [[add("A.", "e3")], [add("B.", "e4")], [add("C.", "e5")]],
        relations(duplicates=[[1, 0, 2]]), {"B.": {"e3", "e4", "e5"}},
    ),
    "overlapping duplicates": (
        [], [FOUR], relations(duplicates=[[0, 1], [2, 3], [1, 2]]), {"A": {"e3", "e4", "e5", "e6"}},
    ),
    "a duplicate of what stands": (
        [OLD], [[add("Apologise.", "e3")]], relations(duplicates=[[1, 0]]),
        {"Say sorry.": {"e1", "e3"}},
    ),
    "standing duplicates": (
        [OLD, OTHER], [[]], relations(duplicates=[[1, 0]]), {"Say sorry.": {"e1", "e2"}},
    ),
    "duplicates of an expert's": (
        [OLD, HAND], [[add("Keep it short.", "e3")]], relations(duplicates=[[2, 0, 1]]),
        {"Be brief.": set()},
    ),
    "a new source of a duplicate": (
        [OLD, OTHER], [[add("Thank them.", "e9")]], relations(duplicates=[[0, 1]]),
        {"Say sorry.": {"e1", "e2", "e9"}},
    ),
    "a conflict of joined rules": (
        [], [[add("A", "e3")], [add("B", "e5")], [add("A too", "e9")]],
        relations(duplicates=[[0, 2]], contradictions=[(0, 1)]), {"A": {"e3", "e9"}},
    ),
    "first words against the present ones": (
        [REWORDED], [[add("Say sorry.", "e8")]], OPPOSED, {"Say sorry.": {"e8"}},
    ),
    "reworded into what stands": (
        [OLD, OTHER], [[revise(OLD, "thank them", "e8")], [add("Never thank.", "e3")]], OPPOSED,
        {"Thank them.": {"e1", "e2", "e8"}},
    ),
    "the same change said in two ways": (
        [OLD], [[retire(OLD, "Be kind.", "e8")], [revise(OLD, "Be kind.", "e9")]], NONE,
        {"Be kind.": {"e1", "e8", "e9"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_what_becomes_of_proposals(name: str) -> None:
    guidelines, proposals, between, expected = MERGED[name]
    left = after(guidelines, merge(guidelines, *proposals, between=between))
    assert stands(left) == expected
    for guideline in guidelines:
        if guideline.origin == "expert":
            assert left[guideline.text] == guideline


def test_guideline_measured_as_useless_is_shown_again_with_another_text() -> None:
    worth = Worth(auc=0.1, cases=9)
    rule = standing("Say sorry.", "e1", status="unproven", worth=worth)
    [same] = apply_operations([rule], [revise(rule, "say sorry", "e3")])
    assert (same.text, same.status, same.worth) == ("Say sorry.", "unproven", worth)
    [other] = apply_operations([rule], [revise(rule, "Never do.", "e3")])
    assert (other.text, other.status, other.worth) == ("Never do.", "standing", None)


def test_rules_stand_first_and_proposals_follow_in_order_of_their_batches() -> None:
    proposals = [[add("B.", "e3")], [add("A.", "e4"), add("b", "e5")]]
    merging = ProposalMerger([OLD, HAND], proposals, {})
    assert [rule.text for rule in merging.guidelines] == ["Say sorry.", "Be brief.", "B.", "A."]
    assert merging.changed_places == [2, 3]


@pytest.mark.parametrize(
    "duplicates",
    [[[0, 1]], [[0, 2], [2, 1]], [[2, 1], [0, 2]], [[0, 1, 2]], [[0, 3], [3, 2], [2, 1]]],
)
def test_what_contradicts_each_other_is_never_joined(duplicates: Any) -> None:
    merged = merge([], FOUR, between=relations(duplicates, [(0, 1)]))
    assert len(merged.conflicts) == 1
    both = after([], merged, {merged.conflicts[0].id: "both"})
    assert not any({"e3", "e4"} <= set(item.episode_ids) for item in both.values())
    assert {key for item in both.values() for key in item.episode_ids} == {"e3", "e4", "e5", "e6"}


def test_answer_to_a_conflict_of_other_guidelines_names_none_of_this_run() -> None:
    between = relations(contradictions=[(0, 1)])
    always, never = add("Always.", "e3"), add("Never.", "e4")
    names = [
        merge([], [first], [second], between=between).conflicts[0].id
        for first, second in ((always, never), (always, add("Seldom.", "e4")), (never, always))
    ]
    assert len({*names}) == 3
    assert merge([], [always], [never], between=between).conflicts[0].id == names[0]


def test_two_that_stood_before_are_left_as_they_are_unless_touched() -> None:
    assert merge([OLD, OTHER], [add("X.", "e9")], between=OPPOSED).conflicts == []
    assert len(merge([OLD, OTHER], [add("Thank them.", "e9")], between=OPPOSED).conflicts) == 1
    assert len(merge([OLD, OTHER], between=OPPOSED).conflicts) == 1


@pytest.mark.parametrize(
    ("first", "second", "newer"),
    [(["e3"], ["e4"], "B"), (["e4"], ["e3"], "A"), (["e3"], ["e3"], "B"),
     (["e3", "e9"], ["e7"], "A"), (["e3"], ["gone"], "A"), (["gone"], ["lost"], "B")],
)  # fmt: skip
def test_newer_of_two_wins(first: list[str], second: list[str], newer: str) -> None:
    proposals = [add("A", *first)], [add("B", *second)]
    authors: dict[str, str | None] = dict.fromkeys([*first, *second], "ann")
    contradiction = relations(contradictions=[(1, 0), (0, 1)])
    merged = merge([], *proposals, between=contradiction, authors=authors)
    [conflict] = merged.conflicts
    assert (conflict.first.text, conflict.second.text) == ("A", "B")
    assert list(stands(after([], merged))) == [newer]


def conflict(number: int, first: str, second: str, newer: Any = "second") -> Conflict:
    sides = [
        ConflictSide(guideline_id=item, text=f"Rule {item}.", episode_ids=["e1"])
        for item in (first, second)
    ]
    return Conflict(id=f"C{number}", first=sides[0], second=sides[1], newer=newer, default=newer)


def losers(conflicts: Any, decisions: Any = None) -> dict[str | None, str | None]:
    settled = resolve_conflicts(conflicts, decisions)
    return {conflict.guideline_id: conflict.superseded_by for conflict in settled}


def test_what_has_lost_decides_nothing() -> None:
    chain = [conflict(1, "a", "b"), conflict(2, "a", "c", "first"), conflict(3, "b", "d")]
    # b lost to d: it does not put a out, which puts c out. The order is no matter.
    assert losers(chain) == losers(chain[::-1]) == {"b": "d", "c": "a"}
    assert losers([conflict(1, "a", "b"), conflict(2, "b", "a", "second")]) == {"a": "b"}
    assert losers([conflict(1, "a", "b"), conflict(2, "a", "c")]) == {"a": "b"}
    decisions = {"C1": "second", "C2": "first", "C3": "both"}
    assert losers(chain, decisions) == losers(chain[::-1], decisions) == {"a": "b"}
    # An expert is told of a decision that another one overrules.
    [warning] = overruled_warnings(chain, decisions, resolve_conflicts(chain, decisions))
    assert warning.startswith("C2: 'Rule c.' stays, because 'Rule a.', which was to replace it,")


TEN = standing("Refunds over 500 need a manager.", *(f"e{number}" for number in range(10)))
EXPERTS: dict[str, str | None] = {
    f"e{number}": "ann" if number < 5 else "bob" for number in range(10)
}


@pytest.mark.parametrize(
    ("authors", "stays"),
    [
        ({"e11": "cy"}, {TEN.text, "Never."}),
        ({"e11": None}, {TEN.text, "Never."}),
        ({"e11": "ann"}, {TEN.text, "Never."}),
        (dict.fromkeys(TEN.episode_ids, "cy") | {"e11": "cy"}, {"Never."}),
        (dict.fromkeys(TEN.episode_ids, None) | {"e11": None}, {"Never."}),
        (dict.fromkeys(TEN.episode_ids, "ann") | {"e11": "cy"}, {TEN.text, "Never."}),
        (dict.fromkeys(TEN.episode_ids, None) | {"e11": "cy"}, {TEN.text, "Never."}),
    ],
)
def test_newer_feedback_settles_nothing(authors: dict[str, str | None], stays: set[str]) -> None:
    for proposal, between in (
        (add("Never.", "e11"), relations(contradictions=[(0, 1)])),
        (retire(TEN, "Never.", "e11"), NONE),
    ):
        merged = merge([TEN], [proposal], between=between, authors={**EXPERTS, **authors})
        assert set(stands(after([TEN], merged))) == stays
        warnings = unresolved_warnings(merged.conflicts, resolve_conflicts(merged.conflicts))
        assert len(warnings) == len(stays) - 1
        assert set(stands(after([TEN], merged, {merged.conflicts[0].id: "second"}))) == {"Never."}
    merged = merge([TEN], [retire(TEN, None, "e11")], authors={**EXPERTS, **authors})
    assert set(stands(after([TEN], merged))) == stays & {TEN.text}
    assert [TEN.text in text for text in merged.warnings] == [True] * (len(stays) - 1)


def test_guideline_that_loses_a_contradiction_is_not_said_to_stay() -> None:
    authors: dict[str, str | None] = {"e1": "ann", "e3": "bob", "e4": "cy"}
    proposals = [retire(OLD, None, "e3"), add("Never.", "e3")], [add("never", "e4")]
    merged = merge([OLD], *proposals, between=OPPOSED, authors=authors)
    assert stands(after([OLD], merged)) == {"Never.": {"e3", "e4"}}
    assert merged.warnings == []


def test_each_expert_counts_for_their_newest_feedback() -> None:
    authors: dict[str, str | None] = {"e1": "bob", "e3": "ann", "e5": "ann", "e6": "cy"}
    always, never = standing("Always.", "e1", "e5"), standing("Never.", "e3", position=2)
    merged = merge([always, never], [add("Never.", "e6")], between=OPPOSED, authors=authors)
    assert [conflict.default for conflict in merged.conflicts] == ["both"]


ADDED = {TEN.text: set(TEN.episode_ids), "Never.": {"e11", "e12"}}
REVISED = {"Never.": {*TEN.episode_ids, "e11", "e12"}}


@pytest.mark.parametrize(
    ("authors", "left"),
    [
        ({"e11": "cy", "e12": "cy"}, ADDED),
        ({"e11": "cy", "e12": "di"}, ADDED),
        ({"e11": "ann", "e12": "ann"}, ADDED),
        ({"e11": "ann", "e12": "bob"}, REVISED),
        ({"e11": "ann", "e12": "cy"}, REVISED),
        (dict.fromkeys(TEN.episode_ids, "cy") | {"e11": "cy", "e12": "cy"}, REVISED),
    ],
)
def test_new_words_of_as_many_experts_are_a_guideline_of_their_own(
    authors: dict[str, str | None], left: dict[str, set[str]]
) -> None:
    merged = merge([TEN], [revise(TEN, "Never.", "e11", "e12")], authors={**EXPERTS, **authors})
    assert stands(after([TEN], merged)) == left
    assert len(merged.warnings) == len(left) - 1
    same = merge([TEN], [revise(TEN, TEN.text, "e11")], authors={**EXPERTS, **authors})
    assert stands(after([TEN], same)) == {TEN.text: {*TEN.episode_ids, "e11"}}
    assert same.warnings == []


def test_guideline_by_hand_outweighs_feedback_of_any_number_of_experts() -> None:
    merged = merge([TEN, HAND], [add("x", "e12")], between=relations(contradictions=[(0, 1)]))
    hand = merge([TEN, HAND], between=relations(contradictions=[(0, 1)]))
    assert merged.conflicts == []
    assert set(stands(after([TEN, HAND], hand))) == {HAND.text}
    # Unless an expert decides otherwise.
    assert set(stands(after([TEN, HAND], hand, {hand.conflicts[0].id: "first"}))) == {TEN.text}
    # Of two by hand both stay.
    other = by_hand("Be long.", position=4, updated_at=at(6))
    both = merge([HAND, other], between=relations(contradictions=[(0, 1)]))
    assert set(stands(after([HAND, other], both))) == {HAND.text, other.text}
    assert [conflict.default for conflict in both.conflicts] == ["both"]
