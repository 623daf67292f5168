"""What the tests of the replay guard share: a judge that does what its guidelines say."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from memalign_graph import Criterion
from tests.conftest import CRITERION, Bench, Graph
from tests.integration_tests.alignment_support import (
    Model,
    add,
    align,
    alignment,
    each_its_words,
    feedback_in,
    record,
    rules_in,
    said,
)
from tests.loopback import ChatRequest, ReplyLike

_QUESTION = re.compile(r"Question (\d+):")
_SAYS = re.compile(r"is (true|false) of cases ((?:\d+ ?)+)")


def judged_case(chat: ChatRequest) -> int:
    """The number of the case that a judge is to judge."""
    found = _QUESTION.search(chat.text.rpartition("<case>")[2])
    assert found is not None
    return int(found[1])


def others_in(chat: ChatRequest) -> set[int]:
    """The numbers of the earlier cases in a judge's prompt."""
    return {int(number) for number in _QUESTION.findall(chat.text.rpartition("<case>")[0])}


def judge_by_rules(
    *, wrong: Iterable[int] = (), right: Any = True, otherwise: Any = False
) -> Callable[[ChatRequest], Any]:
    """Make a judge that is right, but of some cases, unless a guideline says otherwise.

    Guidelines say `it is false of cases 3 4` or `it is true of cases 5`.
    """

    def judge(chat: ChatRequest) -> Any:
        number = judged_case(chat)
        value = otherwise if number in wrong else right
        for rule in rules_in(chat):
            for said_of, numbers in _SAYS.findall(rule):
                if number in map(int, numbers.split()):
                    value = right if said_of == "true" else otherwise
        return value

    return judge


def teaching(*, judge: Callable[[ChatRequest], Any] | None = None) -> Model:
    """A model that makes rules of words just as they are said, and judges by them."""
    return Model(distil=each_its_words, judge=judge or judge_by_rules())


def words(number: int, text: str, **fields: Any) -> dict[str, Any]:
    """A word on a new case, which becomes a guideline as it is."""
    return said(number, text, **{"value": True, **fields})


async def seed(
    bench: Bench, count: int, *rules: str, criterion: Criterion = CRITERION, value: Any = True
) -> None:
    """Bring cases into memory on which judge and expert agree, and some rules."""

    def distil(chat: ChatRequest) -> ReplyLike:
        handle = next(iter(feedback_in(chat)))
        return {"operations": [add(rule, handle) for rule in rules]}

    bench.server.responder = Model(distil=distil)
    given = [record(number, value=value) for number in range(count)]
    await align(bench, given, alignment(bench, criterion), "seed")
    assert len(await bench.guidelines(criterion=criterion)) == len(rules)
    bench.server.chats.clear()
    bench.server.embeddings.clear()


def guarded(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """The graph with its guard, and as many cases as there are."""
    return alignment(bench, criterion, **{"guard": "replay", "replay_cases": 50, **options})


async def verdicts(bench: Bench, numbers: Iterable[int], **options: Any) -> list[Any]:
    """What the judge's own graph says of cases with the memory as it is."""
    graph = bench.judge_graph(**options)
    found = []
    for number in numbers:
        case = {name: record(number)[name] for name in ("inputs", "outputs")}
        given = await bench.invoke(graph, case, f"judge{number}")
        found.append(given["judgment"]["value"])
    return found
