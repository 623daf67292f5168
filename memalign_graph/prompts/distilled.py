"""Read a distiller's answer: operations of a large model, questions of a small one.

Guidelines that teach nothing are rejected: the model is asked once more, then they are left out
with a warning. Models repeat their prompt, and a judged text may try to become a guideline.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memalign_graph.errors import ChatModelError, ModelAnswerError, enumerate_ids, excerpt
from memalign_graph.memory.guidelines import MAX_GUIDELINE_CHARS, GuidelineOperation, normalize_text
from memalign_graph.prompts import fences
from memalign_graph.prompts.checks import parse_question
from memalign_graph.prompts.distill import DistillPrompt
from memalign_graph.prompts.distill_small import (
    MADE_UP_WORDS,
    MAX_SHORT_QUESTION_CHARS,
    comment_or_output,
    one_line,
)
from memalign_graph.types import Episode, Guideline

ModelError = ChatModelError | ModelAnswerError

_MAX_SOURCES = 3  # of a question
_MAX_NEW_SHARE = 0.15  # of a text's words, with which it still repeats the criterion

_EXCESS = (
    "The model answered with {} operations and not with at most {}: those after these were left "
    "out."
)

_CUT = "{} record(s) were too long: parts of their longest texts were left out ({})."

# The prompt's labels of feedback, which a guideline never needs.
_EXPERT_LABEL = re.compile(r"\bexpert(['\u2019]s|s['\u2019]) (value|reason)\b", re.IGNORECASE)
_OPEN_QUESTION = re.compile(r"(what|which|who|whom|whose|when|where|why|how)\b", re.IGNORECASE)
_SHOWN_PART = re.compile(r"<(inputs|outputs|reference_outputs)>\n(.*?)\n</\1>", re.DOTALL)
_JSON_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-f]{4})")
_STOP_WORDS = frozenset(fences.split_words(fences.STOP_WORDS))


@dataclass
class DistillResult:
    """Operations distilled from feedback; results of several prompts are added."""

    operations: list[GuidelineOperation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What was rejected, and what could not be distilled."""
    read: dict[str, str] = field(default_factory=dict)
    """The feedback that was read: its hashes by episode id."""
    truncated_ids: list[str] = field(default_factory=list)
    """The episodes with a text that was shortened."""
    by_prompt: list["DistillResult"] = field(default_factory=list)
    """The result of each prompt that was answered."""
    failed_attempts: list[str] = field(default_factory=list)
    """The ids of failed attempts."""
    errors: list[ModelError] = field(default_factory=list)
    """Why a piece of feedback, or a guideline, could not be distilled."""

    @property
    def all_warnings(self) -> list[str]:
        """The warnings, and one that names the episodes with a shortened text."""
        ids = self.truncated_ids
        return [*self.warnings, *([_CUT.format(len(ids), enumerate_ids(ids))] if ids else [])]

    def __add__(self, other: "DistillResult") -> "DistillResult":
        pairs = {name: (value, getattr(other, name)) for name, value in vars(self).items()}
        return DistillResult(
            **{name: a | b if isinstance(a, dict) else a + b for name, (a, b) in pairs.items()}
        )


def read_distilled(
    answer: dict[str, Any], prompt: DistillPrompt, *, drop_rejected: bool = False
) -> DistillResult:
    """Check a distiller's answer, and replace its handles by ids.

    Raises:
        ValueError: What is wrong, to be shown to the model. With `drop_rejected`, guidelines that
            teach nothing are left out with a warning instead.
    """
    words = _PromptWords.of(prompt)
    if prompt.is_for_questions:
        operations = _read_questions(answer, prompt)
    else:
        items = fences.list_in(answer, "operations")
        operations = [_read_operation(item, prompt, words) for item in items]
    most = prompt.max_operations
    # Feedback that is the source of nothing else would count as distilled. A wording has all of it.
    used = {key for operation in operations[:most] for key in operation.episode_ids}
    loses_feedback = most > 1 and any(used.isdisjoint(each.episode_ids) for each in operations)
    if len(operations) > most and (loses_feedback or not drop_rejected):
        raise ValueError(f"it has {len(operations)} operations: give at most {most}")
    accepted, rejected = list[GuidelineOperation](), dict[str, tuple[str, str]]()
    for operation in operations[:most]:
        if reason := next(_rejections(operation, prompt, words), None):
            rejected.setdefault(operation.text or "", reason)
        else:
            accepted.append(operation)
    # One good question of a small model is enough; a large model is asked again for each guideline.
    is_unusable = not accepted if prompt.is_for_questions else bool(rejected)
    if is_unusable and not drop_rejected:
        first = next(iter(rejected.values()), ('it has no text in "questions"', ""))
        raise ValueError(": ".join(filter(None, first)))
    warnings = [not_kept(text, reason) for text, (reason, _) in rejected.items()]
    if len(operations) > most:
        warnings.append(_EXCESS.format(len(operations), most))
    shown = {episode.id: episode.word for episode in prompt.episodes.values()}
    return DistillResult(accepted, warnings, shown, prompt.truncated_ids)


