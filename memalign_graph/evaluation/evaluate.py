"""`evaluate` and `learning_curve`: learn each fold, judge it, score, and report."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Unpack

from memalign_graph.agreement import expert_agreement
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.credit import find_flips, give_credit
from memalign_graph.evaluation.dataset import (
    EVIDENCE,
    KNN,
    MAJORITY,
    MEDIAN,
    Fold,
    LabelledCase,
    baselines,
    held_out_by,
    hold_out,
    labelled_cases,
    make_folds,
    read_all,
)
from memalign_graph.evaluation.experiment import (
    EvaluationOptions,
    Experiment,
    Learned,
    Options,
    both,
    has_memory,
    label_of,
    opened,
    read_options,
    way_of,
    without_memory,
)
from memalign_graph.evaluation.metrics import JudgeScores, Prediction, score
from memalign_graph.evaluation.results import (
    ALIGNED,
    BASE,
    EvaluatedCase,
    FoldMemory,
    LearningCurve,
    LearningStep,
    Report,
    RunSettings,
)
from memalign_graph.evidence.confidence import Said
from memalign_graph.evidence.process import current_process
from memalign_graph.identity import digest
from memalign_graph.io import IO
from memalign_graph.memory.history import Snapshot, snapshot
from memalign_graph.memory.operations import remember
from memalign_graph.memory.recall import known_vector, recall
from memalign_graph.models import embedder_id, model_name_of
from memalign_graph.reading import FeedbackLike
from memalign_graph.scales import Scale
from memalign_graph.settings import Alignment, Judge
from memalign_graph.types import Criterion, Episode, Feedback, Judgment


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
    this one. Beside them stand what needs no judge: the majority, the median, the values of the
    nearest cases (kNN), and the evidence alone. Then all the feedback is learned, to show its
    guidelines. Answers are cached, so that nothing is paid for twice.

    Args:
        criterion: What is judged.
        feedback: What the experts said; cases that are judged need a value.
        judges: The judges by name, such as `ablations(judge)`; an `Alignment` also tells how one
            learns. The others are compared with the first, and the report is about the last. Unless
            given, the judge that the options describe (`aligned`), and the same one without memory
            (`base`).
        test: Cases to judge instead of folds; then all the feedback is learned from, but for what
            is on the same items.
        **options: See `Options`, and the options of `Judge` and `create_alignment_graph`.

    Returns:
        The report: `metric(judge, name)`, `to_markdown()`, `to_html()`, `to_pandas()`,
        `save(path)`, `compare(other)`.

    Raises:
        InvalidInputError: If feedback or an option can't be used; before any model is called.
        MemAlignError: If learning fails, or a call does; what was answered is kept in the cache.
        ImportError: If the extra `evaluation` is not installed.
    """
    plan, learning, judging = read_options(options)
    ways = _ways(criterion, judges, learning, judging)
    main = list(ways)[-1]
    read = read_all(feedback, criterion)
    if test is None:
        folds = make_folds(read, criterion, plan.folds, plan.group_by, plan.seed)
    else:
        told = read_all(test, criterion, "test")
        folds = [held_out_by(read, told, criterion, plan.group_by)]
    said = {item.episode_id: item for fold in folds for item in fold.feedback}
    curve_fold = folds[0]
    if plan.learning_curve and test is None:
        curve_fold = hold_out(read, criterion, plan.test_share, plan.group_by, plan.seed)
    with opened(criterion, plan) as experiment:
        for name, way in ways.items():
            experiment.wrapped(name, way.judge, "learn")  # what can't be used fails here
        memories = await _learn_folds(io, experiment, ways, folds)
        cases = await _judge_folds(io, experiment, ways, folds, memories)
        learned = memories[0, main]
        if has_memory(ways[main].judge) and len(folds) > 1:
            experiment.progress.step(0, 1)
            learned = experiment.empty(main, ways[main].judge, "report")
            await experiment.learn(io, main, ways[main], learned, read, stage="report")
        guidelines = await learned.memory.access.guidelines(io)
        cited = dict.fromkeys(key for guideline in guidelines for key in guideline.episode_ids)
        credit = []
        if plan.credit_cases and guidelines:
            credit = await give_credit(io, experiment, learned.memory, main, ways[main])
        curve = None
        if plan.learning_curve:
            curve = await follow(io, experiment, curve_fold, main, ways[main])
        scores, comparisons = _score_cases(cases, ways, criterion.scale, plan)
        return Report(
            criterion=criterion,
            settings=_settings(criterion, said.values(), len(folds), plan, ways),
            judges=list(ways),
            cases=cases,
            scores=scores,
            comparisons=comparisons,
            memories=await _described(io, memories),
            experts=expert_agreement(map(Episode.from_feedback, said.values()), criterion.scale),
            usage=experiment.ledger.rows(),
            warnings=_warnings(ways, cases, scores, memories),
            guidelines=guidelines,
            sources=list((await learned.memory.access.episodes(io, cited)).values()),
            credit=credit,
            curve=curve,
        )


