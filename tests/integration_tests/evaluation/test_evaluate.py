"""`evaluate` and `learning_curve`: known judges, leakage, baselines, usage, failures, settings."""

import re
from collections import Counter
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from memalign_graph import Example, Feedback, Judge
from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.evaluation import Report, ablations
from memalign_graph.evaluation.metrics import METRICS
from memalign_graph.settings import Alignment
from tests.builders import make_judgment
from tests.conftest import CRITERION, judgings
from tests.integration_tests.alignment_model import few_shot_cases_in, guidelines_in, judged_case
from tests.integration_tests.evaluation.support import (
    SCALES,
    Caller,
    Model,
    asked,
    calls,
    nothing_to_learn,
    plain,
    record,
    records,
    shown,
)
from tests.loopback import (
    ChatRequest,
    LoopbackServer,
    Reply,
    Together,
    answer,
    error,
    with_logprobs,
)

GIVEN, TRUE = records(8), [record(number, values=(True,)) for number in range(8)]
CURVE: dict[str, Any] = {"learning_curve": True, "sizes": [2]}


def by_case(report: Report) -> dict[int, int]:
    """The fold of each case."""
    return {int(str(case.example.inputs).split(":")[0][5:]): case.fold for case in report.cases}


@pytest.mark.parametrize("scale", list(SCALES))
async def test_perfect_judge(call: Caller, server: LoopbackServer, scale: str) -> None:
    feedback = records(12, scale)
    values = {number: item["value"] for number, item in enumerate(feedback)}
    server.responder = Model(judge=lambda chat: values[judged_case(chat)])
    report = await call.evaluate(SCALES[scale], feedback, resamples=40, decide="verdict")
    for judge in ("base", "aligned"):
        scores = report.of(judge)
        assert (scores.cases, scores.failed) == (12, 0)
        for name, metric in scores.metrics.items():
            wanted = 0 if name == "mae" else 1
            assert metric.value == pytest.approx(wanted), name
            if metric.low is not None:
                assert wanted == pytest.approx(metric.low if name == "mae" else metric.high), name
                assert metric.high != metric.low
        assert report.wrong(judge) == []
    same = report.comparison("aligned", "base")
    assert same is not None
    assert {value.value for value in same.differences.values()} == {0}
    assert (report.metric("base", "kappa").value is None) == (scale == "number")
    assert (report.metric("base", "ccc").value is None) == (scale not in ("stars", "number"))


