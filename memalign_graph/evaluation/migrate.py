"""Another model, or other prompts, for a judge in use: it judges the cases in memory once more.

What is calibrated on a judge's verdicts starts anew with another judge: `decide="auto"`, the
confidence, and the threshold of `review="uncertain"`. The cases in memory have experts' values, so
the new judge's verdicts on them can take the place of the old one's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from langgraph.runtime import Runtime

from memalign_graph.agreement import values_agree
from memalign_graph.alignment.replay import ReplayCase
from memalign_graph.errors import (
    ChatModelError,
    InvalidInputError,
    ModelAnswerError,
    is_about_prompt,
)
from memalign_graph.evaluation.cache import discard_unusable_answers
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    JudgeUnderTest,
    open_experiment,
    parse_options,
)
from memalign_graph.evaluation.flips import MemoryCopy
from memalign_graph.evaluation.metrics import Estimate, Prediction, score
from memalign_graph.evaluation.results import ALIGNED, ChangedCase, UsageRow
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.evidence.review_policy import current_trust
from memalign_graph.evidence.threshold import Trust, more_decisions
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.judging.again import judge_as_new
from memalign_graph.memory.feedback import record_judgments
from memalign_graph.memory.judge_memory import JudgeMemory
from memalign_graph.models import ChatModelLike
from memalign_graph.runtime import JudgeResources, NodeCall
from memalign_graph.scales import Value
from memalign_graph.settings import Alignment, Uncertain
from memalign_graph.types import FrozenModel, Judgment

OLD, NEW = "old", "new"
"""The judges, as rows of usage name them."""


class Migration(FrozenModel):
    """Two judges on the cases in memory, and what `review="uncertain"` makes of the new one."""

    cases: int
    """How many cases have an expert's value."""

    before: Estimate
    """How often the old judge's verdicts agree with the experts, with a 95 % interval."""

    after: Estimate
    """How often the new judge's do."""

    difference: Estimate
    """The new judge's agreement less the old one's, with a paired interval."""

    changed: list[ChangedCase]
    """The cases on which their verdicts differ: first those that were right and are wrong now."""

    failures: dict[str, str]
    """Why a case has no new verdict, by the example's id."""

    usage: list[UsageRow]
    """Calls and tokens of both judges."""

    trust: Trust
    """From which confidence on nobody has to be asked about the new judge's verdicts."""

    more_labels: dict[str, int | None]
    """How many more labels each verdict needs at least until `review="uncertain"` can leave it
    unasked; None where the agreement so far is not above the target."""

    judge_key: str
    """Names the new judge, as its judgments do."""


async def _migrate(
    io: IO,
    memory: JudgeMemory,
    to: ChatModelLike | None = None,
    *,
    apply: bool = False,
    target_agreement: float = 0.9,
    **options: Unpack[EvaluationOptions],
) -> Migration:
    """Compare a judge with the same one on another model, on the cases in memory.

    Each case is judged without its own feedback and what was learned of it alone. The judges' own
    verdicts are compared, whatever the evidence would decide.

    Args:
        memory: The memory.
        to: The model to change to. Without one the judge is compared with the verdicts that are
            stored: after an update of this package whose prompts count as another judge.
        apply: Whether to store the new verdicts in place of the old ones; otherwise the memory is
            only read. `memory.rollback` undoes it.
        target_agreement: As of `Uncertain`.
        **options: The options of the `Judge` that is deployed; of an evaluation `cache`,
            `max_concurrency`, `resamples`, `seed` and `progress`.

    Returns:
        How the two judges agree with the experts, and what is left to be labeled.

    Raises:
        InvalidInputError: If an argument can't be used, or no case in memory has a value.
        ChatModelError: If a model fails, and not because of one case.
    """
    target = Uncertain(target_agreement=target_agreement).target_agreement
    settings, alignments = parse_options(memory.criterion, options)
    judge, scale = alignments[ALIGNED].judge, memory.criterion.scale
    with open_experiment(memory.criterion, settings) as experiment:
        new = judge if to is None else judge.but(model=to)
        subject = JudgeUnderTest(experiment, NEW, Alignment(judge=new), "judge")
        copy = await MemoryCopy.of(io, subject, memory)
        if not copy.cases:
            raise InvalidInputError("memory: no case has an expert's value. Remember some first.")
        if to is None:
            stored = (await current_evidence_model(io, copy.access)).cases
            before = {case.example_id: case.verdict.value for case in stored if case.verdict}
        else:
            old = replace(subject, name=OLD, way=Alignment(judge=judge))
            before = _values((await _judge_all(io, old, copy))[0])
        judgments, failures, judge_key = await _judge_all(io, subject, copy)
        await record_judgments(io, copy.access, judgments, replaces=True)
        trust = await current_trust(io, copy.access, judge.mode, target, judge_key)
        encoding = (await current_evidence_model(io, copy.access, judge_key=judge_key)).encoding
        if apply:
            await record_judgments(io, memory.access, judgments, replaces=True)
    after = _values(judgments)
    given = Counter(map(encoding.class_name, after.values()))
    scores, [compared] = score(
        scale,
        [case.expected for case in copy.cases],
        [case.example_id for case in copy.cases],
        {
            name: [Prediction(value=values.get(case.example_id)) for case in copy.cases]
            for name, values in ((OLD, before), (NEW, after))
        },
        pairs=[(NEW, OLD)],
        resamples=settings.resamples,
        seed=settings.seed,
    )
    changed = [
        ChangedCase(
            example=case.example,
            expected=case.expected,
            before=before[key],
            after=after[key],
            rationale=judgments[key].rationale,
            guidelines=[],
        )
        for case in copy.cases
        if (key := case.example_id) in before.keys() & after.keys()
        and not values_agree(scale, before[key], after[key])
    ]
    changed.sort(key=lambda case: not values_agree(scale, case.before, case.expected))
    return Migration(
        cases=len(copy.cases),
        before=scores[0].metrics["agreement"],
        after=scores[1].metrics["agreement"],
        difference=compared.differences["agreement"],
        changed=changed,
        failures=failures,
        usage=experiment.usage.rows(),
        trust=trust,
        more_labels={
            name: more_decisions(trust.verdicts[name])
            if name in trust.verdicts
            else max(trust.needed - count, 1)
            for name, count in sorted(given.items())
        },
        judge_key=judge_key,
    )


migrate, amigrate = sync_async_functions(_migrate)


def _values(judgments: Mapping[str, Judgment]) -> dict[str, Value]:
    return {key: judgment.value for key, judgment in judgments.items()}


async def _judge_all(
    io: IO, subject: JudgeUnderTest, copy: MemoryCopy
) -> tuple[dict[str, Judgment], dict[str, str], str]:
    """Judge each case as if it were new; also returns why some could not, and the judge's key."""
    access = copy.access
    # The verdict alone: what else the evidence weighs is what this brings about.
    resources = JudgeResources(subject.judge.but(decide="verdict"))
    runtime = Runtime(store=access.store)
    call = NodeCall(io, resources, runtime, resources.defaults, access)
    failures: dict[str, str] = {}

    async def judge_case(case: ReplayCase) -> Judgment | None:
        try:
            async with discard_unusable_answers(io, copy.cache):
                return await judge_as_new(call, case.example, copy.guidelines)
        except (ChatModelError, ModelAnswerError) as error:
            if not is_about_prompt(error):
                raise
            failures[case.example_id] = str(error)
            return None

    judged = await subject.experiment.each(io, judge_case, copy.cases)
    judgments = {judgment.example_id: judgment for judgment in judged if judgment is not None}
    return judgments, failures, resources.judge_key(call.chat_model)
