"""Whether an expert is asked: reasons, the draw by chance, and what a budget leaves."""

from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest

from memalign_graph import InvalidInputError
from memalign_graph.evidence.choosing import (
    Asking,
    Today,
    check_asking,
    check_target,
    choose,
    is_blind,
    is_drawn,
)
from memalign_graph.evidence.trust import Trust
from memalign_graph.judgment import ReviewChoice

DAY = date(2025, 1, 31)
NONE: Asking = Asking(sample_share=0)


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
        "asking": NONE,
        "today": Today(DAY),
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
    choice = chosen(0.99, judgment_id=DRAWN, asking=Asking())
    assert (choice.asks, choice.reasons) == (True, ["sample"])
    assert is_blind(choice.reasons)
    both = chosen(0.1, judgment_id=DRAWN, asking=Asking())
    assert (both.asks, both.reasons) == (True, ["unsure", "sample"])
    assert not is_blind(both.reasons)
    assert chosen(0.99, judgment_id=DRAWN).asks is False


def test_spent_budget_asks_nobody_and_says_so() -> None:
    asking = Asking(max_reviews_per_day=10, sample_share=0)
    spent = Today(DAY, judgments=40, asked=10)
    choice = chosen(0.1, asking=asking, today=spent)
    assert (choice.asks, choice.reasons) == (False, ["unsure", "no_budget"])
    sure = chosen(0.9, asking=asking, today=spent)
    assert (sure.asks, sure.reasons) == (False, [])
    drawn = chosen(0.99, judgment_id=DRAWN, asking=Asking(max_reviews_per_day=10), today=spent)
    assert (drawn.asks, drawn.reasons) == (False, ["sample", "no_budget"])


def test_budget_keeps_a_fifth_for_what_is_drawn() -> None:
    asking = Asking(max_reviews_per_day=10)
    unsure = [
        chosen(0.1, asking=asking, today=Today(DAY, judgments=40, asked=asked)).asks
        for asked in range(11)
    ]
    assert unsure == [True] * 8 + [False] * 3
    for asked in range(10):
        today = Today(DAY, judgments=40, asked=asked)
        assert chosen(0.99, judgment_id=DRAWN, asking=asking, today=today).asks


def test_drawn_questions_that_were_asked_free_what_was_kept_for_them() -> None:
    asking = Asking(max_reviews_per_day=10)
    asks = [
        chosen(0.1, asking=asking, today=Today(DAY, judgments=40, asked=8, drawn=drawn)).asks
        for drawn in (0, 1, 2)
    ]
    assert asks == [False, True, True]


def test_unsure_one_that_is_drawn_is_asked_from_what_was_kept() -> None:
    today = Today(DAY, judgments=40, asked=9)
    choice = chosen(0.1, judgment_id=DRAWN, asking=Asking(max_reviews_per_day=10), today=today)
    assert (choice.asks, choice.reasons) == (True, ["unsure", "sample", "no_budget"])
    assert is_blind(choice.reasons)


def test_nothing_is_kept_back_while_there_is_too_little_feedback() -> None:
    few = trust(None, 3)
    for most in (1, 2, 10):
        today = Today(DAY, judgments=40, asked=most - 1)
        asking = Asking(max_reviews_per_day=most)
        assert chosen(0.1, trust=few, asking=asking, today=today).asks


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_small_budgets_keep_a_fifth_over_the_days(most: int) -> None:
    asking = Asking(max_reviews_per_day=most)
    kept = sum(
        not chosen(0.1, asking=asking, today=Today(DAY + timedelta(day), 9, most - one)).asks
        for day in range(50)
        for one in range(1, most + 1)
    )
    assert kept == 50 * most / 5


def day_of(asking: Asking, confidences: list[float]) -> list[ReviewChoice]:
    """A day's judgments in a row."""
    made: list[ReviewChoice] = []
    for number, confidence in enumerate(confidences):
        asked = [one for one in made if one.asks]
        today = Today(DAY, len(made), len(asked), sum("sample" in one.reasons for one in asked))
        made.append(chosen(confidence, judgment_id=named(number), asking=asking, today=today))
    return made


@pytest.mark.parametrize(
    ("asking", "most"),
    [
        (Asking(max_reviews_per_day=12), 12),
        (Asking(max_review_share=0.1), 100),
        (Asking(max_review_share=0.1, max_reviews_per_day=30), 30),
        (Asking(max_review_share=0.01, max_reviews_per_day=30), 10),
    ],
)
def test_a_day_full_of_doubt_spends_its_budget_and_no_more(asking: Asking, most: int) -> None:
    made = day_of(asking, [0.1] * 1000)
    asked = [one for one in made if one.asks]
    assert len(asked) <= most
    assert len(asked) >= 0.8 * most
    blind = [one for one in asked if is_blind(one.reasons)]
    assert len(blind) >= 0.1 * most


def test_share_is_kept_to_all_day_long() -> None:
    made = day_of(Asking(max_review_share=0.25, sample_share=0), [0.1] * 100)
    assert [sum(one.asks for one in made[:count]) for count in (1, 2, 4, 5, 41)] == [1, 1, 1, 2, 11]
    few = day_of(Asking(max_review_share=1, sample_share=0), [0.1, 0.99] * 50)
    assert sum(one.asks for one in few) == 50


def test_nothing_is_kept_back_where_nothing_is_bounded_or_drawn() -> None:
    assert all(one.asks for one in day_of(Asking(), [0.1] * 200))
    undrawn = day_of(Asking(max_reviews_per_day=10, sample_share=0), [0.1] * 200)
    assert [one.asks for one in undrawn] == [True] * 10 + [False] * 190


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
        ({"max_reviews_per_day": 0}, "max_reviews_per_day"),
        ({"max_reviews_per_day": -3}, "max_reviews_per_day"),
        ({"max_reviews_per_day": 2.5}, "max_reviews_per_day"),
        ({"max_reviews_per_day": "10"}, "max_reviews_per_day"),
        ({"max_reviews_per_day": True}, "max_reviews_per_day"),
        ({"max_review_share": 0}, "max_review_share"),
        ({"max_review_share": 20}, "max_review_share"),
        ({"max_review_share": "5%"}, "max_review_share"),
        ({"max_review_share": float("nan")}, "max_review_share"),
        ({"sample_share": -0.1}, "sample_share"),
        ({"sample_share": 5}, "sample_share"),
        ({"sample_share": None}, "sample_share"),
        ({"sample_share": False}, "sample_share"),
    ],
)
def test_wrong_settings_are_one_sentence(options: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "target_agreement": 0.9,
        "max_reviews_per_day": None,
        "max_review_share": None,
        "sample_share": 0.05,
    }
    with pytest.raises(InvalidInputError, match=rf"^{field}: ") as caught:
        check_asking(**{**good, **options})
    assert "\n" not in str(caught.value)


def test_settings_at_their_edges_are_taken() -> None:
    asking = check_asking(
        target_agreement=0.5, max_reviews_per_day=1, max_review_share=1, sample_share=0
    )
    assert asking == Asking(0.5, 1, 1, 0)
    assert asking.has_budget
    assert not Asking().has_budget
    assert check_target(0.999) == 0.999
