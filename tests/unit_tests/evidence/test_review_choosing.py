"""Whether an expert is asked: reasons, the draw by chance, and what a budget leaves."""

from typing import Any
from uuid import UUID

import pytest

from memalign_graph import InvalidInputError, Uncertain
from memalign_graph.evidence.choosing import choose, is_blind, is_drawn
from memalign_graph.evidence.trust import Trust
from memalign_graph.types import ReviewChoice


def trust(threshold: float | None = 0.8, decisions: int = 100) -> Trust:
    return Trust(
        target=0.9,
        threshold=threshold,
        needed=29,
        decisions=decisions,
        cases=decisions,
        agreement=1.0,
        bound=0.95,
        coverage=1.0,
    )


def named(number: int) -> str:
    """A judgment's id, as judgments make them."""
    return UUID(int=number, version=4).hex


def chosen(confidence: float | None = 0.9, **given: Any) -> ReviewChoice:
    fields: dict[str, Any] = {
        "judgment_id": named(1),
        "trust": trust(),
        "flags": [],
        "sample_share": 0,
        "is_spent": False,
    }
    fields.update(given)
    return choose(fields.pop("judgment_id"), confidence, **fields)


DRAWN = next(named(one) for one in range(1000) if is_drawn(named(one), 0.05))


@pytest.mark.parametrize(
    ("confidence", "of", "reasons"),
    [
        (0.9, trust(), []),
        (0.8, trust(), []),
        (0.7999, trust(), ["unsure"]),
        (None, trust(), ["unsure"]),
        (1.0, trust(None), ["unsure"]),
        (1.0, trust(None, 28), ["too_little_feedback"]),
        (None, trust(None, 0), ["too_little_feedback"]),
        (1.0, trust(0.8, 29), []),
    ],
)
def test_confidence_decides(confidence: float | None, of: Trust, reasons: list[str]) -> None:
    choice = chosen(confidence, trust=of)
    assert (choice.asks, choice.reasons) == (bool(reasons), reasons)
    assert choice.threshold == of.threshold


@pytest.mark.parametrize("flag", ["no_similar_episode", "episodes_disagree"])
def test_flag_asks_whatever_the_confidence(flag: str) -> None:
    choice = chosen(1.0, flags=[flag])
    assert (choice.asks, choice.reasons) == (True, [flag])
    assert chosen(0.1, flags=[flag]).reasons == ["unsure", flag]


def test_draw_is_the_same_for_the_same_judgment_and_fair_over_many() -> None:
    ids = [named(one) for one in range(20_000)]
    drawn = [one for one in ids if is_drawn(one, 0.05)]
    assert drawn == [one for one in ids if is_drawn(one, 0.05)]
    assert 0.045 < len(drawn) / len(ids) < 0.055
    assert set(drawn) < {one for one in ids if is_drawn(one, 0.2)}
    assert not any(is_drawn(one, 0) for one in ids)
    assert all(is_drawn(one, 1) for one in ids)


def test_drawn_judgment_is_asked_about_though_the_judge_is_sure() -> None:
    choice = chosen(0.99, judgment_id=DRAWN, sample_share=0.05)
    assert (choice.asks, choice.reasons) == (True, ["sample"])
    assert is_blind(choice.reasons)
    both = chosen(0.1, judgment_id=DRAWN, sample_share=0.05)
    assert (both.asks, both.reasons) == (True, ["unsure", "sample"])
    assert not is_blind(both.reasons)
    assert chosen(0.99, judgment_id=DRAWN).asks is False


def test_spent_budget_asks_nobody_and_says_so() -> None:
    choice = chosen(0.1, is_spent=True)
    assert (choice.asks, choice.reasons) == (False, ["unsure", "no_budget"])
    sure = chosen(0.9, is_spent=True)
    assert (sure.asks, sure.reasons) == (False, [])
    drawn = chosen(0.99, judgment_id=DRAWN, sample_share=0.05, is_spent=True)
    assert (drawn.asks, drawn.reasons) == (False, ["sample", "no_budget"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"target_agreement": 1}, "target_agreement"),
        ({"target_agreement": 1.0}, "target_agreement"),
        ({"target_agreement": 0}, "target_agreement"),
        ({"target_agreement": 90}, "target_agreement"),
        ({"target_agreement": "0.9"}, "target_agreement"),
        ({"target_agreement": True}, "target_agreement"),
        ({"target_agreement": None}, "target_agreement"),
        ({"target_agreement": float("nan")}, "target_agreement"),
        ({"per_day": 0}, "per_day"),
        ({"per_day": -3}, "per_day"),
        ({"per_day": 2.5}, "per_day"),
        ({"per_day": "10"}, "per_day"),
        ({"per_day": True}, "per_day"),
        ({"max_review_share": 0.5}, "max_review_share"),
        ({"sample_share": -0.1}, "sample_share"),
        ({"sample_share": 5}, "sample_share"),
        ({"sample_share": None}, "sample_share"),
        ({"sample_share": False}, "sample_share"),
    ],
)
def test_wrong_settings_are_one_sentence(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{field}: ") as caught:
        Uncertain(**options)
    assert "\n" not in str(caught.value)


def test_settings_at_their_edges_are_taken() -> None:
    Uncertain(target_agreement=0.999, per_day=1, sample_share=0)
    Uncertain(target_agreement=0.001, per_day=None, sample_share=1)