async def _learning_curve(
    io: IO,
    criterion: Criterion,
    feedback: Iterable[FeedbackLike],
    *,
    test: Iterable[FeedbackLike] | None = None,
    **options: Unpack[EvaluationOptions],
) -> LearningCurve:
    """Measure a judge as its memory grows: on cases it has seen, and on cases it has not.

    One memory learns more and more of the feedback, in random order; after each step it judges the
    cases that were set aside, and those it has learned from.
    """
    plan, learning, judging = read_options(options)
    way, read = way_of(criterion, learning, judging), read_all(feedback, criterion)
    if test is None:
        fold = hold_out(read, criterion, plan.test_share, plan.group_by, plan.seed)
    else:
        told = read_all(test, criterion, "test")
        fold = held_out_by(read, told, criterion, plan.group_by)
    with opened(criterion, plan) as experiment:
        experiment.wrapped(ALIGNED, way.judge, "curve")
        return await follow(io, experiment, fold, ALIGNED, way)


evaluate, aevaluate = both(_evaluate)
learning_curve, alearning_curve = both(_learning_curve)


def _ways(
    criterion: Criterion,
    judges: Mapping[str, Judge | Alignment] | None,
    learning: Mapping[str, Any],
    judging: Mapping[str, Any],
) -> dict[str, Alignment]:
    """Read the judges that are measured."""
    if judges is None:
        way = way_of(criterion, learning, judging)
        base = Alignment(judge=without_memory(way.judge))
        return {BASE: base, ALIGNED: way}
    if judging:
        raise InvalidInputError(f"{next(iter(judging))}: give it to each Judge in `judges`.")
    ways = {}
    for name, judge in dict(judges).items():
        if not isinstance(judge, Judge | Alignment) or name in (MAJORITY, MEDIAN, KNN, EVIDENCE):
            raise InvalidInputError(
                f"judges: {name!r} can't be measured: give Judge(...) or Alignment(judge=...), "
                "under another name than a baseline's."
            )
        ways[name] = Alignment(judge=judge, **learning) if isinstance(judge, Judge) else judge
        if ways[name].judge.criterion != criterion:
            raise InvalidInputError(f"judges: {name!r} judges by another criterion: give this one.")
    if not ways:
        raise InvalidInputError("judges: give at least one, such as {'mine': Judge(...)}.")
    return ways


def _memory_key(way: Alignment) -> tuple[Any, ...]:
    """Return what a memory that is learned depends on: judges that share it share the memory."""
    judge = way.judge
    own = {name: value for name, value in way if name not in ("judge", "judge_cases")}
    judges = way.judge_cases or judge.decide == "evidence"
    said = judge.options if way.guard or judges else {}
    # What guards the guidelines, or is weighed, is what the judge says, with all its options.
    options = {name: value for name, value in said.items() if name != "distill_model"}
    models = [judge.distill_model or judge.model, judge.embeddings]
    parts = [*models, judges, *own.values(), *options.values()]
    return tuple(part if isinstance(part, str | int | None) else id(part) for part in parts)


async def _learn_folds(
    io: IO, experiment: Experiment, ways: Mapping[str, Alignment], folds: Sequence[Fold]
) -> dict[tuple[int, str], Learned]:
    """Let each fold's memories learn; judges that would learn the same share one."""
    shared: dict[tuple[Any, ...], Learned] = {}
    memories: dict[tuple[int, str], Learned] = {}
    learning = []
    for name, way in ways.items():
        if has_memory(way.judge):
            examples = [item.example for fold in folds for item in fold.feedback]
            await experiment.embed(io, name, way.judge, examples)
        for number, fold in enumerate(folds):
            key = (number, *_memory_key(way)) if has_memory(way.judge) else ()
            if key not in shared:
                shared[key] = experiment.empty(name, way.judge)
                if key:
                    learning.append((name, way, shared[key], fold.train))
            memories[number, name] = shared[key]
    experiment.progress.step(0, len(learning))
    beside = min(len(learning), experiment.limit)
    await io.gather(
        [experiment.learn(io, *task, beside=beside) for task in learning], experiment.limit
    )
    return memories


