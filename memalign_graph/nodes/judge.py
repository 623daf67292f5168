"""Judging: similar episodes retrieved, guidelines assembled, and the one judge of them all."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from pydantic import Field

from memalign_graph.alignment.reply_cache import CachedRepliesIO
from memalign_graph.errors import (
    ChatModelError,
    EmbeddingError,
    InvalidInputError,
    ModelAnswerError,
)
from memalign_graph.evidence import confidence, logprobs, verdicts
from memalign_graph.evidence.check_value import (
    AnchoredCheck,
    add_checks,
    anchor_checks,
    explain_checks,
)
from memalign_graph.evidence.checks import check_case, fill_questions, probabilities
from memalign_graph.io import IO
from memalign_graph.memory import recall as memory
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.embedding import key_of
from memalign_graph.memory.episode_row import EpisodeRow
from memalign_graph.memory.facts import revision_of
from memalign_graph.memory.index.vectors import Vector
from memalign_graph.memory.judgments import keep_judgment
from memalign_graph.models import (
    ask_with_retry,
    is_small_model,
    judge_key,
    max_input_tokens,
    model_name_of,
)
from memalign_graph.prompts.judge import (
    PROMPT_VERSION,
    fit_guidelines,
    judge_prompt,
    parse_answer,
    parse_broken_guidelines,
    value_prompt,
)
from memalign_graph.runtime import NodeCall, StateUpdate, require_channel
from memalign_graph.scales import Pairwise, Scale, Value
from memalign_graph.settings import CANT_CHOOSE, Judge
from memalign_graph.types import (
    Check,
    Example,
    FrozenModel,
    Guideline,
    Judgment,
    RecalledExample,
    read_example,
)

logger = logging.getLogger(__name__)

_UNPROVEN = (
    "{} guideline(s) were left out, since on the cases in memory they state the opposite of the "
    "experts' values."
)


_REFUSED = "The case was judged without similar cases, since a prompt with them was refused: {}"


class Retrieved(FrozenModel):
    """What memory gives for one example."""

    version: str
    recalled: list[RecalledExample] = Field(default_factory=list)
    vector: str | None = None
    """The example's own embedding in base64, so that feedback on it embeds nothing again."""
    nearness: Mapping[str, float] = Field(default_factory=dict)
    """The similarity of episodes, by id, until it has told which guidelines bear on the example."""
    guidelines: list[Guideline] = Field(default_factory=list)
    relevant: list[Guideline] = Field(default_factory=list)
    """Those that are given for this case besides, where not all fit."""
    warnings: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, found: memory.Recall) -> "Retrieved":
        recalled = {
            episode.id: case.similarity for case in found.examples for episode in case.episodes
        }
        return cls(
            version=found.version,
            recalled=found.examples,
            vector=found.vector,
            nearness={**recalled, **found.nearness},
            warnings=[found.warning] if found.warning else [],
        )

    def with_guidelines(self, standing: Sequence[Guideline], step: NodeCall) -> "Retrieved":
        judge = step.resources.judge
        given = standing if judge.use_guidelines else []
        proven = [guideline for guideline in given if guideline.status != "unproven"]
        left_out = [_UNPROVEN.format(n)] if (n := len(given) - len(proven)) else []
        fitted = fit_guidelines(
            proven,
            self.nearness,
            max_guideline_tokens=judge.max_guideline_tokens,
            max_input_tokens=max_input_tokens(step.chat),
        )
        more = {"nearness": {}, "guidelines": fitted.always, "relevant": fitted.relevant}
        warnings = [*self.warnings, *left_out, *fitted.warnings]
        return self.model_copy(update={**more, "warnings": warnings})

    def named(self, ids: Iterable[str]) -> list[Guideline]:
        known = {guideline.id: guideline for guideline in (*self.guidelines, *self.relevant)}
        return [known[key] for key in ids if key in known]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, with ids in the place of what memory holds.

        So no stream tells of others' cases. By the wordings a purge knows what guided a judge.
        """
        plain = self.model_dump(
            mode="json", exclude_defaults=True, exclude={"recalled", "guidelines", "relevant"}
        )
        recalled = [
            {"episodes": [episode.id for episode in case.episodes], "similarity": case.similarity}
            for case in self.recalled
        ]
        named = {"guidelines": self.guidelines, "relevant": self.relevant}
        ids = {name: [rule.id for rule in rules] for name, rules in named.items()}
        wordings = list(map(revision_of, [*self.guidelines, *self.relevant]))
        by_name = {"recalled": recalled, **ids, "wordings": wordings}
        return {**plain, **{name: found for name, found in by_name.items() if found}}

    @classmethod
    async def load(cls, io: IO, access: MemoryAccess, fields: Mapping[str, Any]) -> "Retrieved":
        """Read it from JSON, with what its ids name, but for what was removed since."""
        recalled, named = fields.get("recalled", []), ("guidelines", "relevant")
        ids = [key for case in recalled for key in case["episodes"]]
        rule_ids = [key for name in named for key in fields.get(name, [])]
        rules: dict[str, Guideline] = {}
        if rule_ids:
            _, standing = await access.guidelines_at(io, fields["version"])
            rules = {rule.id: rule for rule in standing}
        elif ids and access.view.version != fields["version"]:
            await access.refresh(io)
        episodes = access.view.episodes(ids) if ids else {}
        cases = []
        for case in recalled:
            if known := [episodes[key] for key in case["episodes"] if key in episodes]:
                similarity = case["similarity"]
                cases.append(
                    RecalledExample(example=known[0].example, episodes=known, similarity=similarity)
                )
        found = {
            name: [rules[key] for key in fields.get(name, []) if key in rules] for name in named
        }
        plain = {name: value for name, value in fields.items() if name != "wordings"}
        return cls.model_validate({**plain, "recalled": cases, **found})


async def judge(
    step: NodeCall, example: Example, retrieved: Retrieved, *, excluded_keys: Container[str] = ()
) -> Judgment:
    """Judge an example with what memory gave; `excluded_keys` names examples that have no vote."""
    io, access, settings = step.io, step.access, step.resources.judge
    key = judge_key(step.chat, settings.model_dump(include=_IN_KEY), PROMPT_VERSION)
    scale = step.resources.criterion.scale
    moved: str | None = None
    decide: Callable[[verdicts.RawVerdict], verdicts.Decision] = verdicts.verdict_only
    if settings.measures:
        from memalign_graph.evidence.deciding import prepare_decision

        vector = memory.known_vector(retrieved.vector)
        shown: Any = {"version": retrieved.version, "vector": vector, "excluded_ids": excluded_keys}
        decide, moved = await prepare_decision(io, access, settings.mode, **shown, judge_key=key)
    checks, answer, measured = await _answers(step, example, retrieved, excluded_keys)
    said = verdicts.RawVerdict(
        answer["value"], measured.probabilities, measured.source, probabilities(checks)
    )
    decision = decide(said)
    if decision.value != said.verdict:
        answer["rationale"] = _overruled(answer["rationale"], decision.value, said, scale)
    warnings = [*retrieved.warnings, *answer["warnings"], *([moved] if moved else [])]
    judgment = Judgment(
        **{**answer, **vars(decision), "warnings": warnings},
        checks=checks,
        criterion=step.resources.criterion.name,
        example_id=example.id,
        probabilities=measured.probabilities,
        memory_version=retrieved.version,
        thread_id=step.run.thread_id,
        judge_key=key,
    )
    keep_for = settings.keep_judgments
    return await keep_judgment(io, access, judgment, example, retrieved.vector, keep_for)


_IN_KEY = {"use_guidelines", "use_episodes", "swap", "checks", "small_model"}
"""The options that change a judge's verdict."""


