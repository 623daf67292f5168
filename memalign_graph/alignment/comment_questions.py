"""A small model's guideline from one comment: the check question that works best on its case.

The model writes several questions from the comment. The expert's value says how the case itself
must answer them. A question about another subject, or with the same answer for every case, is
dropped before it judges anything. Each question is also asked about the same outputs rewritten as
the expert wants them, and about cases in memory that experts valued otherwise.

A comment that asks for the same as an active guideline supports it, and adds no second check. Two
signs show this: the model finds the same fault in both comments, or the guideline's question
separates the cases about as well as the best new one.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from memalign_graph.agreement import value_or_none
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import ChatModelError, ModelAnswerError, excerpt
from memalign_graph.evidence.checks import YES_THRESHOLD, ask_questions, ask_yes_or_no
from memalign_graph.evidence.confidence import log_odds
from memalign_graph.identity import asked_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import record_check_answers
from memalign_graph.memory.memory_state import EpisodeRow
from memalign_graph.models import BaseChatModel, model_name_of
from memalign_graph.prompts import distill_small as prompts
from memalign_graph.prompts.checks import turn_around
from memalign_graph.prompts.distilled import DistillResult, not_kept, read_distilled
from memalign_graph.prompts.fences import estimate_tokens, is_placeholder, split_words
from memalign_graph.scales import Scale, share_of_scale
from memalign_graph.tracing import PURPOSE, TracedIO
from memalign_graph.types import Criterion, Episode, Example, Guideline

logger = logging.getLogger(__name__)

_GUIDELINE_CHARS = 400
_MAX_SOURCES_ASKED = 3  # source cases on which a question is validated
_MAX_OTHER_CASES = 2  # cases in memory with another value, on which questions are compared
_MAX_ACTIVE = 8  # newest guidelines that a comment may support
_MIN_SUPPORT, _SUPPORT_SHARE = 0.3, 0.5
"""A comment supports an active guideline whose question has at least this contrast, and this share
of the best new question's. On the development scenarios, questions of other rules have less."""
_SAME_FAULT = 0.7
"""Least probability of yes for the model to find that a comment and a guideline complain about the
same fault. Of 44 pairs of comments on one fault, development and training scenarios, 40 reach it,
and 3 of 34 pairs on two."""
_MIN_CONTRAST = 0.15
"""Least difference in log-odds between accepted outputs and the case; less is noise."""


async def distill_comments(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episodes: Sequence[Episode],
    guidelines: Sequence[Guideline],
) -> DistillResult:
    """Make a guideline from each comment: the comment is its text, the best question its check.

    If the question of an active guideline is about as good, the comment supports that guideline.
    """
    result = DistillResult()
    texts = {each.question: each.text for each in guidelines[-_MAX_ACTIVE:] if each.question}
    for episode in episodes:
        comment = episode.rationale or ""
        result.read[episode.id] = episode.word
        line = prompts.one_line(comment)
        text = excerpt(line, _GUIDELINE_CHARS)
        is_truncated = text != line or estimate_tokens(comment) > prompts.MAX_COMMENT_TOKENS
        result.truncated_ids += [episode.id] if is_truncated else []
        if is_placeholder(comment) or not split_words(comment):
            result.warnings.append(not_kept(text, "a comment without a word gives no rule"))
            continue
        level = _level(episode, access.criterion.scale)
        is_accepted = None if level is None else level == 1
        active = await _answers(io, chat, episode.example, [*texts]) or {}
        question = None
        if is_accepted is False:
            failed = {key: texts[key] for key, answer in active.items() if answer < YES_THRESHOLD}
            question = await _repeated(io, chat, access.criterion, comment, failed)
        if question is None:
            wordings = await _wordings(io, access, chat, comment)
            question = await _choose(
                io, access, chat, episode, wordings, active, is_accepted=is_accepted
            )
        if question is None:
            answer = "yes" if is_accepted else "no"
            why = f"no question made from it is answered {answer} on the case that it comes from"
            if is_accepted is None:
                why += ", and no value on an ordered scale says whether the expert accepts the case"
            result.warnings.append(not_kept(text, why))
            continue
        text = texts.setdefault(question, text)
        operation = GuidelineOperation(
            action="add", text=text, question=question, episode_ids=[episode.id]
        )
        result.operations.append(operation)
    return result