async def _judge_folds(
    io: IO,
    experiment: Experiment,
    ways: Mapping[str, Alignment],
    folds: Sequence[Fold],
    memories: Mapping[tuple[int, str], Learned],
) -> list[EvaluatedCase]:
    """Have every judge judge every case by what it learned from the other folds."""
    places = [(number, case) for number, fold in enumerate(folds) for case in fold.test]
    outcomes: list[dict[str, Judgment | str]] = [{} for _ in places]
    # One judge after another: prompts that two have in common are asked once.
    for name, way in ways.items():
        tasks = [(memories[number, name], case.example) for number, case in places]
        judged = await experiment.judge_all(io, name, way, tasks)
        for outcome, by_judge in zip(judged, outcomes, strict=True):
            by_judge[name] = outcome
    with_memory = {name: way for name, way in ways.items() if has_memory(way.judge)}
    predicted = [
        prediction
        for fold in folds
        for prediction in await _baselines(io, experiment, with_memory, fold)
    ]
    scale = experiment.criterion.scale
    return [
        _case(number, case, by_judge, baseline, scale)
        for (number, case), by_judge, baseline in zip(places, outcomes, predicted, strict=True)
    ]


async def _baselines(
    io: IO, experiment: Experiment, ways: Mapping[str, Alignment], fold: Fold
) -> list[dict[str, Prediction]]:
    """Predict a fold's cases without any judge, from the labels that are learned from."""
    scale = experiment.criterion.scale
    values = [item.value for item in fold.train if item.value is not None]
    if not ways or not values:
        plain = {name: Prediction(value=v) for name, v in baselines(values, None, scale).items()}
        return [plain for _ in fold.test]
    name, way = list(ways.items())[-1]
    access = experiment.empty(name, way.judge).memory.access
    unjudged = [item.model_copy(update={"judgment": None}) for item in fold.train]
    await remember(io, access, unjudged)
    process = await current_process(io, access)
    predictions = []
    for case in fold.test:
        similar = await recall(io, access, case.example, max(way.judge.k, 1), embeds=True)
        predicted = baselines(values, similar.examples, scale)
        said = Said(predicted.get(MEDIAN, predicted[MAJORITY]))
        with process.lock:
            decision = process.decide(access.view, said, known_vector(similar.vector), "evidence")
        known = {name: Prediction(value=value) for name, value in predicted.items()}
        known[EVIDENCE] = Prediction(value=decision.value, confidence=decision.confidence)
        predictions.append(known)
    return predictions


def verdict_of(name: str) -> str:
    """Name a judge taken at its word, where the evidence may decide otherwise."""
    return f"{name} verdict"


def _case(
    number: int,
    case: LabelledCase,
    outcomes: Mapping[str, Judgment | str],
    predictions: Mapping[str, Prediction],
    scale: Scale,
) -> EvaluatedCase:
    predicted = dict(predictions)
    judgments = {name: said for name, said in outcomes.items() if isinstance(said, Judgment)}
    for name, judgment in judgments.items():
        predicted[name] = Prediction.of(judgment)
        if judgment.evidence is not None:
            stated = (judgment.probabilities or {}).get(scale.render(judgment.verdict))
            verdict = Prediction(value=judgment.verdict, confidence=stated)
            predicted[verdict_of(name)] = verdict
    return EvaluatedCase(
        example=case.example,
        group=case.group,
        fold=number,
        expected=case.expected,
        experts=[label_of(item) for item in case.feedback],
        predictions=predicted,
        judgments=judgments,
        failures={name: why for name, why in outcomes.items() if isinstance(why, str)},
    )


def _score_cases(
    cases: Sequence[EvaluatedCase], ways: Mapping[str, Alignment], scale: Scale, plan: Options
) -> tuple[list[JudgeScores], list[Any]]:
    """Score the judges, each beside the first and beside the baselines."""
    known = [name for name in (MAJORITY, MEDIAN, KNN, EVIDENCE) if name in cases[0].predictions]
    judges: list[str] = []
    verdicts = []
    for name, way in ways.items():
        if way.judge.decide == "evidence":
            judges.append(verdict_of(name))
            verdicts.append((name, verdict_of(name)))
        judges.append(name)
    first = next(iter(ways))
    pairs = [(name, other) for name in judges for other in (first, *known) if name != other]
    return score(
        scale,
        [case.expected for case in cases],
        [case.group for case in cases],
        {n: [case.predictions.get(n, Prediction()) for case in cases] for n in [*known, *judges]},
        pairs=list(dict.fromkeys([*pairs, *verdicts])),
        resamples=plan.resamples,
        seed=plan.seed,
    )


async def _described(io: IO, memories: Mapping[tuple[int, str], Learned]) -> list[FoldMemory]:
    return [
        FoldMemory(
            fold=number,
            judge=name,
            episodes=len(await learned.memory.access.all_episodes(io)),
            guidelines=await learned.memory.access.guidelines(io),
            warnings=learned.report.warnings,
        )
        for (number, name), learned in memories.items()
        if learned.report is not None
    ]


