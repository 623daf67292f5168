"""`evaluate` and `learning_curve`: learn each fold, judge it, score, and report."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from typing import Unpack

from memalign_graph.agreement import expert_agreement
from memalign_graph.evaluation import dataset, results
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    JudgeUnderTest,
    Options,
    TrainedMemory,
    has_memory,
    make_splits,
    open_experiment,
    parse_options,
)
from memalign_graph.evaluation.flips import find_flips
from memalign_graph.evaluation.metrics import Comparison, JudgeScores, Prediction, score
from memalign_graph.evaluation.report import Report, score_cases
from memalign_graph.evidence.deciding import current_evidence_model
from memalign_graph.evidence.verdicts import RawVerdict
from memalign_graph.identity import digest
from memalign_graph.io import IO, sync_async_functions
from memalign_graph.memory.feedback import remember
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.recall import decode_optional_vector, recall
from memalign_graph.models import ChatModelLike, embedder_id, model_name_of, resolve_chat_model
from memalign_graph.scales import Scale
from memalign_graph.settings import Alignment, Judge
from memalign_graph.types import Criterion, Episode, Feedback, FeedbackLike, Judgment


async def _evaluate(
    io: IO,
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    judges: Mapping[str, Judge | Alignment] | None = None,
    test: Iterable[FeedbackLike] | None = None,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Measure how far judges agree with experts on cases that they did not learn from.

    Feedback is divided into folds; for each the judges learn from the others and judge the cases of
    this one. Beside them stand baselines that need no judge. Then all the feedback is learned, to
    show its guidelines. Answers are cached, so that nothing is paid for twice.

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        judges: The judges by name, such as `ablations(judge)`; an `Alignment` also tells how one
            learns. The others are compared with the first, and the report is about the last. Unless
            given, the judge that the options describe (`aligned`), and the same one without memory
            (`base`).
        test: Cases to judge instead of folds, learning from all feedback on other items.
        **options: See `Options`, and the options of `Judge` and `create_alignment_graph`.

    Returns:
        The report: `metric(judge, name)`, `save(path)`, `compare(other)`, `to_pandas()`, ...
    """
    plan, ways = parse_options(criterion, options, judges)
    read, folds = make_splits(criterion, feedback, test, plan)
    with open_experiment(criterion, plan) as experiment:
        subjects = [JudgeUnderTest(experiment, name, way) for name, way in ways.items()]
        for subject in subjects:
            subject.judge  # noqa: B018 - what can't be used fails here
        cases, memories = await _judge_folds(io, subjects, folds)
        main = subjects[-1].at("report")
        learned = memories[main.name][0]
        if has_memory(main.way.judge) and len(folds) > 1:
            learned = main.empty()
            await main.learn(io, learned, read)
        access = learned.memory.access
        guidelines = await access.guidelines(io)
        cited = dict.fromkeys(key for guideline in guidelines for key in guideline.episode_ids)
        curve = None
        if plan.learning_curve:
            curve = await _run_learning_curve(io, main.at("curve"), folds[0])
        used = {item.episode_id: item for fold in folds for item in fold.feedback}.values()
        settings = _settings(criterion, used, len(folds), plan, ways)
        scores, comparisons = _scored(cases, ways, criterion.scale, settings)
        return Report(
            criterion=criterion,
            settings=settings,
            judges=list(ways),
            cases=cases,
            scores=scores,
            comparisons=comparisons,
            memories=[
                results.FoldMemory(
                    fold=number,
                    judge=name,
                    episodes=len(await memory.memory.access.all_episodes(io)),
                    guidelines=await memory.memory.access.guidelines(io),
                    warnings=memory.report.warnings,
                )
                for name, of_judge in memories.items()
                for number, memory in enumerate(of_judge)
                if memory.report is not None
            ],
            experts=expert_agreement(map(Episode.from_feedback, used), criterion.scale),
            usage=experiment.usage.rows(),
            warnings=_warnings(ways, cases, memories),
            guidelines=guidelines,
            sources=list((await access.episodes(io, cited)).values()),
            curve=curve,
        )


async def _learning_curve(
    io: IO,
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    **options: Unpack[EvaluationOptions],
) -> results.LearningCurve:
    """Measure a judge as its memory grows: on cases it has seen, and on cases it has not.

    One memory learns more and more of the feedback, in random order; after each step it judges the
    cases that were set aside, and those it has learned from.
    """
    plan, ways = parse_options(criterion, options)
    _, [fold, *_] = make_splits(criterion, feedback, test, plan)
    with open_experiment(criterion, plan) as experiment:
        return await _run_learning_curve(
            io, JudgeUnderTest(experiment, results.ALIGNED, ways[results.ALIGNED], "curve"), fold
        )


evaluate, aevaluate = sync_async_functions(_evaluate)
learning_curve, alearning_curve = sync_async_functions(_learning_curve)


