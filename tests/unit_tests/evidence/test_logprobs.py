"""Probabilities of the permitted values, however an answer is cut into tokens."""

import random
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Numeric
from memalign_graph.evidence.logprobs import (
    MAX_VALUES,
    permitted_values,
    read_tokens,
    value_probabilities,
)
from memalign_graph.scales import Scale
from tests.unit_tests.evidence.tokens import (
    DOZEN,
    LABELS,
    NESTED,
    ODD,
    SCALES,
    STARS,
    Step,
    Writer,
    read,
    written,
)

TRUE = {"true": 0.7, "false": 0.2, "maybe": 0.1}
TRUE_SHARE: Any = pytest.approx(0.7 / 0.9)


def near(expected: float, abs: float | None = None) -> Any:  # noqa: A002 - as pytest calls it
    """Return a number that equals all that are about the same, inside other objects too."""
    return pytest.approx(expected, abs=abs)


@pytest.mark.parametrize("name", SCALES)
def test_any_tokens_give_the_probability_the_model_held_the_value_with(name: str) -> None:
    scale, told = SCALES[name], 0
    values = written(scale)
    for seed in range(60):
        rng = random.Random(seed)  # noqa: S311 - nothing secret
        odds = {one: rng.uniform(0.01, 1) for one in values}
        total = sum(odds.values())
        before, after = rng.choice(_AROUND)
        texts = {one: f"{before}{text}{after}" for one, text in values.items()}
        model = Writer(texts, odds, rng)
        for one in values:
            found = value_probabilities(read_tokens(model.write(one)), scale)
            if found is None:
                continue
            told += 1
            assert found[one] == near(odds[one] / total)
            assert sum(found.values()) == near(1)
            assert list(found) == list(values)
    # Some tokens hide a value, as " " hides 0 beside " -": then nothing is told or made up.
    assert told > 60 * len(values) * (0.02 if name == "signed" else 0.75)


_AROUND = [
    ('{"value": ', "}"),
    ('{"value":', "}"),
    ('{\n  "value" : ', "\n}\n"),
    ('{"rationale": "It says \\"value\\": true, but {no}.", "value": ', "}"),
    ('{"value": ', ', "rationale": "It says \\"value\\": false."}'),
    ('```json\n{"value": ', "}\n```"),
    ('{"notes": {"value": true, "more": [{"value": 3}]}, "value": ', "}"),
    ('{"value": ', ', "notes": {"value": "A"}}'),
    ('Here it is.\n{"value": ', "}"),
]


@pytest.mark.parametrize(
    "steps",
    [
        ['{"value":', (" true", {" true": 0.7, " false": 0.2, " maybe": 0.1})],
        ['{"', "value", '":', " ", ("true", TRUE), "}"],
        ['{"value"', ": ", ("true", TRUE), "}"],
        ['{"value', ('": true', {'": true': 0.7, '": false': 0.2, '": "': 0.1}), "}"],
        ['{"value":', (" true", {" true": 0.5, "true": 0.2, "false": 0.1, " false": 0.1}), "}"],
        ['{"value":', (" t", {" t": 0.7, " f": 0.2}), "rue", "}"],
        ['{"value":', "\n ", ("true}", {"true}": 0.7, "false}": 0.1, "false": 0.1})],
    ],
)
def test_blanks_and_pieces_of_a_boolean(steps: list[Step]) -> None:
    found = read(steps, Boolean())
    assert found == {"true": TRUE_SHARE, "false": near(0.2 / 0.9)}


def test_values_that_begin_alike_are_followed_to_where_they_differ() -> None:
    steps: list[Step] = [
        '{"value": "',
        ("full", {"full": 0.8, "partial": 0.2, "none": 0.5}),
        "_",
        ("ref", {"ref": 0.25, "compliance": 0.75}),
        'usal"}',
    ]
    found = read(steps, LABELS)
    assert found == {
        "full_compliance": near(0.6),
        "full_refusal": near(0.2),
        "partial_refusal": near(0.2),
    }


def test_a_name_that_another_begins_with_ends_with_its_quote() -> None:
    steps: list[Step] = [
        '{"value": "',
        ("good", {"good": 0.9, "bad": 0.1}),
        ('"', {'"': 0.5, " enough": 0.3, "ness": 0.2}),
    ]
    found = read(steps, NESTED)
    assert found == {
        "good": near(0.45),
        "good enough": near(0.27),
        "goodness": near(0.18),
        "bad": near(0.1),
    }


def test_a_number_that_another_begins_with_in_digits() -> None:
    digits = {str(one): 0.05 for one in range(2, 10)} | {"1": 0.6}
    ends = {"}": 0.5, "0": 0.25, "1": 0.15, "2": 0.1}
    found = read(['{"value": ', ("1", digits), ("}", ends)], DOZEN)
    assert found is not None
    assert [round(found[one], 3) for one in ("1", "10", "11", "12", "2")] == [
        *(0.3, 0.15, 0.09, 0.06),
        0.05,
    ]


@pytest.mark.parametrize("chosen", ["1", "10", "7"])
def test_a_number_that_another_begins_with_in_tokens_of_their_own(chosen: str) -> None:
    odds = {str(one): 0.04 for one in range(1, 13)} | {"1": 0.36, "10": 0.2}
    steps: list[Step] = ['{"value": ', (chosen, odds), ("}", {"}": 0.99, "\n": 0.01})]
    found = read(steps, DOZEN)
    total = sum(odds.values())
    assert found == {one: near(odd / total) for one, odd in odds.items()}


