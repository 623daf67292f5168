"""What tests of deciding by evidence share: cases whose neighbours tell, and a judge that does not.

Cases of one topic share their words, so that they are near each other; experts value a topic alike.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from memalign_graph import Criterion, Episode, create_alignment_graph
from tests.conftest import CRITERION, Bench, Graph
from tests.integration_tests.alignment_model import relations_by_topic
from tests.loopback import LETTER_ALONE, ChatRequest, Reply, ReplyLike, answer, with_letters
from tests.loopback.replies import as_reply

START = datetime(2026, 1, 1, tzinfo=UTC)

_TOPICS = (
    "parcel lost in the depot of the harbour, and nobody told the customer",
    "teapot cracked on its way, wrapped in paper of the finest kind",
    "subscription renewed although it was cancelled twice by telephone",
    "voucher refused at the till of the shop around the corner",
)
_CASE = re.compile(r"Case (\d+)[:.]")


def case(number: int) -> dict[str, Any]:
    """A case with words of its own; of each four in a row every one is of another topic."""
    topic = _TOPICS[number % len(_TOPICS)]
    own = " ".join(f"detail{number}x{at}" for at in range(10))
    return {"inputs": f"Case {number}: {topic}. {own}", "outputs": f"So we answered {topic}."}


def truth(number: int) -> bool:
    """What experts say: two topics are right, two are wrong."""
    return number % len(_TOPICS) < 2


def word(number: int, **fields: Any) -> dict[str, Any]:
    return {
        **case(number),
        "value": truth(number),
        "author": "ann",
        "given_at": (START + timedelta(minutes=number)).isoformat(),
        **fields,
    }


def words(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [word(number, **fields) for number in range(count)]


def number_of(chat: ChatRequest) -> int:
    return int(_CASE.findall(chat.text.rpartition("<case>")[2])[0])


def earlier(chat: ChatRequest) -> list[int]:
    """The numbers of the earlier cases in a judge's prompt."""
    return [int(number) for number in _CASE.findall(chat.text.rpartition("<case>")[0])]


def asks_for_value(chat: ChatRequest) -> bool:
    """Whether a request is for the value alone, to measure how sure the judge is."""
    return chat.schema is None and LETTER_ALONE in chat.text


def measurings(bench: Bench) -> list[ChatRequest]:
    """The requests for the value alone."""
    return [chat for chat in bench.server.chats if asks_for_value(chat)]


@dataclass
class Judge:
    """A model that judges as told, and learns as told; nothing unless told."""

    value: Callable[[int], Any] = lambda _: True
    """What it says of a case."""

    belief: Callable[[int], float] = lambda _: 0.7
    """How likely it holds `true`."""

    distil: Callable[[ChatRequest], ReplyLike] = lambda _: {"operations": []}

    def __call__(self, chat: ChatRequest) -> Reply:
        match chat.schema_name:
            case "guideline_operations":
                return as_reply(self.distil(chat))
            case "guideline_relations":
                return as_reply(relations_by_topic(chat))
        number = number_of(chat)
        if asks_for_value(chat):
            belief = self.belief(number)
            return with_letters(chat.text, {"true": belief, "false": 1 - belief})
        value = self.value(number)
        if isinstance(value, Reply):
            return value
        return answer({"rationale": f"Seen {number}.", "value": value})


def learning(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """An alignment that judges its cases, and distils nothing unless told."""
    defaults = {
        "model": bench.server.chat_model(max_retries=0),
        "embeddings": bench.server.embedder(),
        "judge_cases": True,
        "distill": False,
        **options,
    }
    return bench.compile(create_alignment_graph(criterion, **defaults))


async def learn(bench: Bench, feedback: Iterable[Any], on: str | None = "t", **options: Any) -> Any:
    result = await bench.invoke(learning(bench, **options), {"feedback": list(feedback)}, on)
    return result["report"]


def by_number(episodes: Iterable[Episode]) -> dict[int, Episode]:
    """Episodes by the number of their case."""
    return {int(_CASE.findall(str(episode.example.inputs))[0]): episode for episode in episodes}