def _overruled(rationale: str, value: Value, said: verdicts.RawVerdict, scale: Scale) -> str:
    """End a rationale in what the evidence says otherwise."""
    otherwise = (
        f"By the experts' values of similar cases it is {scale.render(value)}, not "
        f"{scale.render(said.verdict)} as the judge says."
    )
    return f"{rationale} {otherwise}".lstrip()


async def _answers(
    step: NodeCall, example: Example, retrieved: Retrieved, excluded_keys: Container[str]
) -> tuple[list[Check], StateUpdate, verdicts.ConfidenceMeasurement]:
    """Ask which guidelines the case meets, if wanted, and for the verdict."""
    if not step.asks_checks:
        return [], *await _verdict(step, example, retrieved)
    guidelines = [*retrieved.guidelines, *retrieved.relevant]
    limit = step.run.max_concurrency
    unasked = None
    if any(guideline.question is None for guideline in guidelines):
        criterion = step.resources.criterion
        unasked = await fill_questions(step.io, step.access, step.distiller, criterion, guidelines)
        now = {guideline.id: guideline for guideline in await step.access.guidelines(step.io)}
        guidelines = [now.get(guideline.id, guideline) for guideline in guidelines]
    checking = check_case(step.io, step.chat, example, guidelines, limit=limit)
    if is_small_model(step.chat):
        checks, check_warnings = await checking
        by_id = {guideline.id: guideline for guideline in guidelines}
        anchored = anchor_checks(
            step.access.view, step.resources.criterion.scale, checks, by_id, excluded_keys
        )
        by_threshold = {item.check.guideline_id: item.check for item in anchored}
        checks = [by_threshold.get(check.guideline_id, check) for check in checks]
        answer, measured = await _verdict(step, example, retrieved, anchored, excluded_keys)
    else:
        asked: list[Any] = [checking, _verdict(step, example, retrieved)]
        (checks, check_warnings), (answer, measured) = await step.io.gather(asked, max(limit, 2))
    if step.resources.judge.cite_guidelines:
        broken = [check.guideline_id for check in checks if check.held is False]
        answer = {**answer, "broken_guideline_ids": broken}
    warnings = [*answer["warnings"], *filter(None, [unasked]), *check_warnings]
    return checks, {**answer, "warnings": warnings}, measured