async def _judge_folds(
    io: IO, subjects: Sequence[JudgeUnderTest], folds: Sequence[dataset.Fold]
) -> tuple[list[results.EvaluatedCase], dict[str, list[TrainedMemory]]]:
    """Have every judge learn from the other folds and judge each; return its memories, too."""
    places = [(number, case) for number, fold in enumerate(folds) for case in fold.test]
    outcomes: list[dict[str, Judgment | str]] = [{} for _ in places]
    # One judge after another: what two have in common is asked once.
    memories = {subject.name: await _learn(io, subject, folds) for subject in subjects}
    for subject in subjects:
        tasks = [(memories[subject.name][number], case.example) for number, case in places]
        judged = await subject.at("judge").judge_all(io, tasks)
        for outcome, by_judge in zip(judged, outcomes, strict=True):
            by_judge[subject.name] = outcome
    with_memory = [subject for subject in subjects if has_memory(subject.way.judge)]
    scale = subjects[0].experiment.criterion.scale
    predicted = [
        prediction
        for fold in folds
        for prediction in await _baselines(io, fold, scale, *with_memory[-1:])
    ]
    weighed = _judges_with_evidence({subject.name: subject.way for subject in subjects}, outcomes)
    cases = [
        _case(number, case, by_judge, baseline, scale, weighed)
        for (number, case), by_judge, baseline in zip(places, outcomes, predicted, strict=True)
    ]
    return cases, memories


async def _learn(
    io: IO, subject: JudgeUnderTest, folds: Sequence[dataset.Fold]
) -> list[TrainedMemory]:
    """Let a judge's memories learn, one a fold."""
    memories = [(subject.empty(), fold.train) for fold in folds]
    if has_memory(subject.way.judge):
        await subject.embed(io, [item.example for fold in folds for item in fold.feedback])
        parallel_runs = min(len(folds), subject.experiment.options.max_concurrency)
        await subject.experiment.each(
            io, lambda task: subject.learn(io, *task, parallel_runs=parallel_runs), memories
        )
    return [memory for memory, _ in memories]


async def _baselines(
    io: IO, fold: dataset.Fold, scale: Scale, subject: JudgeUnderTest | None = None
) -> list[dict[str, Prediction]]:
    """Predict a fold's cases without any judge, from the labels that are learned from."""
    values = [item.value for item in fold.train if item.value is not None]
    if subject is None or not values:
        plain = {
            name: Prediction(value=v) for name, v in dataset.baselines(values, None, scale).items()
        }
        return [plain for _ in fold.test]
    access, k = subject.empty().memory.access, max(subject.way.judge.k, 1)
    await remember(io, access, [one.model_copy(update={"judgment": None}) for one in fold.train])
    model = await current_evidence_model(io, access)
    predictions = []
    for case in fold.test:
        similar = await recall(io, access, case.example, k, embed_always=True)
        predicted = dataset.baselines(values, similar.examples, scale)
        verdict = RawVerdict(predicted.get(dataset.MEDIAN, predicted[dataset.MAJORITY]))
        decision = model.decide(verdict, decode_optional_vector(similar.vector), "evidence")
        known = {name: Prediction(value=value) for name, value in predicted.items()}
        known[dataset.EVIDENCE] = Prediction(value=decision.value, confidence=decision.confidence)
        predictions.append(known)
    return predictions


def _prediction(judgment: Judgment | str) -> Prediction:
    if isinstance(judgment, str):
        return Prediction()
    return Prediction(value=judgment.value, confidence=judgment.confidence)


def _verdict_name(name: str) -> str:
    """Name a judge taken at its word, where the evidence may decide otherwise."""
    return f"{name} verdict"


def _judges_with_evidence(
    ways: Mapping[str, Alignment], outcomes: Iterable[Mapping[str, Judgment | str]]
) -> list[str]:
    """Name the judges whose values the evidence decided, or was told to."""
    overruled = {
        name
        for by_judge in outcomes
        for name, said in by_judge.items()
        if isinstance(said, Judgment) and said.evidence and said.evidence.decided_by == "evidence"
    }
    return [
        name for name, way in ways.items() if way.judge.decide == "evidence" or name in overruled
    ]


def _case(
    number: int,
    case: dataset.LabelledCase,
    outcomes: Mapping[str, Judgment | str],
    baseline: Mapping[str, Prediction],
    scale: Scale,
    weighed: Collection[str],
) -> results.EvaluatedCase:
    predictions = dict(baseline)
    judgments = {name: said for name, said in outcomes.items() if isinstance(said, Judgment)}
    for name, judgment in judgments.items():
        predictions[name] = _prediction(judgment)
        if name in weighed:
            stated = (judgment.probabilities or {}).get(scale.render(judgment.verdict))
            verdict = Prediction(value=judgment.verdict, confidence=stated)
            predictions[_verdict_name(name)] = verdict
    return results.EvaluatedCase(
        example=case.example,
        group=case.group,
        fold=number,
        expected=case.expected,
        experts=[
            results.ExpertLabel.model_validate(it, from_attributes=True) for it in case.feedback
        ],
        predictions=predictions,
        judgments=judgments,
        failures={name: why for name, why in outcomes.items() if isinstance(why, str)},
    )


