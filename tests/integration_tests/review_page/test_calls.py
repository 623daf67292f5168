"""A tool call as a case: arguments and differences from an approved call."""

import asyncio
import re
from typing import Any

import pytest

from memalign_graph import Example, Feedback, create_judge_graph
from memalign_graph.review.blocks import arguments_of, tool_call
from memalign_graph.types import ReviewChoice
from tests.builders import keep_reviewed
from tests.conftest import CRITERION
from tests.integration_tests.review_page.conftest import Office

ASKED = [{"role": "user", "content": "Refund order A7."}]


def call(name: str = "refund", **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


async def test_call_is_compared_with_the_nearest_approved_call(office: Office) -> None:
    _, ann = await office.begin(call(order="A7", amount=5, note="<b>now</b>"))
    other = Example(inputs=ASKED, outputs=call("credit", order="A7", amount=5))
    await office.memory.aremember(Feedback(example=other, value=True))
    case = ann.here
    assert "No call of refund is approved yet." in (await ann.get(f"{case}/nearest")).text
    # More similar, but right for one of three only.
    fast = call(order="A7", amount=5, note="<b>now</b>", fast=True)
    feedback = [(call(order="A7", amount=20), True), (fast, False), (fast, True), (fast, False)]
    for number, (outputs, value) in enumerate([*feedback, ("Paid.", True)]):
        example = Example(inputs=ASKED, outputs=outputs)
        await office.memory.aremember(Feedback(example=example, value=value, author=f"e{number}"))
    await ann.get(case)
    assert 'hx-trigger="load"' in ann.page.text
    assert "Call of refund" in ann.text
    assert "<b>now" not in ann.page.text
    await ann.get(f"{case}/nearest")
    assert "The nearest approved call of refund" in ann.text
    assert "e0 : Yes" in ann.text
    assert "<b>now" not in ann.page.text
    rows = re.findall(
        r"<tr( class=\"differs\")?><th scope=\"row\" dir=\"auto\">(\w+)", ann.page.text
    )
    assert rows == [("", "order"), (' class="differs"', "amount"), (' class="differs"', "note")]


@pytest.mark.parametrize(
    ("value", "asks", "ran"), [(True, False, True), (True, True, False), (False, False, False)]
)
async def test_call_that_ran_without_approval_is_marked_and_can_be_rated_wrong(
    office: Office, *, value: bool, asks: bool, ran: bool
) -> None:
    choice = ReviewChoice(asks=asks, reasons=["sample"] if asks else [])
    example = Example(inputs=ASKED, outputs=call(order="A7", amount=5))
    keep_reviewed(office.memory.access, example, *choice.reasons, value=value, review=choice)
    queue = office.queue()
    ann = await office.expert("ann", queue).get("/review")
    assert ("ran without a question" in ann.text) == ran
    assert "Input: Refund order A7." in ann.text
    await ann.get("/review/next")
    assert ("This call ran without a question" in ann.text) == ran
    await office.answer(queue, ann, value="false", rationale="Too little.")
    report = await office.memory.areview_report()
    assert report.unasked_wrong == int(ran)


async def test_reason_to_ask_does_not_tell_the_hidden_verdict(office: Office) -> None:
    example = Example(inputs=ASKED, outputs=call(order="A7", amount=5))
    await asyncio.to_thread(keep_reviewed, office.memory.access, example, "judged_wrong", "sample")
    ann = office.expert("ann", office.queue())
    for path in ("/review", "/review/next"):
        await ann.get(path)
        assert "it was drawn at random" in ann.text
        assert "says that the call" not in ann.text


def test_only_a_name_with_arguments_counts_as_a_call() -> None:
    assert tool_call(call(a=1)) == call(a=1)
    others: list[Any] = ["refund", None, [], {"name": "x"}, {"name": "x", "args": "y"}]
    for outputs in (*others, {"name": 1, "args": {}}, {**call(), "id": 1}):
        assert tool_call(outputs) is None
    arguments = arguments_of(call(a=1, b=None), call(a=1, b=None, c=0))
    assert all(item.other for item in arguments)
    differences = {item.name: item.differs for item in arguments}
    assert differences == {"a": False, "b": False, "c": True}
    assert [item.differs for item in arguments_of(call(a=1), call(a=True))] == [True]


async def test_list_shows_the_last_question_of_a_conversation(office: Office) -> None:
    later = {"role": "user", "content": "متى؟"}
    turns = [*ASKED, {"role": "assistant", "content": "Done."}, later]
    graph = create_judge_graph(CRITERION, **office.judge.options).compile(store=office.store)
    await graph.ainvoke({"inputs": turns, "outputs": "Today."})
    ann = await office.expert("ann", office.queue()).get("/review")
    assert "Input: <bdi>متى؟</bdi>" in ann.page.text, "a direction of its own"