async def _verdict(
    step: NodeCall,
    example: Example,
    retrieved: Retrieved,
    checks: Sequence[AnchoredCheck] = (),
    excluded_keys: Container[str] = (),
) -> tuple[StateUpdate, verdicts.ConfidenceMeasurement]:
    """Ask for the judge's own fields of a judgment, in both orders where it swaps."""
    scale = step.resources.criterion.scale
    if not (step.resources.judge.swap and isinstance(scale, Pairwise)):
        return await _ask(step, example, retrieved, checks, excluded_keys)
    orders = [
        _ask(step, example, retrieved, checks, excluded_keys),
        # The checks are of the outputs as they were given.
        _ask(step, swap_outputs(example), retrieved, (), excluded_keys),
    ]
    (straight, one), (swapped, other) = await step.io.gather(orders, step.run.max_concurrency)
    value, rationale, warning = settle_orders(
        scale, (straight["value"], straight["rationale"]), (swapped["value"], swapped["rationale"])
    )
    measured = confidence.average_orders(one, other)
    warnings = filter(None, [*straight["warnings"], measured.warning, warning])
    settled = {"value": value, "rationale": rationale, "warnings": list(dict.fromkeys(warnings))}
    if warning is not None:
        settled["broken_guideline_ids"] = []
    return straight | settled, measured


# Judges lean to what they read first; the lean is described, and swapping proposed against it, in
# Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena" (2023), section 3.4,
# https://arxiv.org/abs/2306.05685.
def swap_outputs(example: Example) -> Example:
    match example.outputs:
        case [first, second]:
            return Example(**{**example.to_json(), "outputs": [second, first]})
        case dict() as named if len(named) == 2:  # noqa: PLR2004 - a pair
            swapped = dict(zip(named, reversed(named.values()), strict=True))
            return Example(**{**example.to_json(), "outputs": swapped})
    raise InvalidInputError(
        "outputs: to be judged in both orders (`swap=True`) they have to be two: give a list of "
        "the two outputs, or an object with two fields, such as {'A': ..., 'B': ...}."
    )


def settle_orders(
    scale: Pairwise, straight: tuple[Value, str], swapped: tuple[Value, str]
) -> tuple[Value, str, str | None]:
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


async def _ask(
    step: NodeCall,
    example: Example,
    retrieved: Retrieved,
    checks: Sequence[AnchoredCheck],
    excluded_keys: Container[str],
) -> tuple[StateUpdate, verdicts.ConfidenceMeasurement]:
    by_checks = None
    if checks and is_small_model(step.chat):
        by_checks = await _ask_value_only(step, example, checks, excluded_keys)
    return by_checks or await _ask_with_rationale(step, example, retrieved)