def _settings(
    criterion: Criterion,
    feedback: Collection[Feedback],
    folds: int,
    plan: Options,
    ways: Mapping[str, Alignment],
) -> RunSettings:
    said = sorted(digest([item.episode_id, item.value, item.rationale]) for item in feedback)
    return RunSettings(
        version=version("memalign-graph"),
        created_at=datetime.now(UTC),
        data=digest([criterion.to_json(), said]),
        feedback=len(feedback),
        folds=folds,
        group_by=plan.group_by if isinstance(plan.group_by, str) else "a function",
        judges={name: _described_way(way) for name, way in ways.items()},
        **plan.model_dump(include={"seed", "resamples"}),
    )


def _described_way(way: Alignment) -> dict[str, Any]:
    judge = way.judge
    models = {"model": judge.model, "distill_model": judge.distill_model or judge.model}
    names = {key: m if isinstance(m, str) else model_name_of(m) for key, m in models.items()}
    left_out = {"criterion", "embeddings", "keep_judgments", *names}
    options = {name: value for name, value in judge if name not in left_out}
    learning = {"learn_from": way.learn_from, "guard": way.guard} if has_memory(judge) else {}
    return {**names, "embeddings": embedder_id(judge.embeddings), **options, **learning}


def _warnings(
    ways: Mapping[str, Alignment],
    cases: Sequence[EvaluatedCase],
    scores: Sequence[JudgeScores],
    memories: Mapping[tuple[int, str], Learned],
) -> list[str]:
    """Say what has to be known to read the numbers."""
    found = [
        f"{name}: feedback was not learned from, such as: {learned.report.rejected[0].reason}"
        for (_, name), learned in memories.items()
        if learned.report and learned.report.rejected
    ]
    for row in scores:
        failures = [case.failures[row.judge] for case in cases if row.judge in case.failures]
        if failures:
            missing = f"{row.failed} of {len(cases)} cases have no verdict and are in none of its"
            found.append(f"{row.judge}: {missing} numbers; the first: {failures[0]}")
    for name, way in ways.items():
        judgments = [case.judgments[name] for case in cases if name in case.judgments]
        said = Counter(warning for judgment in judgments for warning in judgment.warnings)
        found += [f"{name}: {count} judgments say: {warning}" for warning, count in said.items()]
        if way.judge.decide == "evidence":
            weighed = [judgment.evidence for judgment in judgments]
            decided = sum(e is not None and e.decided_by == "evidence" for e in weighed)
            found.append(f"{name}: the evidence decided {decided} of {len(weighed)} cases.")
    return list(dict.fromkeys(found))


async def follow(
    io: IO, experiment: Experiment, fold: Fold, name: str, way: Alignment
) -> LearningCurve:
    """Follow a memory as it learns."""
    plan = experiment.options
    train = list(fold.train)
    random.Random(plan.seed).shuffle(train)  # noqa: S311 - nothing secret
    examples = [item.example for item in fold.feedback]
    await experiment.embed(io, name, way.judge, examples, "curve")
    learned = experiment.empty(name, way.judge, "curve")
    access = learned.memory.access

    async def judged(cases: Sequence[LabelledCase], what: str) -> JudgeScores:
        tasks = [(learned, case.example) for case in cases]
        said = map(Prediction.of, await experiment.judge_all(io, name, way, tasks, "curve"))
        expected, groups = [case.expected for case in cases], [case.group for case in cases]
        [scores], _ = score(
            experiment.criterion.scale,
            expected,
            groups,
            {what: list(said)},
            resamples=plan.resamples,
            seed=plan.seed,
        )
        return scores

    async def step(size: int, then: Snapshot | None) -> LearningStep:
        seen = labelled_cases(train[:size], experiment.criterion, plan.group_by)
        return LearningStep(
            feedback=size,
            guidelines=len(await access.guidelines(io)),
            unseen=await judged(fold.test, "unseen"),
            seen=await judged(seen, "seen") if seen else None,
            flips=await find_flips(io, experiment, learned.memory, then, name, way) if then else [],
        )

    most = len(train)
    sizes = [*sorted({size for size in plan.sizes if size < most}), most]
    steps = [await step(0, None)]
    experiment.progress.step(0, len(sizes))
    for before, size in pairwise([0, *sizes]):
        view = await access.refresh(io)
        then = await snapshot(io, access, view.version) if before else None
        await experiment.learn(io, name, way, learned, train[before:size], stage="curve")
        steps.append(await step(size, then))
    return LearningCurve(
        criterion=experiment.criterion,
        steps=steps,
        test_cases=len(fold.test),
        usage=experiment.ledger.rows("curve", "flips"),
    )