async def _repeated(
    io: IO, chat: BaseChatModel, criterion: Criterion, comment: str, failed: Mapping[str, str]
) -> str | None:
    """Return the question of the guideline that asks for what the comment asks for, if any.

    `failed` are the texts of guidelines that the commented case fails, by question.
    """
    if not failed:
        return None
    messages = [prompts.same_fault_prompt(criterion, text, comment) for text in failed.values()]
    io = TracedIO(io, lambda: {PURPOSE: "compare"})
    answers = await ask_yes_or_no(io, chat, messages, limit=1) or [None] * len(messages)
    found = {question: answer or 0.0 for question, answer in zip(failed, answers, strict=True)}
    best = max(found, key=found.__getitem__)
    return best if found[best] >= _SAME_FAULT else None


async def _wordings(io: IO, access: MemoryAccess, chat: BaseChatModel, comment: str) -> list[str]:
    prompt = prompts.wordings_prompt(access.criterion, comment)
    result, _ = await ask_with_retry(
        io,
        with_schema(chat, prompts.wordings_schema(), "distil"),
        prompt.messages,
        lambda answer, last: read_distilled(
            prompts.with_statement(answer), prompt, drop_rejected=last
        ),
    )
    wordings = [operation.question or "" for operation in result.operations]
    quoting = prompts.quoting_question(comment)
    return wordings if quoting is None else [*wordings, quoting]


def _level(episode: Episode | EpisodeRow, scale: Scale) -> float | None:
    """Return the expert's value as a share of the scale: 1 is what the expert wants."""
    return share_of_scale(value_or_none(episode.value, scale), scale)


async def drop_refuted(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    result: DistillResult,
    episodes: Iterable[Episode],
) -> None:
    """Drop questions whose answers on their source cases contradict the experts' values."""
    sources = {episode.id: episode for episode in episodes}
    questions: dict[str, dict[str, None]] = {}
    for operation in result.operations:
        for key in operation.episode_ids[:_MAX_SOURCES_ASKED] if operation.question else ():
            questions.setdefault(key, {})[operation.question or ""] = None
    answers: dict[str, dict[str, float]] = {}
    for key, wordings in questions.items():
        by_wording = await _answers(io, chat, sources[key].example, [*wordings])
        if by_wording is None:
            return
        for question, answer in by_wording.items():
            answers.setdefault(question, {})[key] = answer
    retained, recorded = [], {}
    for operation in result.operations:
        by_source = answers.get(operation.question or "", {})
        levels = [
            (_level(sources[key], access.criterion.scale), answer)
            for key, answer in by_source.items()
        ]
        low = [answer for level, answer in levels if level is not None and level < YES_THRESHOLD]
        high = [answer for level, answer in levels if level == 1]
        if low and fmean(low) >= YES_THRESHOLD and not (high and fmean(high) > fmean(low)):
            why = "it is answered yes on cases that the experts rejected"
            result.warnings.append(not_kept(operation.text or "", why))
            continue
        retained.append(operation)
        recorded[asked_id(operation.question or "", model_name_of(chat))] = {
            sources[key].example_id: answer for key, answer in by_source.items()
        }
    result.operations = retained
    await record_check_answers(io, access, recorded)