async def _ask_value_only(
    step: NodeCall, example: Example, checks: Sequence[AnchoredCheck], excluded_keys: Container[str]
) -> tuple[StateUpdate, verdicts.ConfidenceMeasurement] | None:
    """Ask a small model for the value alone, and add its checks; None without log-probabilities."""
    from memalign_graph.evidence.features import combine_probabilities, vote

    chat, criterion = step.chat, step.resources.criterion
    scale, values = criterion.scale, verdicts.value_choices(criterion.scale)
    model = logprobs.usable_logprob_model(chat)
    if not values or model is None:
        return None
    window = max_input_tokens(chat)
    prompt = value_prompt(criterion, example, values, max_input_tokens=window)
    measured = await logprobs.ask_letter(step.io, model, scale, prompt.messages, values)
    if measured.probabilities is None:
        logger.warning("Judging %r: %s", criterion.name, measured.warning)
        return None
    shares = add_checks(measured.probabilities, checks, values, scale)
    answers = probabilities([item.check for item in checks])
    if (votes := vote(step.access.view, criterion, answers, values, excluded_keys)) is not None:
        shares = combine_probabilities(shares, *votes)
    return {
        "value": verdicts.choose_value(shares, values, scale),
        "rationale": explain_checks(checks),
        "broken_guideline_ids": [],
        "guideline_ids": [item.check.guideline_id for item in checks],
        "episode_ids": [],
        "model": model_name_of(chat),
        "warnings": prompt.warnings,
    }, replace(measured, probabilities=shares)


async def _ask_with_rationale(
    step: NodeCall, example: Example, retrieved: Retrieved
) -> tuple[StateUpdate, verdicts.ConfidenceMeasurement]:
    resources, chat = step.resources, step.chat
    settings, criterion = resources.judge, resources.criterion
    cites = settings.cite_guidelines and not step.asks_checks
    cites = cites and bool(retrieved.guidelines or retrieved.relevant)
    structured = resources.clients.structured(chat, resources.schemas[cites])
    prompt = judge_prompt(
        criterion,
        example,
        guidelines=retrieved.guidelines,
        relevant=retrieved.relevant,
        # A small model that is shown similar cases repeats their values.
        recalled=[] if is_small_model(chat) else retrieved.recalled,
        max_input_tokens=max_input_tokens(chat),
    )

    def read(answer: dict[str, Any], _last: bool) -> StateUpdate:  # noqa: FBT001 - as `ask` calls it
        value, rationale = parse_answer(answer, criterion)
        broken = parse_broken_guidelines(answer, prompt.guidelines) if cites else []
        return {"value": value, "rationale": rationale, "broken_guideline_ids": broken}

    try:
        answer, reply = await ask_with_retry(
            step.io, structured, prompt.messages, read, purpose="judge"
        )
    except (ChatModelError, ModelAnswerError) as error:
        if not (error.is_refusal and prompt.episodes):
            raise
        # It may be about one of them; the case itself may be judged.
        logger.warning("Judging %r: %s", criterion.name, (refused := _REFUSED.format(error)))
        alone = retrieved.model_copy(update={"recalled": []})
        answer, measured = await _ask_with_rationale(step, example, alone)
        return answer | {"warnings": [refused, *answer["warnings"]]}, measured
    measured = verdicts.ConfidenceMeasurement()
    if settings.confidence:
        measured = await confidence.measure_confidence(
            step.io,
            chat,
            criterion,
            prompt.messages,
            answer["value"],
            samples=settings.samples,
            limit=step.run.max_concurrency,
        )
    return {
        **answer,
        "guideline_ids": [guideline.id for guideline in prompt.guidelines],
        "episode_ids": [episode.id for episode in prompt.episodes],
        "model": reply.model or structured.name,
        "warnings": [*prompt.warnings, *([measured.warning] if measured.warning else [])],
    }, measured


async def retrieve(
    step: NodeCall, example: Example, vector: Vector | EmbeddingError | None = None
) -> Retrieved:
    """Look for similar examples, as the judge's options say; by a vector that is known, if any."""
    io, access, judge = step.io, step.access, step.resources.judge
    k = step.settings["k"] if judge.use_episodes else 0
    try:
        if isinstance(vector, EmbeddingError):
            raise vector
        found = await memory.recall(io, access, example, k, vector=vector, embeds=judge.weighs)
    except EmbeddingError as error:
        if judge.on_embedding_error == "raise":
            raise
        found = await memory.recall_without_episodes(io, access, error)
    return Retrieved.of(found)