def not_kept(text: str, reason: str) -> str:
    return f'The model\'s guideline "{excerpt(text, 200)}" was not kept, since {reason}.'


class _PromptWords(NamedTuple):
    """The words of a prompt that a guideline may not repeat, and those of experts, which it may."""

    cases: fences.Words
    wording: fences.Words
    comments: fences.Words
    content: set[str]
    """The words of the comments that say something."""
    outputs: dict[str, list[str]]
    """The words that the outputs begin with, by episode id."""

    @classmethod
    def of(cls, prompt: DistillPrompt) -> "_PromptWords":
        # The shown parts of cases can't contain the closing tags. A backslash may begin an escape
        # of JSON, or not: each part counts both ways.
        parts = [part for _, part in _SHOWN_PART.findall(prompt.messages[-1].text)]
        cases = dict.fromkeys([*parts, *(_JSON_ESCAPE.sub(" ", part) for part in parts)])
        comments = f"{prompt.comments}\n{fences.escape_tags(prompt.comments)}"
        outputs = {
            episode.id: fences.split_words(
                fences.as_text(episode.example.outputs)[:MAX_GUIDELINE_CHARS]
            )
            for episode in prompt.episodes.values()
        }
        return cls(
            cases=fences.Words(fences.split_words("\n\n".join(cases))),
            wording=fences.Words(fences.split_words(prompt.prompt_wording)),
            comments=fences.Words(fences.split_words(comments)),
            content=_content_words(prompt.comments),
            outputs=outputs,
        )


def _read_questions(answer: dict[str, Any], prompt: DistillPrompt) -> list[GuidelineOperation]:
    questions = fences.list_in(answer, "questions")
    texts = [_read_text(question, 'item of "questions"') for question in questions]
    unique: dict[str, str] = {}
    for text in texts[: prompt.max_operations]:
        unique.setdefault(normalize_text(text), text)
    episodes = list(prompt.episodes.values())
    return [
        GuidelineOperation(
            action="add", text=text, question=text, episode_ids=_sources_of(text, episodes)
        )
        for text in unique.values()
        if text
    ]


def _sources_of(question: str, episodes: list[Episode]) -> list[str]:
    """Return the episodes that share most words with a question; all if none shares any.

    A translation, for example, shares no words with its source.
    """
    content = _content_words(question)
    shared = {
        episode.id: len(content & _content_words(comment_or_output(episode)))
        for episode in reversed(episodes)
    }
    if not any(shared.values()):
        return list(shared)
    first, *others = sorted(shared, key=lambda key: -shared[key])[:_MAX_SOURCES]
    return [first, *(key for key in others if 2 * shared[key] > len(content))]


def _content_words(text: str) -> set[str]:
    return {*fences.split_words(text)} - _STOP_WORDS


def _read_operation(
    operation: Any, prompt: DistillPrompt, words: _PromptWords
) -> GuidelineOperation:
    if not isinstance(operation, dict):
        raise ValueError("an operation is no object")
    action = operation.get("action")
    if action not in ("add", "revise", "retire"):
        raise ValueError(f'the action {action!r} is none of "add", "revise" and "retire"')
    guideline = None if action == "add" else _read_guideline(operation, prompt)
    text = _read_text(operation.get("text"), '"text"')
    if action != "retire" and not text:
        raise ValueError(f'an operation to {action} a guideline has no "text"')
    if len(text) > MAX_GUIDELINE_CHARS:
        raise ValueError(f"a guideline has more than {MAX_GUIDELINE_CHARS:,} characters")
    if action == "retire" and guideline and normalize_text(text) == normalize_text(guideline.text):
        text = ""  # models that fill in every field repeat what they retire
    question = parse_question(operation.get("question"))
    known = (words.cases, words.wording)
    if not text or any(fences.repeats(question, each, words.comments) for each in known):
        question = ""  # a question asked of all cases may not quote this one
    return GuidelineOperation(
        action=action,
        guideline_id=guideline.id if guideline else None,
        text=text or None,
        question=question or None,
        before=guideline.text if guideline else None,
        episode_ids=_read_sources(operation, prompt),
    )


