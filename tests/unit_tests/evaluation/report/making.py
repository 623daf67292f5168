"""Reports made without a model: every scale, good and bad judges, and all that can be missing."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from memalign_graph import Boolean, Categorical, Criterion, Example, Numeric, Pairwise
from memalign_graph.agreement import expert_agreement
from memalign_graph.evaluation import (
    ChangedVerdict,
    EvaluatedCase,
    Evaluation,
    Flip,
    GuidelineCredit,
    LearningCurve,
    LearningStep,
    Report,
    Spent,
)
from memalign_graph.evaluation.cross_validation import score_cases
from memalign_graph.evaluation.results import ExpertWord, FoldMemory
from memalign_graph.evaluation.scores import Verdicts, score
from memalign_graph.evaluation.variants import ALIGNED, BASE, Variant
from memalign_graph.scales import Scale, Value
from memalign_graph.settings import Judge
from memalign_graph.types import Episode, Feedback, Guideline, Judgment

THEN = datetime(2026, 3, 1, tzinfo=UTC)

TONE = Criterion(
    name="support_tone",
    instructions="Is the reply appropriate for a customer who is upset? It should be kind and say "
    "what happens next.",
)
EFFORT = Criterion(
    name="urgency",
    instructions="How urgent is the patient's message?",
    scale=Categorical(choices=("can wait", "this week", "today", "emergency"), ordered=True),
)
EXAM = Criterion(
    name="exam_answer",
    instructions="Grade the student's answer between 0 (wrong) and 1 (right).",
    scale=Numeric(minimum=0, maximum=1),
)
STARS = Criterion(
    name="clarity",
    instructions="How clear is the explanation, in stars?",
    scale=Numeric(minimum=1, maximum=5, integer=True),
)
BETTER = Criterion(
    name="better_summary", instructions="Which summary is more faithful?", scale=Pairwise()
)
CRITERIA = (TONE, EFFORT, EXAM, STARS, BETTER)

_SAID = (
    "It never says sorry. A customer whose parcel is lost wants to hear that first.",
    "Too short: it doesn't say what happens next, or by when.",
    "Fine, warm and clear.",
    None,
)
_RULES = (
    "A reply to a complaint opens with an apology that names what went wrong.",
    "Say what happens next and by when, however friendly the reply is.",
    "Jokes about the customer's problem are not appropriate.",
    "Replies of fewer than three sentences are not appropriate.",
)


def guideline(number: int, text: str | None = None, **more: Any) -> Guideline:
    fields = {
        "id": f"g{number}",
        "text": _RULES[number % len(_RULES)] if text is None else text,
        "position": number,
        "created_at": THEN,
        "updated_at": THEN,
    }
    return Guideline.model_validate({**fields, **more})


def values_of(scale: Scale) -> list[Value]:
    match scale:
        case Boolean():
            return [True, False]
        case Categorical() | Pairwise():
            return list(scale.choices)
        case Numeric(integer=True):
            return list(range(int(scale.minimum), int(scale.maximum) + 1))
        case _:
            return [0.0, 0.25, 0.5, 0.75, 1.0]


def drift(scale: Scale, value: Value, chance: random.Random) -> Value:
    """Another value, as a judge that is wrong would give it."""
    if isinstance(scale, Numeric) and not scale.integer:
        return min(max(round(float(value) + chance.uniform(-0.45, 0.6), 2), 0.0), 1.0)
    return chance.choice([one for one in values_of(scale) if one != value])


def make_cases(
    criterion: Criterion,
    number: int,
    *,
    right: Mapping[str, float],
    confident: bool,
    fails: int,
    experts: int,
    seed: int,
) -> list[EvaluatedCase]:
    scale, chance = criterion.scale, random.Random(seed)  # noqa: S311 - nothing secret
    cases = []
    for place in range(number):
        expected = values_of(scale)[chance.randrange(len(values_of(scale)))]
        outputs: Any = (
            f"Your parcel {place} is late. Check the tracking page, and thank you for waiting."
            if place % 3
            else f"I'm so sorry that parcel {place} is lost. " * 20
        )
        if isinstance(scale, Pairwise):
            outputs = [f"A careful summary of report {place}.", f"A bold summary of {place}."]
        example = Example(
            inputs=f"Where is my order {place}? I have been waiting for three weeks.",
            outputs=outputs,
            reference_outputs="It is lost; a new one is on its way." if place % 5 == 0 else None,
        )
        judgments = {}
        for judge, share in right.items():
            if judge == ALIGNED and place < fails:
                continue
            is_right = chance.random() < share
            value = expected if is_right else drift(scale, expected, chance)
            judgments[judge] = Judgment(
                id=f"{judge}-{place}",
                criterion=criterion.name,
                example_id=example.id,
                value=value,
                rationale="The reply is polite and answers the question, so it is appropriate "
                "for this customer.",
                confidence=round(chance.uniform(0.5, 1.0), 2) if confident else None,
                guideline_ids=["g0", "g1"] if judge == ALIGNED else [],
                episode_ids=["e1", "e2"] if judge == ALIGNED else [],
                memory_version="0" * 32,
            )
        said = [
            ExpertWord(author="Ann", value=expected, rationale=_SAID[place % len(_SAID)]),
            *(
                ExpertWord(
                    author="Bo" if other else None,
                    value=expected if chance.random() < 0.8 else drift(scale, expected, chance),
                    rationale="I would have it otherwise." if place % 2 else None,
                )
                for other in range(experts - 1)
            ),
        ]
        cases.append(
            EvaluatedCase(
                example=example,
                group=example.id,
                fold=place % 3,
                expected=expected,
                experts=said,
                judgments=judgments,
                failures={ALIGNED: "The model's answer is no JSON."} if place < fails else {},
                predictions={
                    "constant": values_of(scale)[0],
                    "nearest": values_of(scale)[place % len(values_of(scale))],
                },
            )
        )
    return cases


def make_evaluation(
    criterion: Criterion = TONE,
    number: int = 36,
    *,
    right: Mapping[str, float] | None = None,
    confident: bool = False,
    fails: int = 0,
    experts: int = 1,
    resamples: int = 200,
    seed: int = 1,
    cases: Sequence[EvaluatedCase] | None = None,
    **more: Any,
) -> Evaluation:
    right = {BASE: 0.6, ALIGNED: 0.9} if right is None else right
    made = list(
        make_cases(
            criterion,
            number,
            right=right,
            confident=confident,
            fails=fails,
            experts=experts,
            seed=seed,
        )
        if cases is None
        else cases
    )
    aligned = Variant(name=ALIGNED, judge=Judge(criterion=criterion))
    variants = [aligned.without_memory(), aligned]
    scores, comparisons = score_cases(criterion.scale, made, variants, resamples=resamples, seed=0)
    given = [
        Episode.from_feedback(
            Feedback(
                example=case.example,
                value=one.value,
                rationale=one.rationale,
                author=one.author,
                id=str(place),
                given_at=THEN,
            )
        )
        for case in made
        for place, one in enumerate(case.experts)
        if one.value is not None
    ]
    fields: dict[str, Any] = {
        "criterion": criterion,
        "folds": 3,
        "cases": made,
        "scores": scores,
        "comparisons": comparisons,
        "memories": [
            FoldMemory(
                fold=fold,
                judge=ALIGNED,
                episodes=24,
                guidelines=[guideline(0), guideline(1)],
                warnings=[],
            )
            for fold in range(3)
        ],
        "learning": Spent(
            chat_calls=9, kept_calls=2, input_tokens=8_112, output_tokens=911, model_seconds=31.5
        ),
        "judging": {
            BASE: Spent(
                chat_calls=number, input_tokens=number * 212, output_tokens=900, model_seconds=40
            ),
            ALIGNED: Spent(
                chat_calls=number, input_tokens=number * 911, output_tokens=990, model_seconds=71
            ),
        },
        "experts": expert_agreement(given, criterion.scale),
        "warnings": [],
    }
    return Evaluation.model_validate({**fields, **more})


def make_episode(number: int, criterion: Criterion = TONE, **more: Any) -> Episode:
    fields: dict[str, Any] = {
        "inputs": f"Where is my order {number}?",
        "outputs": "Check the tracking page. " * 6,
        "value": values_of(criterion.scale)[-1],
        "rationale": _SAID[number % 2],
        "author": ("Ann", "Bo", "Dr. Cleo Martín")[number % 3],
        "given_at": THEN,
    }
    made = Episode.from_feedback(Feedback.model_validate({**fields, **more}))
    return made.model_copy(
        update={"id": f"e{number}", "created_at": THEN, "updated_at": THEN + timedelta(hours=1)}
    )


def make_curve(
    evaluation: Evaluation, sizes: Sequence[int] = (0, 2, 5, 10, 24), *, flips: int = 2
) -> LearningCurve:
    scale, chance = evaluation.criterion.scale, random.Random(3)  # noqa: S311 - nothing secret

    def judged(name: str, share: float) -> Any:
        cases = [case for case in evaluation.cases if chance.random() < 0.7] or evaluation.cases
        found = [
            case.expected if chance.random() < share else drift(scale, case.expected, chance)
            for case in cases
        ]
        scores, _ = score(
            scale,
            [case.expected for case in cases],
            [case.group for case in cases],
            [Verdicts(name, found)],
            resamples=200,
        )
        return scores[0]

    steps = []
    for place, size in enumerate(sizes):
        case = evaluation.cases[place % len(evaluation.cases)]
        flip = Flip(
            example=case.example,
            expected=case.expected,
            experts=case.experts,
            before=case.expected,
            after=drift(scale, case.expected, chance),
            rationale="The reply has two sentences only.",
            turned_by="guideline" if place % 2 else "episodes",
            guidelines=[guideline(3)] if place % 2 else [],
        )
        share = 0.6 + 0.35 * place / max(len(sizes) - 1, 1)
        steps.append(
            LearningStep(
                feedback=size,
                guidelines=min(place, 3),
                unseen=judged("unseen", share),
                seen=judged("seen", min(share + 0.1, 1)) if size else None,
                learning=Spent(chat_calls=2 * place, input_tokens=900 * place, model_seconds=place),
                judging=Spent(chat_calls=11, input_tokens=9_000, model_seconds=12),
                flips=[flip] * (1 if 1 < place <= flips + 1 else 0),
            )
        )
    return LearningCurve(criterion=evaluation.criterion, steps=steps, test_cases=12)


def make_credit(evaluation: Evaluation, guidelines: Sequence[Guideline]) -> list[GuidelineCredit]:
    worth = [(20, 0, 2), (20, 0, 0), (20, 5, 1), (0, 0, 0)]
    case = evaluation.cases[0]
    chance = random.Random(1)  # noqa: S311 - nothing secret
    other = drift(evaluation.criterion.scale, case.expected, chance)
    return [
        GuidelineCredit(
            guideline=one,
            shown_for=shown,
            helped=helped,
            harmed=harmed,
            changed=[
                ChangedVerdict(
                    example=case.example,
                    expected=case.expected,
                    with_it=case.expected,
                    without_it=other,
                )
            ]
            * (helped + harmed),
        )
        for one, (shown, helped, harmed) in zip(guidelines, worth, strict=False)
    ]


def make_report(criterion: Criterion = TONE, number: int = 36, **more: Any) -> Report:
    """A report with everything."""
    evaluation = make_evaluation(criterion, number, **more)
    episodes = [make_episode(one, criterion) for one in range(5)]
    guidelines = [
        guideline(3, episode_ids=["e0"]),
        guideline(2, origin="expert", author="Dr. Cleo Martín"),
        guideline(0, episode_ids=["e0", "e1", "e2", "gone"]),
        guideline(1, episode_ids=["e3", "e4"]),
    ]
    return Report(
        evaluation=evaluation,
        learning_curve=make_curve(evaluation),
        guidelines=guidelines,
        sources=episodes,
        credit=make_credit(evaluation, guidelines),
    )