def _scored(
    cases: Sequence[results.EvaluatedCase],
    ways: Mapping[str, Alignment],
    scale: Scale,
    settings: results.RunSettings,
) -> tuple[list[JudgeScores], list[Comparison]]:
    """Score the judges, each beside the first and beside the baselines."""
    known = [name for name in dataset.BASELINES if name in cases[0].predictions]
    weighed = _judges_with_evidence(ways, [case.judgments for case in cases])
    judges = [
        column
        for name in ways
        for column in ([_verdict_name(name), name] if name in weighed else [name])
    ]
    others = (next(iter(ways)), *known)
    pairs = [(name, other) for name in judges for other in others if name != other]
    pairs += [(name, _verdict_name(name)) for name in weighed]
    return score_cases(cases, scale, [*known, *judges], pairs, settings)


def _settings(
    criterion: Criterion,
    feedback: Collection[Feedback],
    folds: int,
    plan: Options,
    ways: Mapping[str, Alignment],
) -> results.RunSettings:
    said = sorted(digest([item.episode_id, item.value, item.rationale]) for item in feedback)
    return results.RunSettings(
        version=version("memalign-graph"),
        created_at=datetime.now(UTC),
        data=digest([criterion.to_json(), said]),
        feedback=len(feedback),
        folds=folds,
        group_by=plan.group_by if isinstance(plan.group_by, str) else "a function",
        seed=plan.seed,
        resamples=plan.resamples,
        judges={
            name: {
                **{key: it for key, it in way.judge if key not in ("criterion", "keep_judgments")},
                "model": _name(way.judge.model),
                "distill_model": _name(way.judge.distill_model or way.judge.model),
                "embeddings": embedder_id(way.judge.embeddings),
                **way.model_dump(include={"learn_from", "guard"}),
            }
            for name, way in ways.items()
        },
    )


def _name(model: ChatModelLike) -> str:
    return model if isinstance(model, str) else model_name_of(resolve_chat_model(model))


def _warnings(
    ways: Mapping[str, Alignment],
    cases: Sequence[results.EvaluatedCase],
    memories: Mapping[str, Sequence[TrainedMemory]],
) -> list[str]:
    """Say what has to be known to read the numbers."""
    found = []
    for name, way in ways.items():
        reports = [learned.report for learned in memories[name] if learned.report]
        rejected = [item.reason for report in reports for item in report.rejected]
        found += [f"{name}: feedback was not learned from, such as: {it}" for it in rejected[:1]]
        if failures := [case.failures[name] for case in cases if name in case.failures]:
            missing = f"{len(failures)} of {len(cases)} cases have no verdict and are in none of"
            found.append(f"{name}: {missing} its numbers; the first: {failures[0]}")
        judgments = [case.judgments[name] for case in cases if name in case.judgments]
        said = Counter(warning for judgment in judgments for warning in judgment.warnings)
        found += [f"{name}: {count} judgments say: {warning}" for warning, count in said.items()]
        deciders = [it.evidence.decided_by for it in judgments if it.evidence]
        if way.judge.decide == "evidence" or "evidence" in deciders:
            decided = f"{deciders.count('evidence')} of {len(judgments)} cases"
            found.append(f"{name}: the evidence decided {decided}.")
    return found


async def _run_learning_curve(
    io: IO, subject: JudgeUnderTest, fold: dataset.Fold
) -> results.LearningCurve:
    """Follow a memory as it learns."""
    experiment = subject.experiment
    plan, criterion = experiment.options, experiment.criterion
    train = list(fold.train)
    random.Random(plan.seed).shuffle(train)  # noqa: S311 - nothing secret
    await subject.embed(io, [item.example for item in fold.feedback])
    learned = subject.empty()
    access = learned.memory.access

    async def judged(cases: Sequence[dataset.LabelledCase], what: str) -> JudgeScores:
        said = await subject.judge_all(io, [(learned, case.example) for case in cases])
        [scores], _ = score(
            criterion.scale,
            [case.expected for case in cases],
            [case.group for case in cases],
            {what: list(map(_prediction, said))},
            resamples=plan.resamples,
            seed=plan.seed,
        )
        return scores

    async def step(size: int, then: Snapshot | None) -> results.LearningStep:
        seen = dataset.labelled_cases(train[:size], criterion, plan.group_by)
        flips = subject.at("flips")
        return results.LearningStep(
            feedback=size,
            guidelines=len(await access.guidelines(io)),
            unseen=await judged(fold.test, "unseen"),
            seen=await judged(seen, "seen") if seen else None,
            flips=await find_flips(io, flips, learned.memory, then) if then else [],
        )

    sizes = [*sorted({size for size in plan.sizes if size < len(train)}), len(train)]
    steps = [await step(0, None)]
    for before, size in pairwise([0, *sizes]):
        then = await snapshot(io, access, (await access.refresh(io)).version) if before else None
        await subject.learn(io, learned, train[before:size])
        steps.append(await step(size, then))
    return results.LearningCurve(
        criterion=criterion,
        steps=steps,
        test_cases=len(fold.test),
        usage=experiment.usage.rows("curve", "flips"),
    )
