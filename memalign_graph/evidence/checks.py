"""Guidelines as checks: a yes/no question for each, asked about a case.

Probabilities of small questions, weighted by a few labels, predict experts better than one verdict
does: H. Hashemi et al., LLM-Rubric: A multidimensional, calibrated approach to automated evaluation
of natural language texts (2024), https://arxiv.org/abs/2501.00274.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import islice

from langchain_core.messages import BaseMessage

from memalign_graph.agreement import value_or_none
from memalign_graph.asking import ask_with_retry, with_schema
from memalign_graph.errors import ChatModelError, MemAlignError, ModelAnswerError, is_about_prompt
from memalign_graph.evidence.confidence import (
    ask_with_logprobs,
    token_probabilities,
    usable_logprob_model,
)
from memalign_graph.identity import asked_id
from memalign_graph.io import IO
from memalign_graph.memory.access import MemoryAccess, chunks
from memalign_graph.memory.checks import check_answers
from memalign_graph.memory.learning import record_check_answers, record_questions
from memalign_graph.models import BaseChatModel, is_small_model, max_input_tokens, model_name_of
from memalign_graph.prompts import checks as prompts
from memalign_graph.prompts.distill_small import with_statement, wordings_prompt, wordings_schema
from memalign_graph.prompts.distilled import read_distilled
from memalign_graph.prompts.judge import CASE_WAS_CUT
from memalign_graph.replies import ChatReply
from memalign_graph.tracing import PURPOSE, TracedIO
from memalign_graph.types import Check, Criterion, Example, Guideline

logger = logging.getLogger(__name__)

_Prompt = Sequence[BaseMessage]

MEASURED_CASES = 50
"""Guidelines are measured on this many of the newest cases that experts valued."""

_SAVE_EVERY = 10  # cases, so that little is lost if an alignment is interrupted
_GUIDELINES_PER_PROMPT = 20  # rewritten as questions in one call; a small model gets one
_MAX_CONCURRENCY = 8
YES_THRESHOLD = 0.5  # probability from which an answer counts as yes
_MIN_YES_NO_MASS = 0.5  # an answer with less probability on yes and no together is unknown


async def check_case(
    io: IO, chat: BaseChatModel, example: Example, guidelines: Sequence[Guideline], *, limit: int
) -> tuple[list[Check], list[str]]:
    """Ask the questions of guidelines about a case; returns checks and warnings."""
    questions = {each.id: each.question for each in guidelines if each.question}
    if not questions:
        return [], []
    asked = list(questions.values())
    answers = await ask_questions(io, chat, example, asked, limit=limit, skips_failed=True)
    warnings: list[str] = []
    if answers is None:
        answers, warnings = await _ask_checklist(io, chat, example, asked)
    name = model_name_of(chat)
    checks = [
        Check(
            guideline_id=guideline_id,
            asked=asked_id(question, name),
            held=None if answer is None else answer >= YES_THRESHOLD,
            probability=None if isinstance(answer, bool) else answer,
        )
        for (guideline_id, question), answer in zip(questions.items(), answers, strict=True)
    ]
    unknown = answers.count(None)
    if unknown:
        warnings.append(f"{unknown} of {len(checks)} checks were answered with neither yes nor no.")
    return checks, warnings


async def ask_questions(
    io: IO,
    chat: BaseChatModel,
    example: Example,
    questions: Sequence[str],
    *,
    limit: int,
    skips_failed: bool = False,
) -> list[float | bool | None] | None:
    """Ask questions about a case, as `ask_yes_or_no` does."""
    asked, _ = prompts.check_prompts(example, questions, max_input_tokens=max_input_tokens(chat))
    io = TracedIO(io, lambda: {PURPOSE: "check"})
    answers = await ask_yes_or_no(io, chat, asked, limit=limit, skips_failed=skips_failed)
    if answers is None:
        return None
    return [
        1 - answer if answer is not None and prompts.is_turned_around(question) else answer
        for question, answer in zip(questions, answers, strict=True)
    ]


async def ask_yes_or_no(
    io: IO, chat: BaseChatModel, asked: Sequence[_Prompt], *, limit: int, skips_failed: bool = False
) -> list[float | None] | None:
    """Return the probability of yes for each prompt; None for a model without log-probabilities.

    The probability for a prompt that was refused, or answered with neither yes nor no, is None.

    Raises:
        ChatModelError: The model can't be reached; with `skips_failed` the probability is None.
    """
    model = usable_logprob_model(chat)
    if model is None:
        return None

    async def ask(messages: _Prompt) -> ChatReply | None:
        try:
            reply = await ask_with_logprobs(io, model, messages)
        except ChatModelError as error:
            if not (skips_failed or is_about_prompt(error)):
                raise
            logger.warning("A check was not answered: %s", error)
            return None
        if _probability_of_yes(reply) is not None:
            await io.mark_usable(reply)
        return reply

    # The first alone, so that the server has cached the case before the others are sent.
    replies = [await ask(asked[0])]
    if replies[0] is None:  # one question may be refused, and the next answered
        replies += [await ask(messages) for messages in asked[1:2]]
    if not any(reply and reply.logprobs for reply in replies):
        return None  # some servers without log-probabilities fail if they are asked for them
    replies += await io.gather(list(map(ask, asked[len(replies) :])), limit)
    return list(map(_probability_of_yes, replies))


def _probability_of_yes(reply: ChatReply | None) -> float | None:
    """Return the share of yes in the probability of yes and no; None if both are unlikely."""
    logprobs = reply and reply.logprobs

    def probability(word: str) -> float:
        spellings = (word, word.lower(), word.upper())
        return sum(share or 0.0 for share in token_probabilities(logprobs, spellings))

    yes, no = probability(prompts.YES), probability(prompts.NO)
    return yes / (yes + no) if yes + no >= _MIN_YES_NO_MASS else None


async def _ask_checklist(
    io: IO, chat: BaseChatModel, example: Example, questions: Sequence[str]
) -> tuple[list[float | bool | None], list[str]]:
    """Ask all questions in one call; returns the answers, None where unusable, and warnings."""
    count, window = len(questions), max_input_tokens(chat)
    messages, is_cut = prompts.checklist_prompt(example, questions, max_input_tokens=window)
    warnings = [CASE_WAS_CUT.format(window)] if is_cut else []
    try:
        answers, _ = await ask_with_retry(
            io,
            with_schema(chat, prompts.checklist_schema(count), "check"),
            messages,
            lambda answer, _last: prompts.parse_checklist(answer, count),
        )
    except (ChatModelError, ModelAnswerError) as error:
        logger.warning("The checks of a case were not answered: %s", error)
        return [None] * count, warnings
    turned = map(prompts.is_turned_around, questions)
    return [
        answer if answer is None else answer != is_turned
        for is_turned, answer in zip(turned, answers, strict=True)
    ], warnings


def probabilities(checks: Sequence[Check]) -> dict[str, float]:
    """Return the probability that a case meets each known check, by `asked_id`."""
    return {
        check.asked: float(check.held) if check.probability is None else check.probability
        for check in checks
        if check.held is not None
    }


async def fill_check_answers(
    io: IO,
    access: MemoryAccess,
    chat: BaseChatModel,
    *,
    limit: int,
    report_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[str]:
    """Ask missing checks about the newest cases that experts valued; returns warnings."""
    view = await access.refresh(io)
    name, scale, answers = model_name_of(chat), access.criterion.scale, check_answers(view)
    episode_ids: dict[str, str] = {}
    for row in view.labeled_rows():
        if value_or_none(row.value, scale) is not None:
            episode_ids.setdefault(row.example_id, row.id)
    guidelines = [each for each in await access.guidelines(io) if each.question]
    asked = {each.id: answers.get(asked_id(each.question or "", name), {}) for each in guidelines}
    missing = {
        key: unasked
        for key in islice(episode_ids, MEASURED_CASES)
        if (unasked := [each for each in guidelines if key not in asked[each.id]])
    }
    episodes = await access.episodes(io, [episode_ids[key] for key in missing])
    examples = {episode.example_id: episode.example for episode in episodes.values()}
    warnings: list[str] = []
    done = 0
    # A small model's server caches one case at a time: concurrent cases would evict each other.
    at_once = 1 if is_small_model(chat) else limit
    for keys in chunks([key for key in missing if key in examples], _SAVE_EVERY):
        per_case = max(limit // len(keys), 1)
        checked = await io.gather(
            [check_case(io, chat, examples[key], missing[key], limit=per_case) for key in keys],
            at_once,
        )
        new: dict[str, dict[str, float]] = {}
        for key, (checks, case_warnings) in zip(keys, checked, strict=True):
            warnings += case_warnings
            for question_id, answer in probabilities(checks).items():
                new.setdefault(question_id, {})[key] = answer
        await record_check_answers(io, access, new)
        done += len(keys)
        report_progress(done, len(missing))
    return list(dict.fromkeys(warnings))


async def fill_questions(
    io: IO, access: MemoryAccess, chat: BaseChatModel, guidelines: Sequence[Guideline]
) -> str | None:
    """Record a question for each guideline without one; returns a warning if that fails."""
    texts = list(dict.fromkeys(each.text for each in guidelines if each.question is None))
    failures: dict[str, MemAlignError] = {}

    async def ask_some(some: Sequence[str]) -> dict[str, str]:
        try:
            questions = await _ask_for_questions(io, chat, access.criterion, some)
            return dict(zip(some, questions, strict=True))
        except MemAlignError as error:
            if not error.is_refusal or len(some) == 1:
                failures.update(dict.fromkeys(some, error))
                return {}
        half = len(some) // 2
        return {**await ask_some(some[:half]), **await ask_some(some[half:])}

    batches = chunks(texts, 1 if is_small_model(chat) else _GUIDELINES_PER_PROMPT)
    answers: list[dict[str, str]] = await io.gather(list(map(ask_some, batches)), _MAX_CONCURRENCY)
    questions = {text: question for answer in answers for text, question in answer.items()}
    if questions:
        # A model that puts others as questions would refuse these again.
        refused = {text: "" for text, error in failures.items() if error.is_refusal}
        await record_questions(io, access, questions | refused)
    if not failures:
        return None
    return (
        f"{len(failures)} guideline(s) could not be rewritten as questions, and are not checked: "
        f"{next(iter(failures.values()))}"
    )


async def _ask_for_questions(
    io: IO, chat: BaseChatModel, criterion: Criterion, texts: Sequence[str]
) -> list[str]:
    if not is_small_model(chat):
        questions, _ = await ask_with_retry(
            io,
            with_schema(chat, prompts.questions_schema(len(texts)), "distil"),
            prompts.question_prompt(criterion, texts),
            lambda answer, _last: prompts.parse_questions(answer, len(texts)),
        )
        return questions
    prompt = wordings_prompt(criterion, texts[0])
    result, _ = await ask_with_retry(
        io,
        with_schema(chat, wordings_schema(), "distil"),
        prompt.messages,
        lambda answer, last: read_distilled(with_statement(answer), prompt, drop_rejected=last),
    )
    return [operation.question or "" for operation in result.operations][:1] or [""]