def read_case(step: NodeCall) -> Example:
    """Read what is to be judged, and check what else could fail only after a model was called."""
    resources, state = step.resources, step.state
    example = read_example({name: state[name] for name in Example.model_fields & state.keys()})
    if resources.judge.swap:
        swap_outputs(example)
    review = "never" if resources.review is None else step.settings["review"]
    if review == "uncertain" and not resources.judge.measures:
        raise InvalidInputError(CANT_CHOOSE)
    if review != "never":
        step.access.embedder.embeddings  # noqa: B018 - resolved here, so that it fails here
    return example


async def retrieve_episodes(step: NodeCall) -> StateUpdate:
    """Check the example, look for similar ones, and keep the run's settings."""
    example = read_case(step)
    found = await retrieve(step, example)
    while step.resources.judge.use_guidelines:
        # Known from here on, and of the version that was recalled from.
        version, _ = await step.access.guidelines_at(step.io, found.version)
        if version == found.version:
            break
        found = await retrieve(step, example, memory.known_vector(found.vector))
    return {
        "judge_run": {"example": example.to_json(), "settings": step.settings},
        "judge_memory": found.to_json(),
        # LangGraph drops what the state has no channel for: so `collect_feedback` finds that out
        # before it asks.
        "feedback": None,
        "judge_lesson": {},
    }


async def assemble_guidelines(step: NodeCall) -> StateUpdate:
    """Read the guidelines that stand, and choose those that fit."""
    fields = require_channel(step.state, "judge_memory")
    if not step.resources.judge.use_guidelines:
        return {"judge_memory": fields}
    version, standing = await step.access.guidelines_at(step.io, fields["version"])
    # What was recalled goes on as it is: nothing of it is read or written again.
    known = {name: fields[name] for name in ("nearness", "warnings") if name in fields}
    fitted = Retrieved(version=version, **known).with_guidelines(standing, step)
    return {"judge_memory": {**fields, "nearness": {}, **fitted.to_json()}}


async def judge_example(step: NodeCall) -> StateUpdate:
    """Judge; where nobody is asked about it, what memory gave is not kept."""
    fields = require_channel(step.state, "judge_memory")
    retrieved = await Retrieved.load(step.io, step.access, fields)
    judgment = await judge(step, step.example, retrieved)
    # What an earlier judgment on the same thread may have left is not this one's.
    update: StateUpdate = {"judgment": judgment.to_json(), "feedback": None, "learned": None}
    if step.resources.review is None:
        update["judge_memory"] = None
    if step.resources.judge.cite_guidelines:
        broken = retrieved.named(judgment.broken_guideline_ids)
        update["broken_guidelines"] = [rule.to_json() for rule in broken]
    return update


def value_judge(judge: Judge) -> Judge:
    """Return a judge that says the same, without what changes no value."""
    unmeasured = {} if judge.weighs else {"confidence": False, "samples": 0}
    return judge.but(keep_judgments=None, **unmeasured)


async def judge_again(
    step: NodeCall,
    example: Example,
    *,
    guidelines: Sequence[Guideline],
    excluded_episode_ids: AbstractSet[str],
    limit: int = 1,
) -> Judgment:
    """Judge a case in memory as if some episodes were not there; no answer is paid for twice."""
    io, access = step.io, step.access
    k = step.settings["k"] if step.resources.judge.use_episodes else 0
    found = Retrieved.of(memory.recall_excluding(access, example, k, excluded_episode_ids))
    again = replace(
        step, io=CachedRepliesIO(io, access), run=replace(step.run, max_concurrency=limit)
    )
    without_votes = _without_votes(access.view.rows(), excluded_episode_ids)
    without_votes |= {example.id, key_of(access, example)}
    return await judge(
        again, example, found.with_guidelines(guidelines, again), excluded_keys=without_votes
    )


def _without_votes(rows: Sequence[EpisodeRow], excluded_episode_ids: AbstractSet[str]) -> set[str]:
    """Return the ids and vector keys of the examples of which all episodes are left out."""
    out: set[str] = set()
    kept: set[str] = set()
    for row in rows:
        (out if row.id in excluded_episode_ids else kept).update((row.example_id, row.vector_key))
    return out - kept
