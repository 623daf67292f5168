"""One judgment, for nodes, gates, panels, the replay guard, bulk judging and evaluation."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from memalign_graph.asking import ask_with_retry
from memalign_graph.errors import ChatModelError, ModelAnswerError
from memalign_graph.evidence.checks import check_case, fill_questions, probabilities
from memalign_graph.evidence.confidence import (
    ConfidenceMeasurement,
    Decision,
    RawVerdict,
    ask_letter,
    average_orders,
    choose_value,
    measure_confidence,
    usable_logprob_model,
    value_choices,
)
from memalign_graph.evidence.value_from_checks import (
    Vote,
    add_checks,
    anchor_checks,
    are_decisive,
    check_vote,
    combine_probabilities,
    explain_checks,
)
from memalign_graph.judging.case import Answer, Case, swap_outputs
from memalign_graph.models import inner_models, is_small_model, max_input_tokens, model_name_of
from memalign_graph.prompts.judge import (
    judge_prompt,
    parse_answer,
    parse_broken_guidelines,
    value_prompt,
)
from memalign_graph.scales import Pairwise, Value
from memalign_graph.tracing import JUDGE_KEY, TracedIO
from memalign_graph.types import Guideline, Judgment

logger = logging.getLogger(__name__)

_REFUSED = "The case was judged without similar cases, since a prompt with them was refused: {}"

_USELESS_CHECKS = (
    "{} check(s) had no influence, since too many cases that experts accepted fail them."
)
_OVERRULED = "By the experts' values of similar cases it is {}, not {} as the judge says."

Ask = Callable[[Case], Awaitable[Answer]]


async def run_judge(case: Case) -> Judgment:
    """Ask the judge, and let the evidence decide if the options say so."""
    call, judge, retrieved = case.call, case.call.judge, case.retrieved
    scale = call.resources.criterion.scale
    key = call.resources.judge_key(call.chat_model)
    call = replace(call, io=TracedIO(call.io, lambda: {JUDGE_KEY: key}))
    case = replace(case, call=call)
    decide: Callable[[RawVerdict], Decision] | None = None
    if judge.measures:
        from memalign_graph.evidence.deciding import prepare_decision  # needs numpy

        decide = await prepare_decision(
            call.io,
            call.access,
            judge.mode,
            version=retrieved.version,
            vector=call.access.load_vector(retrieved.vector),
            excluded_ids=case.excluded_ids,
            judge_key=key,
        )
    ask = ask_in_both_orders if judge.swap else ask_verdict
    answer = await (_ask_with_checks(case, ask) if call.asks_checks else ask(case))
    measured = answer.confidence
    verdict = RawVerdict(answer.value, measured.probabilities, measured.source)
    decision = decide(verdict) if decide else Decision(answer.value)
    rationale = answer.rationale
    if decision.value != answer.value:
        overruled = _OVERRULED.format(scale.render(decision.value), scale.render(answer.value))
        rationale = f"{rationale} {overruled}".lstrip()
    # The decision's value and confidence are the judgment's.
    answered = {**vars(answer), **vars(decision), "rationale": rationale}
    warnings = [*retrieved.warnings, *answer.warnings, *filter(None, [measured.warning])]
    answered["warnings"] = [*retrieved.guideline_warnings, *warnings]
    judgment = Judgment(
        **answered,
        criterion=call.resources.criterion.name,
        example_id=case.example.id,
        probabilities=measured.probabilities,
        memory_version=retrieved.version,
        thread_id=call.thread_id,
        judge_key=key,
    )
    for warning in dict.fromkeys(warnings):
        logger.warning("Judging %r: %s", judgment.criterion, warning)
    return judgment


async def ask_verdict(case: Case) -> Answer:
    """Ask for a rationale and a value; a small model with decisive checks gives only the value."""
    call, retrieved = case.call, case.retrieved
    chat_model, criterion = call.chat_model, call.resources.criterion
    if case.checks and (values := value_choices(criterion.scale)):
        answers = probabilities([anchored.check for anchored in case.checks])
        vote = check_vote(call.access.view, criterion.scale, answers, values, case.excluded_ids)
        if not are_decisive(case.checks, vote):
            # The value alone would hardly differ between cases: judge as without memory.
            retrieved = retrieved.without_guidelines(
                {anchored.check.guideline_id for anchored in case.checks}
            )
        elif answer := await _ask_value_only(case, values, vote):
            return answer
    cites = call.judge.cite_guidelines and bool(retrieved.all_guidelines) and not call.asks_checks
    structured = call.resources.clients.structured_model(chat_model, call.resources.schemas[cites])
    prompt = judge_prompt(
        criterion,
        case.example,
        guidelines=retrieved.guidelines,
        relevant=retrieved.relevant,
        # A small model that is shown similar cases repeats their values.
        recalled=[] if is_small_model(chat_model) else retrieved.recalled,
        max_input_tokens=max_input_tokens(chat_model),
    )

    # `ask_with_retry` calls it by position.
    def parse(answer: dict[str, Any], _is_last: bool) -> tuple[Value, str, list[str]]:  # noqa: FBT001
        broken = parse_broken_guidelines(answer, prompt.guidelines) if cites else []
        return *parse_answer(answer, criterion), broken

    try:
        (value, rationale, broken), reply = await ask_with_retry(
            call.io, structured, prompt.messages, parse
        )
    except (ChatModelError, ModelAnswerError) as error:
        if not (error.is_refusal and prompt.episodes):
            raise
        # One of the episodes may be the reason; without them the case may be judged.
        without_episodes = retrieved.model_copy(update={"recalled": []})
        answer = await ask_verdict(replace(case, retrieved=without_episodes))
        return replace(answer, warnings=[_REFUSED.format(error), *answer.warnings])
    measured = ConfidenceMeasurement()
    if call.judge.confidence:
        measured = await measure_confidence(
            call.io,
            chat_model,
            criterion,
            prompt.messages,
            value,
            samples=call.judge.samples,
            limit=call.max_concurrency,
        )
    return Answer(
        value=value,
        rationale=rationale,
        # Of several models, the one that answered is known only by its reply.
        model=reply.model or (None if len(inner_models(chat_model)) > 1 else structured.name),
        confidence=measured,
        broken_guideline_ids=broken,
        guideline_ids=[guideline.id for guideline in prompt.guidelines],
        episode_ids=[episode.id for episode in prompt.episodes],
        warnings=prompt.warnings,
    )


async def _ask_value_only(case: Case, values: Sequence[Value], vote: Vote | None) -> Answer | None:
    """Ask a small model for the value alone, and add its checks; None without log-probabilities."""
    call = case.call
    chat_model, criterion = call.chat_model, call.resources.criterion
    scale = criterion.scale
    model = usable_logprob_model(chat_model)
    if model is None:
        return None
    window = max_input_tokens(chat_model)
    prompt = value_prompt(criterion, case.example, values, max_input_tokens=window)
    measured = await ask_letter(call.io, model, scale, prompt.messages, values)
    if measured.probabilities is None:
        logger.warning("Judging %r: %s", criterion.name, measured.warning)
        return None
    shares = add_checks(measured.probabilities, case.checks, values, scale)
    if vote is not None:
        shares = combine_probabilities(shares, *vote)
    return Answer(
        value=choose_value(shares, values, scale),
        rationale=explain_checks(case.checks),
        model=model_name_of(chat_model),
        confidence=replace(measured, probabilities=shares),
        guideline_ids=[anchored.check.guideline_id for anchored in case.checks],
        warnings=prompt.warnings,
    )


async def ask_in_both_orders(case: Case) -> Answer:
    """Ask for the verdict on two outputs in both orders, and reconcile the two.

    Judges prefer what they read first. Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and
    Chatbot Arena" (2023), section 3.4, https://arxiv.org/abs/2306.05685, propose to swap.
    """
    scale: Any = case.call.resources.criterion.scale
    # The checks were answered for the original order.
    other = replace(case, example=swap_outputs(case.example), checks=())
    straight, swapped = await case.call.io.gather(
        [ask_verdict(case), ask_verdict(other)], case.call.max_concurrency
    )
    value, rationale, warning = reconcile_orders(
        scale, (straight.value, straight.rationale), (swapped.value, swapped.rationale)
    )
    warnings = filter(None, [*straight.warnings, *swapped.warnings, warning])
    return replace(
        straight,
        value=value,
        rationale=rationale,
        confidence=average_orders(straight.confidence, swapped.confidence),
        broken_guideline_ids=[] if warning else straight.broken_guideline_ids,
        warnings=list(dict.fromkeys(warnings)),
    )


def reconcile_orders(
    scale: Pairwise, straight: tuple[Value, str], swapped: tuple[Value, str]
) -> tuple[Value, str, str | None]:
    """Return value, rationale and warning; if the verdicts differ, a tie where allowed."""
    value, rationale = straight
    other = {"A": "B", "B": "A"}.get(str(swapped[0]), swapped[0])
    if value == other:
        return value, rationale, None
    tie = "so that it is a tie" if scale.allow_tie else "and the scale has no tie: the first stands"
    both = (
        f"In the order given ({value}): {rationale} With A and B in each other's place, and named "
        f"so ({other} as given): {swapped[1]}"
    )
    warning = (
        f"The verdict depends on the order of the outputs: {value} as they were given, {other} "
        f"when they were swapped, {tie}."
    )
    return "tie" if scale.allow_tie else value, both, warning


async def _ask_with_checks(case: Case, ask: Ask) -> Answer:
    """Ask which guidelines the case meets, and for the verdict."""
    call, chat_model = case.call, case.call.chat_model
    guidelines, unasked = await _with_questions(case)
    limit, useless = call.max_concurrency, set[str]()
    checking = check_case(call.io, chat_model, case.example, guidelines, limit=limit)
    if is_small_model(chat_model):
        checks, warnings = await checking
        by_id = {guideline.id: guideline for guideline in guidelines}
        scale = call.resources.criterion.scale
        anchored = anchor_checks(call.access.view, scale, checks, by_id, case.excluded_ids)
        by_threshold = {item.check.guideline_id: item.check for item in anchored}
        useless = {check.guideline_id for check in checks if check.probability is not None}
        useless -= by_threshold.keys()
        checks = [by_threshold.get(check.guideline_id, check) for check in checks]
        if useless:
            warnings = [*warnings, _USELESS_CHECKS.format(len(useless))]
            case = replace(case, retrieved=case.retrieved.without_guidelines(useless))
        answer = await ask(replace(case, checks=anchored))
    else:
        operations: list[Any] = [checking, ask(case)]
        (checks, warnings), answer = await call.io.gather(operations, limit)
    broken = answer.broken_guideline_ids
    if call.judge.cite_guidelines:
        failed = [check.guideline_id for check in checks if check.held is False]
        broken = [key for key in failed if key not in useless]
    warnings = [*dict.fromkeys([*answer.warnings, *filter(None, [unasked]), *warnings])]
    return replace(answer, checks=checks, broken_guideline_ids=broken, warnings=warnings)


async def _with_questions(case: Case) -> tuple[Sequence[Guideline], str | None]:
    """Return the case's guidelines with their check questions, and why some have none."""
    call = case.call
    guidelines = case.retrieved.all_guidelines
    if all(guideline.question is not None for guideline in guidelines):
        return guidelines, None
    unasked = await fill_questions(call.io, call.access, call.distill_chat_model, guidelines)
    by_id = {guideline.id: guideline for guideline in await call.access.guidelines(call.io)}
    return [by_id.get(guideline.id, guideline) for guideline in guidelines], unasked
