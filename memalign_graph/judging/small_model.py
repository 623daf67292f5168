"""The value of a small model: its answer by one letter, and the checks that it answered."""

import logging
from dataclasses import replace

from memalign_graph.evidence import logprobs
from memalign_graph.evidence.check_value import (
    add_checks,
    check_vote,
    combine_probabilities,
    explain_checks,
)
from memalign_graph.evidence.checks import probabilities
from memalign_graph.evidence.verdicts import choose_value, value_choices
from memalign_graph.judging.case import Answer, Case
from memalign_graph.models import max_input_tokens, model_name_of
from memalign_graph.prompts.judge import value_prompt

logger = logging.getLogger(__name__)


async def ask_value_only(case: Case) -> Answer | None:
    """Ask for the value alone, and add the checks; None without log-probabilities."""
    call = case.call
    chat_model, criterion = call.chat_model, call.resources.criterion
    scale, values = criterion.scale, value_choices(criterion.scale)
    model = logprobs.usable_logprob_model(chat_model)
    if not values or model is None:
        return None
    window = max_input_tokens(chat_model)
    prompt = value_prompt(criterion, case.example, values, max_input_tokens=window)
    measured = await logprobs.ask_letter(call.io, model, scale, prompt.messages, values)
    if measured.probabilities is None:
        logger.warning("Judging %r: %s", criterion.name, measured.warning)
        return None
    shares = add_checks(measured.probabilities, case.checks, values, scale)
    answers = probabilities([anchored.check for anchored in case.checks])
    vote = check_vote(call.access.view, scale, answers, values, case.excluded_keys)
    if vote is not None:
        shares = combine_probabilities(shares, *vote)
    return Answer(
        value=choose_value(shares, values, scale),
        rationale=explain_checks(case.checks),
        model=model_name_of(chat_model),
        confidence=replace(measured, probabilities=shares),
        broken_guideline_ids=[],
        guideline_ids=[anchored.check.guideline_id for anchored in case.checks],
        episode_ids=[],
        warnings=prompt.warnings,
    )