def _read_text(value: Any, name: str) -> str:
    """Return a text on one line; a `ValueError` for an object such as `{"rule": ...}`."""
    if not isinstance(value, str | None):
        raise ValueError(f"the {name} is {excerpt(json.dumps(value), 80)}: give it as plain text")
    text = one_line(value or "")
    return "" if fences.is_placeholder(text) else text


def _read_guideline(operation: dict[str, Any], prompt: DistillPrompt) -> Guideline:
    handle = str(operation.get("guideline") or "").strip().upper()
    if handle not in prompt.guidelines:
        raise ValueError(
            f"{handle!r} is no guideline that can be changed: there are "
            f"{', '.join(prompt.guidelines) or 'none'}"
        )
    return prompt.guidelines[handle]


def _read_sources(operation: dict[str, Any], prompt: DistillPrompt) -> list[str]:
    named = operation.get("feedback")
    handles = [str(name).strip().upper() for name in named] if isinstance(named, list) else []
    if not handles and len(prompt.episodes) == 1:
        handles = list(prompt.episodes)
    unknown = [handle for handle in handles if handle not in prompt.episodes]
    if unknown or not handles:
        raise ValueError(
            f"an operation names {', '.join(map(repr, unknown)) or 'no'} feedback: there is "
            f"{', '.join(prompt.episodes)}"
        )
    return list(dict.fromkeys(prompt.episodes[handle].id for handle in handles))


def _rejections(
    operation: GuidelineOperation, prompt: DistillPrompt, words: _PromptWords
) -> Iterator[tuple[str, str]]:
    """Yield why an operation teaches nothing, each reason with a hint to the model."""
    text = operation.text or ""
    if not text:
        return
    if operation.before and normalize_text(text) == normalize_text(operation.before):
        handles = {guideline.id: handle for handle, guideline in prompt.guidelines.items()}
        handle = handles[operation.guideline_id or ""]
        hint = f"if the expert says something else than {handle}, add that as one of its own"
        yield "it gives a guideline the words it has", hint
    hint = "write the expert's reason as a rule"
    known = f"{prompt.criterion.instructions} {prompt.criterion.scale.describe()}"
    if prompt.is_for_questions:
        hint = ""
        if problem := _question_problem(text, words.content):
            yield problem, hint
        if _content_words(text) & words.content:
            known = ""  # the criterion's words may be the expert's, too
    says_nothing = not fences.adds_information(text, fences.STOP_WORDS)
    if says_nothing or fences.repeats(text, words.wording, words.comments):
        yield "it repeats the shape of the answer, or what was asked for", hint
    if _EXPERT_LABEL.search(text):
        hint = "write what to look for in the case itself"
        yield "it speaks of an expert's value or reason, and a new case has none yet", hint
    if _repeats_case(operation, words):
        yield "it repeats a case that was judged, and not what the expert says of it", hint
    if _repeats_criterion(text, known, words.content):
        yield "it says no more than the criterion", hint


def _repeats_criterion(text: str, known: str, comments: set[str]) -> bool:
    """Return whether a text has no new word, or only a few that no expert wrote either."""
    if not fences.adds_information(text, f"{known} {fences.STOP_WORDS}"):
        return True
    content = _content_words(text)
    is_experts = bool(content & comments)
    new = content - _content_words(known)
    return not is_experts and len(new) <= _MAX_NEW_SHARE * len(content)


def _repeats_case(operation: GuidelineOperation, words: _PromptWords) -> bool:
    """Return whether a text is the outputs of one of its sources, or a longer part of any case."""
    text = operation.text or ""
    outputs = (words.outputs[key] for key in operation.episode_ids if key in words.outputs)
    return fences.split_words(text) in outputs or fences.repeats(text, words.cases, words.comments)


def _question_problem(question: str, comments: set[str]) -> str | None:
    if len(question) >= MAX_SHORT_QUESTION_CHARS:
        return f"it is no short question: it has {MAX_SHORT_QUESTION_CHARS} characters or more"
    if _OPEN_QUESTION.match(question):
        return "it can't be answered by yes or no"
    own_words = _content_words(question) - comments
    if any(word.startswith(MADE_UP_WORDS) for word in own_words):
        return "it repeats the example of a question"
    return None
