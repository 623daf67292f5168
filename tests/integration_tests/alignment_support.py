"""What the tests of the alignment graph share: records, and a model that follows its prompts."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.graph import StateGraph

from memalign_graph import Criterion, Guideline, create_alignment_graph
from memalign_graph.memory.history import Retired
from tests.conftest import CRITERION, Bench, Graph
from tests.loopback import ChatRequest, Reply, ReplyLike, answer
from tests.loopback.replies import as_reply

START = datetime(2026, 1, 1, tzinfo=UTC)


DISTIL, COMPARE, JUDGE = "guideline_operations", "guideline_relations", "judgment"
"""What a request is for, by the name of its schema."""

_BLOCK = re.compile(r"^Feedback (F\d+(?:, F\d+)*)", re.MULTILINE)
_REASON = re.compile(
    r"(?:(F\d+)\. )?(?:The expert's reason:\n)?<rationale>\n(.*?)\n</rationale>", re.DOTALL
)
_LABEL = re.compile(r"(?:(F\d+)\. )?The expert's value: (\S+)")
_RULE = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_TOPIC = re.compile(r"#(\w+)")


def record(number: int, topic: Any = None, **fields: Any) -> dict[str, Any]:
    """One expert's word on one case; records on one topic teach one rule in their own words."""
    topic = number if topic is None else topic
    return {
        "inputs": f"Question {number}: where is order {number}?",
        "outputs": f"Answer {number}: it is on its way, number {number}.",
        "value": bool(number % 2),
        "rationale": f"On #{topic} the reply has to name the order; so said of case {number}.",
        "author": "ann",
        "given_at": (START + timedelta(minutes=number)).isoformat(),
        **fields,
    }


def records(count: int, topics: int | None = None, first: int = 0) -> list[dict[str, Any]]:
    """Records on cases of their own, which go round some topics; each its own unless told."""
    numbers = range(first, first + count)
    return [record(number, number % topics if topics else None) for number in numbers]


def said(number: int, text: str, **fields: Any) -> dict[str, Any]:
    """A record whose words are to become a guideline as they are."""
    return record(number, rationale=text, **fields)


def topic_of(text: str) -> str:
    """What a rule is about."""
    found = _TOPIC.search(text)
    return found[1] if found else text


def asked(bench: Bench, purpose: str) -> list[ChatRequest]:
    """The requests for one purpose."""
    return [chat for chat in bench.server.chats if chat.schema_name == purpose]


def feedback_in(request: ChatRequest) -> dict[str, str]:
    """The words in a distiller's prompt, by handle; a label alone counts as words."""
    text = request.text
    starts = list(_BLOCK.finditer(text))
    found: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        block = text[start.start() : end.start() if end else len(text)]
        handles = start[1].split(", ")
        for pattern in (_LABEL, _REASON):
            for one in pattern.finditer(block):
                found[one[1] or handles[0]] = " ".join(one[2].split())
    return dict(sorted(found.items(), key=lambda one: int(one[0][1:])))


def rules_in(request: ChatRequest) -> list[str]:
    """The rules to compare, or those that a judge is given."""
    return [text for _, text in _RULE.findall(request.text)]


def opposed(one: str, other: str) -> bool:
    """Whether one rule says always what another on its topic says never."""
    return topic_of(one) == topic_of(other) and {"always", "never"} <= {
        word for text in (one, other) for word in ("always", "never") if word in text.casefold()
    }


def add(text: str, *handles: str) -> dict[str, Any]:
    """A distiller's proposal of a new rule."""
    return {"action": "add", "guideline": "none", "text": text, "feedback": list(handles) or ["F1"]}


def revise(handle: str, text: str, *handles: str) -> dict[str, Any]:
    """A distiller's proposal of other words."""
    return {**add(text, *handles), "action": "revise", "guideline": handle}


def retire(handle: str, text: str, *handles: str) -> dict[str, Any]:
    """A distiller's proposal to give a rule up, perhaps for another."""
    return {**add(text, *handles), "action": "retire", "guideline": handle}