async def _choose(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    episode: Episode,
    wordings: Sequence[str],
    active: Mapping[str, float],
    *,
    is_accepted: bool | None,
) -> str | None:
    """Return the question that separates the case best from others; None if none does.

    The others are cases that experts valued otherwise, and the case as the expert wants it. An
    active guideline's question is preferred to new ones that separate them little better: `active`
    has their answers on the case.
    A comment without a value may be praise: no question made from it is turned around.
    """
    questions = list(dict.fromkeys([*active, *wordings]))
    asked = await _answers(io, chat, episode.example, wordings)
    if asked is None and wordings:
        return wordings[0]
    answers = {**active, **(asked or {})}
    others = await _other_examples(io, access, chat, episode, is_accepted=bool(is_accepted))
    compared = [await _answers(io, chat, example, questions) or {} for example in others]

    def contrast(question: str, average: Callable[[list[float]], float] = fmean) -> float:
        """Return how much higher the log-odds are on accepted outputs; 0 for small differences."""
        odds = [log_odds(other[question]) for other in compared if question in other]
        difference = average(odds) - log_odds(answers[question]) if odds else 0.0
        if abs(difference) < _MIN_CONTRAST:
            return 0.0
        return -difference if is_accepted else difference

    def is_as_valued(question: str) -> bool:
        return (answers[question] >= YES_THRESHOLD) == bool(is_accepted)

    working: dict[str, float] = {}  # the contrast of each new question that may be chosen
    for each in filter(answers.__contains__, wordings):
        difference = contrast(each)
        if difference > 0 or (difference == 0 and is_as_valued(each)):
            working[each] = difference
        elif difference < 0 and not is_as_valued(each) and is_accepted is not None:
            turned = turn_around(each)  # it asks for the fault
            working[turned], answers[turned] = -difference, 1 - answers[each]
    best = max(working.values(), default=0.0)
    # The case may break two rules: another rule's question separates it from accepted cases, but
    # not from the outputs as this comment wants them.
    needed = max(_SUPPORT_SHARE * best, _MIN_SUPPORT)
    average = fmean if is_accepted else min
    supported = {each: gain for each in active if (gain := contrast(each, average)) >= needed}
    choices = supported or working
    if not choices:
        return None
    chosen = max(choices, key=choices.__getitem__)
    key = asked_id(chosen, model_name_of(chat))
    await record_check_answers(io, access, {key: {episode.example_id: answers[chosen]}})
    return chosen


async def _answers(
    io: IO, chat: BaseChatModel, example: Example, wordings: Sequence[str]
) -> dict[str, float] | None:
    """Return the probability of yes by wording; None for a model without log-probabilities."""
    answers = await ask_questions(io, chat, example, wordings, limit=1) if wordings else None
    if answers is None:
        return None
    pairs = zip(wordings, answers, strict=True)
    return {wording: float(answer) for wording, answer in pairs if answer is not None}


async def _other_examples(
    io: IO, access: MemoryAccess, chat: BaseChatModel, episode: Episode, *, is_accepted: bool
) -> list[Example]:
    """Return the case as the expert wants it, and the newest cases with another value."""
    rows = [
        row
        for row in (await access.refresh(io)).labeled_rows()
        if (level := _level(row, access.criterion.scale)) is not None
        and (level == 1) != is_accepted
        and row.example_id != episode.example_id
    ]
    others = await access.episodes(io, [row.id for row in rows[:_MAX_OTHER_CASES]])
    examples = [other.example for other in others.values()]
    if is_accepted:
        return examples
    rewritten = await _rewritten(io, chat, episode)
    return examples if rewritten is None else [rewritten, *examples]


async def _rewritten(io: IO, chat: BaseChatModel, episode: Episode) -> Example | None:
    """Let the model rewrite the outputs as the expert wants them; None if that fails."""
    messages = prompts.rewrite_prompt(episode)
    if messages is None:
        return None
    try:
        outputs, _ = await ask_with_retry(
            io,
            with_schema(chat, prompts.rewrite_schema(episode), "distil"),
            messages,
            lambda answer, _last: prompts.parse_rewritten(answer),
        )
    except (ChatModelError, ModelAnswerError) as error:
        logger.warning("Questions are not validated on rewritten outputs: %s", error)
        return None
    example = episode.example
    if outputs.split() == str(example.outputs).split():
        return None
    return example.model_copy(update={"outputs": outputs})