def test_a_number_that_ends_the_answer_and_might_go_on_is_not_told() -> None:
    digits = {str(one): 0.1 for one in range(1, 10)}
    assert read(['{"value": ', ("1", digits)], DOZEN) is None
    assert read(['{"value": ', ("2", digits)], DOZEN) is not None


def test_a_longer_token_leaves_the_shorter_one_to_the_others() -> None:
    steps: list[Step] = [
        '{"value": "',
        ("good enough", {"good enough": 0.5, "good": 0.3, "bad": 0.2}),
        '"}',
    ]
    found = read(steps, NESTED)
    assert found is not None
    assert found["good enough"] == near(0.5)
    assert found["good"] + found["goodness"] == near(0.3)
    assert found["bad"] == near(0.2)


def test_a_character_may_be_cut_in_two() -> None:
    head, tail = "ü".encode()[:1], "ü".encode()[1:]
    content = [
        {"token": '{"value": "gr', "logprob": 0.0, "top_logprobs": []},
        {
            "token": "\\xc3",
            "bytes": list(head),
            "logprob": 0.0,
            "top_logprobs": [{"token": "\\xc3", "bytes": list(head), "logprob": 0.0}],
        },
        {
            "token": "\ufffd",
            "bytes": list(tail),
            "logprob": -0.5,
            "top_logprobs": [
                {"token": "\ufffd", "bytes": list(tail), "logprob": -0.5},
                {"token": "\ufffd", "bytes": list("ö".encode()[1:]), "logprob": -1.5},
            ],
        },
        {"token": 'n"}', "logprob": 0.0, "top_logprobs": []},
    ]
    scale = Categorical(choices=("grün", "grön"))
    found = value_probabilities(read_tokens({"content": content}), scale)
    assert found == {
        "grün": near(0.7311, abs=1e-4),
        "grön": near(0.2689, abs=1e-4),
    }


def test_without_bytes_the_text_counts() -> None:
    odds = {'"grün"': 0.5, '"größer"': 0.5}
    rest = {text: 0.01 for text in written(ODD).values() if text not in odds}
    found = read(['{"value": ', ('"grün"', odds | rest), "}"], ODD, in_bytes=False)
    assert found is not None
    assert found["grün"] == near(0.5 / 1.05)


def test_a_missing_value_is_no_confidence() -> None:
    assert read(['{"value": ', ("true", {"true": 0.999, "True": 0.001})], Boolean()) is None
    four = {"2": 0.4, "3": 0.3, "4": 0.2, "5": 0.1}
    assert read(['{"value": ', ("4", four), "}"], STARS) is None
    assert read(['{"value": ', ("4", four | {"1": 0.0}), "}"], STARS) is not None
    steps: list[Step] = ['{"value": "', ("full", {"full": 0.9, "partial": 0.1}), "_refusal", '"}']
    assert read(steps, LABELS) is None


def test_what_is_no_value_is_no_confidence() -> None:
    assert read(['{"value": ', ("null", TRUE | {"null": 0.5}), "}"], Boolean()) is None
    assert read(['{"value": "', ("yes", {"yes": 0.9, "no": 0.1}), '"}'], Boolean()) is None
    assert read(['{"rationale": "', ("true", TRUE), '"}'], Boolean()) is None
    assert read(["I say ", ("true", TRUE), "."], Boolean()) is None
    assert read(['{"value": ', ("3.5", {"3.5": 0.5, "3": 0.5}), "}"], STARS) is None
    assert read([], Boolean()) is None


def test_the_verdicts_own_value_counts_where_others_are_quoted() -> None:
    steps: list[Step] = [
        '{"rationale": "The reply says \\"',
        'value\\": ',
        ("false", {"false": 0.9, "true": 0.1}),
        ', {\\"value\\": false}.", "value": ',
        ("true", TRUE),
        ', "also": {"value": ',
        ("false", {"false": 0.9, "true": 0.1}),
        "}}",
    ]
    assert read(steps, Boolean()) == {"true": TRUE_SHARE, "false": near(0.2 / 0.9)}


def test_of_two_values_of_one_object_the_last_counts_as_in_json() -> None:
    steps: list[Step] = ['{"value": ', "false", ', "value": ', ("true", TRUE), "}"]
    assert read(steps, Boolean()) == {"true": TRUE_SHARE, "false": near(0.2 / 0.9)}


def test_what_a_grammar_forbids_does_not_count() -> None:
    # The alternatives are those before the grammar: what was written may be the least likely.
    odds = {'"true"': 0.9, "Yes": 0.08, "true": 0.015, "false": 0.005}
    found = read(['{"value": ', ("true", odds), "}"], Boolean())
    assert found == {"true": near(0.75), "false": near(0.25)}


@pytest.mark.parametrize(
    ("scale", "count"),
    [
        (Categorical(choices=tuple(f"c{n}" for n in range(MAX_VALUES))), MAX_VALUES),
        (Categorical(choices=tuple(f"c{n}" for n in range(MAX_VALUES + 1))), None),
        (Numeric(minimum=1, maximum=MAX_VALUES, integer=True), MAX_VALUES),
        (Numeric(minimum=0, maximum=MAX_VALUES, integer=True), None),
        (Numeric(minimum=0, maximum=1), None),
    ],
)
def test_only_scales_of_few_values_are_finite(scale: Scale, count: int | None) -> None:
    values = permitted_values(scale)
    assert (values and len(values)) == count
    if count is None:
        assert read(['{"value": ', ("1", {"1": 1.0}), "}"], scale) is None
