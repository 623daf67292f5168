"""Operations that teach nothing, and a prompt that leaves little room for them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from memalign_graph import Categorical, Criterion, Episode, Example, Feedback, Guideline, Numeric
from memalign_graph.prompts.distill import (
    DistillPrompt,
    distill_prompt,
    operations_schema,
    read_operations,
)
from memalign_graph.prompts.fences import estimate_tokens
from tests.conftest import CASE, COLD, CRITERION, OTHER, Bench, distillings, operations

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SORRY = "A reply that says no word of regret is not appropriate."
SHAPE = "Answer in this shape: "
SCALES = (
    CRITERION,
    Criterion(name="kind", instructions="Which?", scale=Categorical(choices=("good", "bad"))),
    Criterion(
        name="grade", instructions="How good?", scale=Numeric(minimum=1, maximum=5, integer=True)
    ),
)

Op = Mapping[str, Any]


def add(text: str, **more: Any) -> dict[str, Any]:
    return {"action": "add", "text": text, **more}


def revise(text: str) -> dict[str, Any]:
    return {"action": "revise", "guideline": "G1", "text": text}


IDLE: dict[str, tuple[Op, str]] = {
    "own-words": (revise(SORRY), "it gives a guideline the words it has"),
    "own-words-in-other-letters": (
        revise(f" {SORRY.upper().rstrip('.')}  "),
        "it gives a guideline the words it has",
    ),
    "output": (add(OTHER["outputs"]), "it repeats the output"),
    "output-in-other-letters": (add(f"send  us\na {'PHOTO'}"), "it repeats the output"),
    "scale": (add(CRITERION.scale.describe()), "it says no more than the criterion"),
    "scale-in-a-sentence": (
        add(f"The value is {CRITERION.scale.describe()}"),
        "it says no more than the criterion",
    ),
}


def guideline(name: str, text: str = "", *, expert: bool = False, position: int = 1) -> Guideline:
    return Guideline(
        id=f"id-{name}",
        text=text or f"Rule {name}.",
        origin="expert" if expert else "distilled",
        position=position,
        created_at=NOW,
        updated_at=NOW,
    )


def episode(outputs: Any, **word: Any) -> Episode:
    example = Example(inputs="Hello?", outputs=outputs)
    return Episode.from_feedback(Feedback(example=example, **{"rationale": "Rude.", **word}))


FIRST, SECOND = episode("Go away."), episode("Well...")


def prompt(
    *episodes: Episode,
    guidelines: Any = (),
    window: int = 100_000,
    criterion: Criterion = CRITERION,
) -> DistillPrompt:
    return distill_prompt(
        criterion,
        guidelines=list(guidelines),
        episodes=episodes or [FIRST],
        max_input_tokens=window,
    )


def properties(given: DistillPrompt) -> dict[str, Any]:
    item = operations_schema(given)["properties"]["operations"]["items"]
    assert item["required"] == list(item["properties"])
    return dict(item["properties"])


async def ask_to_learn(bench: Bench, *answers: Any) -> Any:
    """Learn one guideline, then give another reply, to which the model answers as told."""
    graph = bench.review_graph()
    await bench.invoke(graph, CASE, "a")
    bench.server.script(operations(add(SORRY)))
    await bench.resume(graph, COLD, "a")
    await bench.invoke(graph, OTHER, "b")
    bench.server.script(*answers)
    return await bench.resume(graph, {"rationale": "Thank them first."}, "b")


@pytest.mark.parametrize("idle", list(IDLE))
async def test_what_teaches_nothing_is_asked_for_again(bench: Bench, idle: str) -> None:
    operation, complaint = IDLE[idle]
    rule = "A reply that does not thank the customer is not appropriate."
    given = await ask_to_learn(bench, operations(operation), operations(add(rule)))
    assert [(one["action"], one["text"]) for one in given["learned"]["guidelines"]] == [
        ("add", rule)
    ]
    assert [one.text for one in await bench.guidelines()] == [SORRY, rule]
    _, first, second = distillings(bench.server)
    assert second.messages[:2] == first.messages
    assert complaint in second.messages[3]["content"]


@pytest.mark.parametrize("idle", list(IDLE))
async def test_what_teaches_nothing_twice_is_dropped_and_told(bench: Bench, idle: str) -> None:
    operation, complaint = IDLE[idle]
    given = await ask_to_learn(bench, operations(operation), operations(operation))
    assert given["learned"]["guidelines"] == []
    [warning] = given["learned"]["warnings"]
    assert warning.startswith("The model's guideline \"")
    assert f'" was not kept, since {complaint}' in warning
    [guideline] = await bench.guidelines()
    assert guideline.text == SORRY
    assert len(guideline.episode_ids) == 1
    assert [one.status for one in await bench.episodes()] == ["distilled", "distilled"]
    assert len(distillings(bench.server)) == 3


async def test_first_guideline_is_not_made_of_the_output(bench: Bench) -> None:
    graph = bench.review_graph()
    await bench.invoke(graph, CASE)
    bench.server.script(*[operations(add(CASE["outputs"]))] * 2)
    given = await bench.resume(graph, COLD)
    assert given["learned"]["guidelines"] == await bench.guidelines() == []
    [one] = await bench.episodes()
    assert (one.status, given["learned"]["episode_ids"]) == ("distilled", [one.id])


async def test_what_stands_beside_it_is_kept(bench: Bench) -> None:
    both = operations(revise(SORRY), add("Thank the customer."))
    given = await ask_to_learn(bench, both, both)
    assert [one["text"] for one in given["learned"]["guidelines"]] == ["Thank the customer."]
    [warning] = given["learned"]["warnings"]
    assert SORRY in warning
    assert [one.text for one in await bench.guidelines()] == [SORRY, "Thank the customer."]


@pytest.mark.parametrize("criterion", SCALES, ids=["boolean", "categorical", "numeric"])
@pytest.mark.parametrize("form", ["{}", "The value is {}", "the value is  {}"])
def test_scale_in_words_is_no_guideline(criterion: Criterion, form: str) -> None:
    given = prompt(criterion=criterion)
    answer = operations(add(form.format(criterion.scale.describe())))
    with pytest.raises(ValueError, match="it says no more than the criterion"):
        read_operations(answer, given)
    assert read_operations(answer, given, drop_idle=True).operations == []


def test_output_is_looked_for_in_the_feedback_that_is_named() -> None:
    given = prompt(FIRST, SECOND)
    with pytest.raises(ValueError, match="it repeats the output"):
        read_operations(operations(add("Well...", feedback=["F1", "F2"])), given)
    [kept] = read_operations(operations(add("Well...", feedback=["F1"])), given).operations
    assert kept.text == "Well..."


def test_what_does_teach_is_left_alone() -> None:
    given = prompt(guidelines=[guideline("a", SORRY), guideline("b")])
    answer = operations(
        add("Go away is not polite."),
        add(SORRY),  # stands already: it gets one more source
        revise("Rule b."),  # the words of another
        {"action": "retire", "guideline": "G1", "text": SORRY},
    )
    assert len(read_operations(answer, given).operations) == 4
    assert read_operations(answer, given, drop_idle=True) == read_operations(answer, given)


@pytest.mark.parametrize("drop_idle", [False, True])
def test_what_is_wrong_is_never_dropped(drop_idle: Any) -> None:
    answer = operations(add("Go away."), add(""))
    with pytest.raises(ValueError, match='has no "text"'):
        read_operations(answer, prompt(), drop_idle=drop_idle)


@pytest.mark.parametrize(
    "standing", [[], [guideline("x", expert=True)]], ids=["none", "experts-own"]
)
def test_without_a_guideline_to_change_there_is_only_add(standing: list[Guideline]) -> None:
    given = prompt(guidelines=standing)
    fields = properties(given)
    assert fields["action"]["enum"] == ["add"]
    assert list(fields) == ["text", "action"]
    system = given.messages[0].text
    assert '"add"' in system
    assert '"revise"' not in system
    assert '"retire"' not in system


def test_with_guidelines_to_change_there_is_all() -> None:
    given = prompt(guidelines=[guideline("a"), guideline("x", expert=True)])
    fields = properties(given)
    assert fields["action"]["enum"] == ["add", "revise", "retire"]
    assert fields["guideline"]["enum"] == ["none", "G1"]
    assert list(fields) == ["text", "action", "guideline"]
    assert '"retire"' in given.messages[0].text


def test_feedback_is_named_only_where_there_are_several() -> None:
    assert "feedback" not in properties(prompt(FIRST))
    both = properties(prompt(FIRST, SECOND))
    assert both["feedback"]["items"]["enum"] == ["F1", "F2"]
    assert list(both) == ["text", "action", "feedback"]


def test_feedback_that_did_not_fit_is_not_named() -> None:
    packed = prompt(*(episode(f"{n} {'word ' * 400}") for n in range(20)), window=4096)
    named = properties(packed)["feedback"]["items"]["enum"]
    assert named == [f"F{n}" for n in range(1, len(packed.episodes) + 1)]
    assert 1 < len(named) < 20


@pytest.mark.parametrize("standing", [[], [guideline("a")]], ids=["none", "one"])
def test_closing_shows_an_answer_in_the_shape_of_the_schema(standing: list[Guideline]) -> None:
    given = prompt(FIRST, guidelines=standing)
    _, shown, shape = given.messages[1].text.rpartition(SHAPE)
    assert shown
    answer = json.loads(shape)
    assert list(answer) == list(operations_schema(given)["properties"])
    [operation] = answer["operations"]
    fields = properties(given)
    assert list(operation) == list(fields)
    assert operation["action"] in fields["action"]["enum"]
    if "guideline" in fields:
        assert operation["guideline"] in fields["guideline"]["enum"]
    # Given back as it is, it teaches nothing.
    with pytest.raises(ValueError, match="it repeats the shape of the answer"):
        read_operations(answer, given)
    [read] = read_operations(operations({**operation, "text": "Be kind."}), given).operations
    assert (read.action, read.episode_ids) == ("add", [FIRST.id])


@pytest.mark.parametrize("standing", [[], [guideline("a")]], ids=["none", "one"])
def test_closing_of_several_names_the_fields_of_the_schema(standing: list[Guideline]) -> None:
    """A small model gives back a shape that it is shown beside much feedback."""
    given = prompt(FIRST, SECOND, guidelines=standing)
    closing = given.messages[1].text.rpartition("\n\n")[2]
    assert SHAPE not in closing
    assert closing.endswith(", ".join(f'"{name}"' for name in properties(given)) + ".")


@pytest.mark.parametrize(
    "text",
    [
        "The reply names no detail of this case that does not matter to the rule.",
        "The reply must follow the expert's value: false.",
        "the expert's reason",
        "the value",
    ],
)
def test_the_prompts_own_words_are_no_guideline(text: str) -> None:
    answer = {"operations": [{"action": "add", "text": text}]}
    with pytest.raises(ValueError, match=r"prompt|asked for|expert's value"):
        read_operations(answer, prompt())


def test_an_experts_words_may_be_those_of_the_prompt() -> None:
    said = "Rude: it names no detail of this case that does not matter to the rule."
    answer = {"operations": [{"action": "add", "text": said}]}
    [operation] = read_operations(answer, prompt(episode("Go away.", rationale=said))).operations
    assert operation.text == said


@pytest.mark.parametrize("text", ["the rule", " The rule. ", "...", "-"])
def test_placeholder_is_no_guideline(text: str) -> None:
    answer = operations(add(text))
    with pytest.raises(ValueError, match="it repeats the shape of the answer"):
        read_operations(answer, prompt())
    assert read_operations(answer, prompt(), drop_idle=True).operations == []


@pytest.mark.parametrize("origin", ["distilled", "expert"])
@pytest.mark.parametrize("window", [4096, 8192])
def test_many_guidelines_leave_room_for_the_feedback(window: int, origin: str) -> None:
    rules = [f"Rule {number:03} {'x' * 141}" for number in range(400)]
    assert min(map(estimate_tokens, rules)) >= 50
    packed = prompt(
        episode("word " * 5000, rationale="why " * 5000),
        guidelines=[
            guideline(rule, rule, expert=origin == "expert", position=number)
            for number, rule in enumerate(rules)
        ],
        window=window,
    )
    human = packed.messages[1].text
    assert sum(estimate_tokens(one.text) for one in packed.messages) <= window
    shown = [rule for rule in rules if rule in human]
    assert shown == rules[-len(shown) :]  # the newest
    assert 15 < len(shown) < 100
    assert "why why" in human
    assert "word word" in human


def test_a_rule_that_says_no_more_than_the_criterion_is_idle() -> None:
    criterion = Criterion(name="tone", instructions="Is the reply appropriate for the customer?")
    example = Example(inputs="My order never came.", outputs="Check the tracking page.")
    episode = Episode.from_feedback(Feedback(example=example, rationale="Say sorry first."))
    prompt = distill_prompt(criterion, guidelines=[], episodes=[episode], max_input_tokens=8192)

    def read(text: str) -> int:
        answer = {"operations": [{"text": text, "action": "add"}]}
        return len(read_operations(answer, prompt, drop_idle=True).operations)

    assert read("If the reply is not appropriate for the customer, the value is false.") == 0
    assert read("If the reply does not say sorry, the value is false.") == 1
    assert read("No SQL.") == 1


@pytest.mark.parametrize(("window", "most"), [(8_192, 11), (128_000, 40), (1_400, 2)])
def test_a_small_window_is_asked_for_few_operations(window: int, most: int) -> None:
    # Without reasons a small model writes rules until its answer is cut off.
    said = [episode(f"Reply {number}.", rationale=None, value=False) for number in range(20)]
    given = prompt(*said, window=window)
    schema = operations_schema(given)["properties"]["operations"]
    assert schema["maxItems"] == given.most_operations == most