@dataclass
class Model:
    """A model whose answers follow from the prompt alone, however often and in which order asked.

    It makes one rule of all feedback on a topic, finds rules on one topic to be the same or, where
    one says always and another never, opposed, and judges everything to be right.
    """

    distil: Callable[[ChatRequest], ReplyLike] | None = None
    compare: Callable[[ChatRequest], ReplyLike] | None = None
    judge: Callable[[ChatRequest], Any] = lambda _: True

    def __call__(self, request: ChatRequest) -> Reply:
        match request.schema_name:
            case "guideline_operations":
                return as_reply((self.distil or rules_by_topic)(request))
            case "guideline_relations":
                return as_reply((self.compare or relations_by_topic)(request))
            case _:
                return answer({"rationale": "Seen.", "value": self.judge(request)})


def rules_by_topic(request: ChatRequest) -> ReplyLike:
    """One new rule a topic, in the words of the first that speaks of it."""
    by_topic: dict[str, list[tuple[str, str]]] = {}
    for handle, words in feedback_in(request).items():
        by_topic.setdefault(topic_of(words), []).append((handle, words))
    return {
        "operations": [
            add(group[0][1], *(handle for handle, _ in group)) for group in by_topic.values()
        ]
    }


def each_its_words(request: ChatRequest) -> ReplyLike:
    """Every word of an expert a rule of its own, just as it was said."""
    return {"operations": [add(words, handle) for handle, words in feedback_in(request).items()]}


def relations_by_topic(request: ChatRequest) -> ReplyLike:
    """Rules on one topic are the same, or opposed."""
    rules = rules_in(request)
    numbers = range(1, len(rules) + 1)
    pairs = [
        [a, b] for a in numbers for b in numbers if a < b and opposed(rules[a - 1], rules[b - 1])
    ]
    groups: dict[tuple[str, bool], list[int]] = {}
    for number in numbers:
        text = rules[number - 1]
        groups.setdefault((topic_of(text), "never" in text), []).append(number)
    return {
        "duplicates": [group for group in groups.values() if len(group) > 1],
        "contradictions": pairs,
    }


def alignment(bench: Bench, criterion: Criterion = CRITERION, **options: Any) -> Graph:
    """The compiled graph."""
    return bench.compile(builder(bench, criterion, **options))


def builder(
    bench: Bench, criterion: Criterion = CRITERION, **options: Any
) -> StateGraph[Any, Any, Any, Any]:
    """The graph, not yet compiled."""
    models = {"model": bench.server.chat_model(), "embeddings": bench.server.embedder()}
    return create_alignment_graph(criterion, **{**models, **options})


async def align(
    bench: Bench, feedback: Any, graph: Graph | None = None, on: str | None = "t", **options: Any
) -> dict[str, Any]:
    """Learn from feedback; returns the report."""
    given = await bench.invoke(graph or alignment(bench), {"feedback": feedback}, on, **options)
    assert set(given) == {"report"}
    report: dict[str, Any] = given["report"]
    return report


def by_text(changes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many sources each guideline of a report has."""
    return {one["text"]: len(one["episode_ids"]) for one in changes}


def sources(guidelines: Iterable[Guideline]) -> dict[str, int]:
    """How many sources each guideline has."""
    return {one.text: len(one.episode_ids) for one in guidelines}


async def retired(bench: Bench) -> list[Retired]:
    """The guidelines that were taken away, the last first, by what and why."""
    memory = bench.memory()
    history = await memory.ahistory() if bench.awaits else memory.history()
    return [one for commit in history for one in commit.retired]


async def version(bench: Bench, **options: Any) -> str:
    """The memory's version."""
    memory = bench.memory(**options)
    return await memory.aversion() if bench.awaits else memory.version()


async def commits(bench: Bench) -> int:
    """How many commits the memory has."""
    memory = bench.memory()
    return len(await memory.ahistory() if bench.awaits else memory.history())


def embedded(bench: Bench) -> list[str]:
    """The texts embedded since the server was last reset."""
    return [text for request in bench.server.embeddings for text in request.texts]


def progress_of(events: Iterable[Any], stage: str) -> list[tuple[int, int]]:
    """How far a stage was, event by event."""
    return [
        (one["done"], one["of"])
        for one in events
        if one.get("type") == "alignment_progress" and one["stage"] == stage
    ]