async def test_reported_calls_match_the_servers_count(call: Caller, server: LoopbackServer) -> None:
    """By judge (by model name on the server) and purpose, including the learning curve."""
    server.responder = Model(judge=lambda chat: judged_case(chat) % 2 > 0)
    embeddings, store = server.embedder(), InMemoryStore()
    judges = {
        name: Judge(criterion=CRITERION, model=server.chat_model(model=name), embeddings=embeddings)
        for name in ("one", "other")
    }
    options: dict[str, Any] = {"judges": judges, "batch_size": 2, "cache": store, **CURVE}
    report = await call.evaluate(CRITERION, GIVEN, **options)
    purposes = {"judgment": "judge", "guideline_operations": "distil"}
    seen = Counter(
        (chat.model, purposes.get(str(chat.schema_name), "compare")) for chat in server.chats
    )
    counts: Counter[tuple[str, str]] = Counter()
    for row in report.usage:
        counts[row.judge, row.purpose] += row.chat_calls
    assert +counts == seen
    assert len(seen) == 6
    tokens = sum(-(-len(chat.text) // 4) for chat in server.chats)
    assert sum(row.input_tokens for row in report.usage) <= tokens
    assert (calls(report), calls(report, "embedding_calls")) == asked(server)
    assert calls(report, judge="other", stage="judge") == 8
    assert report.curve is not None
    assert [step.feedback for step in report.curve.steps] == [0, 2, 5]
    assert len(report.guidelines) == len(report.sources) == 8
    again = await call.evaluate(CRITERION, GIVEN, **options)
    assert (calls(again), calls(again, "embedding_calls")) == asked(server) == (0, 0)
    assert plain(again) == plain(report)


async def test_no_prompt_has_feedback_of_its_fold(call: Caller, server: LoopbackServer) -> None:
    """Neither in the judge's prompt nor in the guidelines."""
    feedback = records(9)
    feedback += [record(n, author="bob", rationale=f"Bob: because{n}so.") for n in (0, 4)]
    feedback += [
        record(n, author="cy", value=None, rationale=f"Cy: because{n}so.") for n in (1, 30)
    ]
    report = await call.evaluate(CRITERION, feedback, decide="verdict")
    assert (report.experts.examples, report.settings.feedback) == (2, 13)
    folds = by_case(report)
    assert Counter(folds.values()) == {0: 3, 1: 3, 2: 3}
    for chat in judgings(server):
        for number in {*shown(chat), *few_shot_cases_in(chat)}:
            assert folds.get(number) != folds[judged_case(chat)]
    with_memory = Counter(judged_case(chat) for chat in judgings(server) if shown(chat))
    without = Counter(judged_case(chat) for chat in judgings(server) if not shown(chat))
    assert with_memory == without == Counter(range(9))
    for memory in report.memories:
        of_fold = [number for number, fold in folds.items() if fold == memory.fold]
        texts = " ".join(guideline.text for guideline in memory.guidelines)
        assert not any(f"because{number}so" in texts for number in of_fold)
        assert "because30so" in texts
    assert {label.author for case in report.cases for label in case.experts} == {"ann", "bob", "cy"}


async def test_verdicts_that_feedback_answers_are_not_used(
    call: Caller, server: LoopbackServer
) -> None:
    """They are another judge's, or were given with held-out cases in memory."""
    server.responder = Model(judge=lambda chat: judged_case(chat) % 2 > 0)
    feedback = [Feedback.model_validate(item) for item in records(9, rationale=None)]
    verdicts = [make_judgment(item.example.id, value=bool(item.value)) for item in feedback]
    reviewed = [
        item.model_copy(update={"judgment": verdict})
        for item, verdict in zip(feedback, verdicts, strict=True)
    ]
    reports = [await call.evaluate(CRITERION, given) for given in (feedback, reviewed)]
    assert plain(reports[0]) == plain(reports[1])
    assert calls(reports[1], stage="learn", purpose="judge") == 2 * 9


async def test_one_case_that_is_no_pair_is_not_judged(call: Caller, server: LoopbackServer) -> None:
    pairs = records(8, "pairwise")
    pairs[4]["outputs"] = "A: one, B: two"
    server.responder = Model(judge=lambda chat: "A")
    report = await call.evaluate(SCALES["pairwise"], pairs, swap=True, guard="replay")
    [failure] = [case.failures for case in report.cases if case.failures]
    assert set(failure) == {"base", "aligned"}
    assert "they have to be two" in failure["aligned"]


async def test_held_out_cases_are_never_learned(call: Caller, server: LoopbackServer) -> None:
    test = [record(n, author="bob", rationale=f"Bob: because{n}so.") for n in (0, 3, 40)]
    report = await call.evaluate(CRITERION, records(9), test=iter(test), **CURVE)
    assert report.settings.folds == 1
    assert not any(shown(chat) & {0, 3, 40} for chat in server.chats)
    [memory] = report.memories
    assert memory.episodes == 7
    assert report.curve is not None
    assert [step.feedback for step in report.curve.steps] == [0, 2, 7]
    assert report.settings.feedback == 7 + 3
    # A test case is compared only with its own feedback, not with other feedback on it.
    assert {label.author for case in report.cases for label in case.experts} == {"bob"}


async def test_baselines_are_scored(call: Caller) -> None:
    values = [
        record(n, inputs=f"{kind} {10_000 + n}", outputs=kind, value=kind == "apple")
        for n, kind in enumerate(["apple", "apple", "pear"] * 8)
    ]
    report = await call.evaluate(CRITERION, values, k=1, resamples=30)
    # By default the evidence model is compared with the judge's verdicts on its training cases.
    names = ["majority", "kNN", "evidence", "base", "aligned verdict", "aligned"]
    assert [scores.judge for scores in report.scores] == names
    assert {case.predictions["majority"].value for case in report.cases} == {True}
    assert report.metric("majority", "kappa").value == pytest.approx(0)
    assert report.metric("kNN", "agreement").value == 1
    # By chance a case can be less similar to cases of its own kind.
    assert report.metric("evidence", "agreement").value == pytest.approx(1, abs=0.1)
    assert ("aligned", "kNN") in {(pair.judge, pair.against) for pair in report.comparisons}
    # A case counts once, however many experts valued it.
    panel = [record(30 + n, value=False, author=f"e{k}") for n in range(3) for k in range(5)]
    cases = await call.evaluate(CRITERION, [*records(9, value=True), *panel], resamples=30)
    assert {case.predictions["majority"].value for case in cases.cases} == {True}
    stars = await call.evaluate(SCALES["stars"], records(12, "stars"))
    judges = [scores.judge for scores in stars.scores]
    assert judges[:4] == ["majority", "median", "kNN", "evidence"]
    none = await call.evaluate(CRITERION, records(4, value=None), test=[record(60)])
    assert set(none.cases[0].predictions) == {"base", "aligned"}


async def test_custom_judges_and_ablations(call: Caller, server: LoopbackServer) -> None:
    judge = Judge(criterion=CRITERION, decide="verdict", **call.models())
    report = await call.evaluate(CRITERION, records(6), judges=ablations(judge), folds=2)
    names = list(ablations(judge))
    assert report.judges == names
    assert [scores.judge for scores in report.scores][3:] == names
    prompts: dict[str, list[Any]] = {name: [] for name in names}
    for chat in judgings(server):
        answers = "\n".join(m["content"] for m in chat.messages if m["role"] == "assistant")
        kind = "base"
        if few_shot_cases_in(chat) and not answers:
            kind = "words only"
        elif answers and "because" not in answers:
            kind = "labels only"
        elif answers:
            kind = "aligned" if guidelines_in(chat) else "episodic only"
        elif guidelines_in(chat):
            kind = "semantic only"
        prompts[kind].append(chat)
    assert {name: len(chats) for name, chats in prompts.items()} == dict.fromkeys(names, 6)
    assert not any(shown(chat) for chat in prompts["labels only"])
    # Three of them share a memory, which is learned once per fold and once for the report.
    distilled = [chat for chat in server.chats if chat.schema_name == "guideline_operations"]
    assert len(distilled) == 2 * 3 + 1
    asked(server)
    other = judge.but(model=server.chat_model(model="other"))
    mine = {"mine": judge, "theirs": Alignment(judge=other, learn_from="labels")}
    report = await call.evaluate(CRITERION, records(6), judges=mine, folds=2)
    assert {case.judgments["theirs"].model for case in report.cases} == {"other"}
    assert report.settings.judges["theirs"]["model"] == "other"
    assert report.comparison("theirs", "mine") is not None


async def by_inputs(example: Example) -> str:
    return str(example.inputs)


JUDGE = Judge(criterion=CRITERION)
OTHER_JUDGE = Judge(criterion=SCALES["stars"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"feedback": records(2)}, "folds: 3 folds need .* there are 2"),
        ({"feedback": {"inputs": 1}}, "feedback: give a list"),
        ({"group_by": "outputs"}, "group_by: 'outputs' is not known"),
        ({"group_by": by_inputs}, "group_by: give a plain function, not an async one"),
        ({"progress": 7}, "progress: 7 is neither"),
        ({"cache": 7}, "cache: give a LangGraph store, or the path"),
        ({"cache": "."}, "cache: a folder or URL can't be used"),
        ({"cache": "x" * 300}, "cache: x{300} can't be used"),
        ({"cache": "a\0b"}, "cache: a\0b can't be used"),
        ({"sizes": [0]}, "sizes.0: 0 is below the minimum"),
        ({"nonsense": 1}, "nonsense: is not a known field"),
        ({"test": []}, "test: no case has a value"),
        ({"test": [{"inputs": "a"}]}, r"test\[0\]: "),
        ({"test": records(5)}, "feedback: nothing is left to learn from"),
        ({"model": "nonsense"}, "model: 'nonsense' names no model"),
        ({"use_guidelines": False, "use_episodes": False}, "use_episodes: a judge"),
        ({"judges": {}}, "judges: give at least one"),
        ({"judges": {1: JUDGE}}, "judges: 1 can't be measured"),
        ({"judges": {"a": JUDGE, "a verdict": JUDGE}}, "judges: 'a verdict' can't be measured"),
        ({"judges": {"a": 5}}, "judges: 'a' can't be measured"),
        ({"judges": {"kNN": JUDGE}}, "judges: 'kNN' can't"),
        (
            {"judges": {"a": Alignment(judge=JUDGE, conflicts="ask")}},
            "judges: 'a' has conflicts='ask'",
        ),
        ({"judges": {"a": OTHER_JUDGE}}, "judges: 'a' has the criterion"),
        ({"judges": {"a": JUDGE}, "k": 2}, "k: give it to each"),
    ],
)
async def test_unusable_arguments(
    call: Caller, server: LoopbackServer, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{says}") as caught:
        await call.evaluate(CRITERION, **{"feedback": records(5), **options})
    assert "\n" not in str(caught.value)
    assert asked(server) == (0, 0)


async def test_failures_are_counted_and_named(call: Caller, server: LoopbackServer) -> None:
    """The base judge fails on case 3, both judges on case 5."""

    def judge(chat: Any) -> Any:
        if judged_case(chat) == 5:
            return error(400, "Content policy.")
        return answer("I would say yes.") if judged_case(chat) == 3 and not shown(chat) else True

    server.responder = Model(judge=judge)
    report = await call.evaluate(CRITERION, GIVEN, resamples=30)
    base, aligned = report.of("base"), report.of("aligned")
    assert (base.cases, base.failed, aligned.cases, aligned.failed) == (6, 2, 7, 1)
    assert base.confusion is not None
    assert sum(map(sum, base.confusion)) == 6
    right = [item["value"] for n, item in enumerate(GIVEN) if n not in (3, 5)]
    assert base.metrics["agreement"].value == pytest.approx(sum(right) / 6)
    compared = report.comparison("aligned", "base")
    assert compared is not None
    assert (compared.cases, compared.differences["agreement"].value) == (6, 0)
    assert report.warnings[0].startswith("base: 2 of 8 cases have no verdict")
    failed = {case.example.inputs: set(case.failures) for case in report.cases if case.failures}
    assert failed == {GIVEN[3]["inputs"]: {"base"}, GIVEN[5]["inputs"]: {"base", "aligned"}}
    # An unusable answer is requested twice, and both calls count; a refused request is no call.
    assert calls(report, judge="base") == 6 + 2
    server.responder = Model(judge=lambda _: answer("Well."))
    report = await call.evaluate(CRITERION, GIVEN, resamples=20)
    assert (report.of("aligned").cases, report.of("aligned").failed) == (0, 8)
    assert {metric.value for metric in report.of("aligned").metrics.values()} == {None}
    assert "no verdict" in report.to_markdown()


async def test_case_without_a_vector_fails_alone(call: Caller, server: LoopbackServer) -> None:
    server.refused_text = GIVEN[5]["inputs"]
    report = await call.evaluate(CRITERION, GIVEN)
    assert (report.of("base").failed, report.of("aligned").failed) == (0, 1)
    failures = {case.example.inputs: case.failures for case in report.cases if case.failures}
    assert list(failures) == [GIVEN[5]["inputs"]]
    assert "refuses the input" in failures[GIVEN[5]["inputs"]]["aligned"]


async def test_model_outage_stops_the_run(call: Caller, server: LoopbackServer) -> None:
    server.responder = lambda _: error(500, "Down.", retry_after=0)
    with pytest.raises(MemAlignError, match=r"gpt-4.1-mini failed"):
        await call.evaluate(CRITERION, GIVEN, model=server.chat_model(max_retries=0))
    asked(server)
    server.script_embeddings(*[error(401, "No key.")] * 50)
    with pytest.raises(MemAlignError, match="text-embedding-3-small failed"):
        await call.evaluate(CRITERION, GIVEN)
    assert server.chats == []


async def test_progress_ends_at_its_total(
    call: Caller, server: LoopbackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    reported: list[tuple[int, int]] = []
    await call.evaluate(CRITERION, GIVEN, progress=lambda *at: reported.append(at), **CURVE)
    assert reported[-1][0] == reported[-1][1] > 0
    assert reported == sorted(reported)
    assert {done for done, _ in reported} == set(range(reported[-1][1] + 1))
    await call.evaluate(CRITERION, GIVEN, progress=True)
    bar = capsys.readouterr()
    assert (bar.out, "step" in bar.err, "\n" in bar.err) == ("", True, False)
    with pytest.raises(RuntimeError, match="stop here"):
        await call.evaluate(CRITERION, GIVEN, progress=stop)


def stop(done: int, _: int) -> None:
    if done == 3:
        raise RuntimeError("stop here")


async def test_max_concurrency_is_not_exceeded(call: Caller, server: LoopbackServer) -> None:
    server.responder = Together(5, server.responder, "judgment")
    call.defaults["decide"] = "verdict"
    await call.evaluate(CRITERION, GIVEN, max_concurrency=5, batch_size=1)
    assert server.peak_chats == 5
    server.reset()
    server.responder, server.latency_s = Model(), 0.02
    # A judgment makes several calls.
    await call.evaluate(CRITERION, GIVEN, max_concurrency=3, confidence=True, samples=4)
    assert server.peak_chats == 3


class State(TypedDict, total=False):
    agreement: float | None


async def test_evaluation_in_a_graph_leaves_no_trace(call: Caller, server: LoopbackServer) -> None:
    """No trace in the stream, the threads or the store of the outer graph."""
    collected: list[Report] = []

    async def measure(_: State) -> State:
        collected.append(await call.evaluate(CRITERION, GIVEN, folds=2))
        return {"agreement": collected[0].metric("aligned", "agreement").value}

    builder: Any = StateGraph(State)
    builder.add_node("measure", measure)
    builder.add_edge(START, "measure")
    builder.add_edge("measure", END)
    saver, store = InMemorySaver(), InMemoryStore()
    graph = builder.compile(checkpointer=saver, store=store)
    config: Any = {"configurable": {"thread_id": "t"}}
    modes = ["messages", "updates", "custom"]
    events = [mode async for mode in graph.astream({}, config, stream_mode=modes)]
    assert events == [("updates", {"measure": {"agreement": 5 / 8}})]
    configs = [checkpoint.config["configurable"] for checkpoint in saver.list(None)]
    assert {config["checkpoint_ns"] for config in configs} == {""}
    assert store.list_namespaces() == []
    assert plain(collected[0]) == plain(await call.evaluate(CRITERION, GIVEN, folds=2))


async def test_report_names_its_run_and_can_be_loaded(call: Caller) -> None:
    options: dict[str, Any] = {"resamples": 20, "k": 3, "seed": 4}
    options |= {"require_namespace": True, "models": ["openai:another"]}
    report = await call.evaluate(CRITERION, GIVEN, **options)
    settings = report.settings
    assert (settings.seed, settings.resamples, settings.feedback) == (4, 20, 8)
    assert settings.judges["aligned"]["k"] == 3
    assert "text-embedding" in settings.judges["aligned"]["embeddings"]
    other = await call.evaluate(CRITERION, [*GIVEN[1:], record(90)], k=3, batch_size=7)
    assert other.settings.data != settings.data
    assert other.settings.judges["aligned"]["batch_size"] == 7
    splits = [await call.evaluate(CRITERION, GIVEN[:n], test=GIVEN[n:]) for n in (4, 5)]
    assert len({settings.data, *(split.settings.data for split in splits)}) == 3
    assert Report.model_validate_json(report.model_dump_json()) == report
    with pytest.raises(KeyError, match="was not measured"):
        report.metric("nobody", "kappa")
    with pytest.raises(KeyError, match=r"'agrement' is not a metric: there is .'agreement'"):
        report.metric("aligned", "agrement")
    assert {name for row in report.scores for name in row.metrics} <= {*METRICS}
    table = report.to_pandas()
    assert len(table) == 8 * 5
    assert [*table.columns[-3:]] == ["rationale", "guideline_ids", "episode_ids"]
    assert set(table.judge) == {"majority", "kNN", "evidence", "base", "aligned"}
    agreement = report.metric("aligned", "agreement").value
    assert table[table.judge == "aligned"].right.mean() == agreement


async def test_checks_are_counted_as_checks(call: Caller, server: LoopbackServer) -> None:
    def answers(chat: ChatRequest) -> Reply:
        if chat.schema_name == "guideline_questions":
            listed = re.findall(r"^\d+\. ", str(chat.messages[-1]["content"]), re.MULTILINE)
            return answer({"questions": ["Is it kind?"] * len(listed)})
        if chat.schema_name is None:
            return with_logprobs("Yes", [("Yes", {"Yes": 0.9, "No": 0.1})])
        return Model()(chat)

    server.responder = answers
    report = await call.evaluate(CRITERION, GIVEN, checks=True, decide="verdict")
    asked_checks = sum(chat.schema_name is None for chat in server.chats)
    assert calls(report, purpose="check") == asked_checks > 0
    assert calls(report, purpose="confidence") == 0


async def test_comparison_of_two_reports(call: Caller, server: LoopbackServer) -> None:
    server.responder = Model(judge=lambda chat: judged_case(chat) > 3)
    before = await call.evaluate(CRITERION, GIVEN)
    server.responder = Model(judge=lambda chat: judged_case(chat) != 5)
    feedback = [*GIVEN, record(50, value=None, rationale="On #new be brief; true if it is brief.")]
    changes = (await call.evaluate(CRITERION, feedback)).compare(before)
    inputs = [[str(c.example.inputs)[5] for c in some] for some in (changes.better, changes.worse)]
    assert [sorted(numbers) for numbers in inputs] == [["0", "2", "3"], ["1", "5"]]
    assert changes.cases == 8
    assert any("On #new" in guideline.text for guideline in changes.worse[0].guidelines)
    # A corrected label is not a change of the judge.
    corrected = [{**GIVEN[7], "value": not GIVEN[7]["value"]}]
    after = await call.evaluate(CRITERION, [*feedback[:7], *corrected, feedback[8]])
    same = after.compare(before)
    assert (len(same.better), len(same.worse)) == (3, 2)


async def test_learning_curve_of_a_judge_that_learns(call: Caller, server: LoopbackServer) -> None:
    """The judge is wrong until the prompt has episodes, and right on seen cases immediately."""

    def judge(chat: ChatRequest) -> Any:
        return len(few_shot_cases_in(chat)) > 1 or judged_case(chat) in shown(chat)

    server.responder = Model(judge=judge, distil=nothing_to_learn)
    test = [record(number, values=(True,)) for number in (50, 51, 52)]
    curve = await call("learning_curve", CRITERION, TRUE, test=test, sizes=[1, 4, 99])
    assert [step.feedback for step in curve.steps] == [0, 1, 4, 8]
    assert curve.test_cases == 3
    unseen = [step.unseen.metrics["agreement"].value for step in curve.steps]
    assert unseen == [0, 0, 1, 1]
    seen = [step.seen and step.seen.metrics["agreement"].value for step in curve.steps]
    assert seen == [None, 1, 1, 1]
    assert [step.seen.cases if step.seen else 0 for step in curve.steps] == [0, 1, 4, 8]
    for chat in judgings(server):
        assert not shown(chat) & {50, 51, 52}


async def test_last_step_of_the_curve_is_the_aligned_judge(
    call: Caller, server: LoopbackServer
) -> None:
    """Its evidence decides, also if no single step learns from five cases."""
    server.responder = Model(judge=lambda _: False, distil=nothing_to_learn)
    kinds = ["apple", "apple", "pear"] * 7
    fruit = [
        record(n, inputs=f"{kind} {10_000 + n}", outputs=kind, value=kind == "apple")
        for n, kind in enumerate(kinds)
    ]
    options: dict[str, Any] = {"learning_curve": True, "sizes": [4, 8]}
    report = await call.evaluate(CRITERION, fruit[:12], test=fruit[12:], **options)
    assert report.metric("aligned", "agreement").value == 1
    assert report.metric("base", "agreement").value == 1 / 3
    assert report.curve is not None
    assert report.curve.steps[-1].unseen.metrics == report.of("aligned").metrics


async def test_learning_curve_learns_in_random_order(call: Caller, server: LoopbackServer) -> None:
    """Also with given test cases, and in `evaluate` as in `learning_curve`."""
    firsts = set()
    for seed in range(2):
        asked(server)
        await call("learning_curve", CRITERION, TRUE, test=[record(70)], sizes=[2], seed=seed)
        distilled = next(chat for chat in server.chats if chat.schema_name != "judgment")
        firsts.add(frozenset(shown(distilled)))
        options = {"test": [record(70)], "sizes": [2], "seed": seed, "cache": InMemoryStore()}
        report = await call("evaluate", CRITERION, TRUE, **options, learning_curve=True)
        asked(server)
        curve = await call("learning_curve", CRITERION, TRUE, **options)
        assert asked(server) == (0, 0)
        assert plain(report.curve) == plain(curve)
    assert len(firsts) > 1
