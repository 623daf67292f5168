"""A deterministic model for alignment tests that answers from its prompts."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.loopback import ChatRequest, Reply, ReplyLike, answer
from tests.loopback.replies import as_reply

DISTIL, COMPARE, JUDGE = "guideline_operations", "guideline_relations", "judgment"
"""What a request is for, by the name of its schema."""

_BLOCK = re.compile(r"^Feedback (F\d+(?:, F\d+)*)", re.MULTILINE)
_REASON = re.compile(
    r"(?:(F\d+)\. )?(?:The expert's reason:\n)?<rationale>\n(.*?)\n</rationale>", re.DOTALL
)
_LABEL = re.compile(r"(?:(F\d+)\. )?The expert's value: (\S+)")
_RULE = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_TOPIC = re.compile(r"#(\w+)")


def topic_of(text: str) -> str:
    match = _TOPIC.search(text)
    return match[1] if match else text


def feedback_in(request: ChatRequest) -> dict[str, str]:
    """The comments, or labels without comment, in a distill prompt, by handle."""
    text = request.text
    starts = list(_BLOCK.finditer(text))
    result: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        block = text[start.start() : end.start() if end else len(text)]
        handles = start[1].split(", ")
        for pattern in (_LABEL, _REASON):
            for item in pattern.finditer(block):
                result[item[1] or handles[0]] = " ".join(item[2].split())
    return dict(sorted(result.items(), key=lambda item: int(item[0][1:])))


def guidelines_in(request: ChatRequest) -> list[str]:
    return [text for _, text in _RULE.findall(request.text)]


def contradict(one: str, other: str) -> bool:
    """Whether two guidelines on one topic say "always" and "never"."""
    return topic_of(one) == topic_of(other) and {
        adverb
        for text in (one, other)
        for adverb in ("always", "never")
        if adverb in text.casefold()
    } == {"always", "never"}


def add(text: str, *handles: str) -> dict[str, Any]:
    """An operation that adds a guideline."""
    return {"action": "add", "guideline": "none", "text": text, "feedback": list(handles) or ["F1"]}


def revise(handle: str, text: str, *handles: str) -> dict[str, Any]:
    return {**add(text, *handles), "action": "revise", "guideline": handle}


def retire(handle: str, text: str, *handles: str) -> dict[str, Any]:
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
                return as_reply((self.distil or guideline_per_topic)(request))
            case "guideline_relations":
                return as_reply((self.compare or relations_by_topic)(request))
            case _:
                value = self.judge(request)
                is_reply = isinstance(value, Reply)
                return value if is_reply else answer({"rationale": "Seen.", "value": value})


def guideline_per_topic(request: ChatRequest) -> ReplyLike:
    """One new guideline per topic, with the text of the first comment."""
    by_topic: dict[str, list[tuple[str, str]]] = {}
    for handle, comment in feedback_in(request).items():
        by_topic.setdefault(topic_of(comment), []).append((handle, comment))
    groups = [(group[0][1], [handle for handle, _ in group]) for group in by_topic.values()]
    return {"operations": [add(text, *handles) for text, handles in groups]}


def guideline_per_comment(request: ChatRequest) -> ReplyLike:
    """One guideline per comment, with the same text; a label becomes a sentence."""
    texts = {
        handle: text if " " in text else f"Replies of this kind come out {text}."
        for handle, text in feedback_in(request).items()
    }
    return {"operations": [add(text, handle) for handle, text in texts.items()]}


def relations_by_topic(request: ChatRequest) -> ReplyLike:
    """Guidelines on one topic are duplicates or contradictions."""
    guidelines = guidelines_in(request)
    numbers = range(1, len(guidelines) + 1)
    pairs = [
        [a, b]
        for a in numbers
        for b in numbers
        if a < b and contradict(guidelines[a - 1], guidelines[b - 1])
    ]
    groups: dict[tuple[str, bool], list[int]] = {}
    for number in numbers:
        text = guidelines[number - 1]
        groups.setdefault((topic_of(text), "never" in text), []).append(number)
    duplicates = [group for group in groups.values() if len(group) > 1]
    return {"duplicates": duplicates, "contradictions": pairs}


_NUMBER = re.compile(r"(?:Question|Case) (\d+)[:.]")
_SAYS = re.compile(r"is (true|false) of cases ((?:\d+ ?)+)")


def judged_case(chat: ChatRequest) -> int:
    match = _NUMBER.search(chat.text.rpartition("<case>")[2])
    assert match is not None
    return int(match[1])


def few_shot_cases_in(chat: ChatRequest) -> set[int]:
    """The numbers of the few-shot cases in a judge prompt."""
    return {int(number) for number in _NUMBER.findall(chat.text.rpartition("<case>")[0])}


def judge_by_guidelines(
    *, wrong: Iterable[int] = (), right: Any = True, otherwise: Any = False
) -> Callable[[ChatRequest], Any]:
    """Make a judge that is right, but of some cases, unless a guideline says otherwise.

    Guidelines say `it is false of cases 3 4` or `it is true of cases 5`.
    """

    def judge(chat: ChatRequest) -> Any:
        number = judged_case(chat)
        value = otherwise if number in wrong else right
        for guideline in guidelines_in(chat):
            for said_of, numbers in _SAYS.findall(guideline):
                if number in map(int, numbers.split()):
                    value = right if said_of == "true" else otherwise
        return value

    return judge


def verbatim_model(*, judge: Callable[[ChatRequest], Any] | None = None) -> Model:
    """A model that turns comments into guidelines verbatim and judges by them."""
    return Model(distil=guideline_per_comment, judge=judge or judge_by_guidelines())
