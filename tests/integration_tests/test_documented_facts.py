"""The tables, figures and diagrams of the documents match the code."""

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import memalign_graph
from memalign_graph import (
    Aggregate,
    GateVerdict,
    Guideline,
    Judge,
    JudgeMemory,
    Judgment,
    MemAlignContext,
    QualityGateMiddleware,
    Uncertain,
    add_quality_gate,
    asking,
    create_alignment_graph,
    create_feedback_graph,
    create_judge_graph,
    create_panel_graph,
    create_review_graph,
    errors,
    gate,
    interrupts,
    models,
    settings,
    types,
)
from memalign_graph.alignment import comment_questions, distill, merge, replay
from memalign_graph.call_judge import KEEP_CALLS, Approval
from memalign_graph.cli.app import app
from memalign_graph.cli.commands import review
from memalign_graph.cli.files import _SETTINGS
from memalign_graph.cli.memory import _MIN_ID_CHARS
from memalign_graph.cli.options import Status
from memalign_graph.evaluation import metrics
from memalign_graph.evaluation.dataset import BASELINES
from memalign_graph.evaluation.experiment import Options
from memalign_graph.evidence import (
    cases,
    checks,
    comparison,
    confidence,
    drift,
    evidence_model,
    regression,
    threshold,
    value_from_checks,
)
from memalign_graph.io import SYNC, run_sync
from memalign_graph.local.stores import POOL_SIZE
from memalign_graph.memory import checks as memory_checks
from memalign_graph.memory import recall, reports, view
from memalign_graph.memory.learning import record_questions
from memalign_graph.prompts import distill_small
from memalign_graph.review import queue
from memalign_graph.review.leases import LEASE
from memalign_graph.runtime import DEFAULT_MAX_CONCURRENCY
from memalign_graph.tool_calls import _MAX_CHANGE_CHARS
from memalign_graph.untrusted_text import _MAX_DESTINATIONS, repeats_tool_text
from tests.conftest import CRITERION
from tests.documents import ROOT, code, table
from tests.integration_tests.evidence.checks_support import BRIEF, SORRY, Model
from tests.loopback import LoopbackServer


def fields_of(model: type[BaseModel], *leave_out: str) -> dict[str, FieldInfo]:
    return {name: field for name, field in model.model_fields.items() if name not in leave_out}


def literals(annotation: Any) -> tuple[set[Any], bool]:
    """Return the literal values of an annotation, and whether they are all it allows."""
    origin = get_origin(annotation)
    if origin is Literal:
        return set(get_args(annotation)), True
    if annotation in (bool, type(None)):
        return ({True, False} if annotation is bool else {None}), True
    if origin in (Union, UnionType):
        parts = [literals(part) for part in get_args(annotation)]
        return set().union(*(values for values, _ in parts)), all(only for _, only in parts)
    return set(), False


def bounds(cell: str) -> dict[str, float]:
    """Read `0 to 100`, `1 or more` and `above 0, at most 0.9`."""
    if match := re.search(r"(\d+) to (\d+)", cell):
        return {"ge": int(match[1]), "le": int(match[2])}
    if match := re.search(r"(\d+) or more", cell):
        return {"ge": int(match[1])}
    if match := re.search(r"above (\d+), at most ([\d.]+)", cell):
        return {"gt": int(match[1]), "le": float(match[2])}
    return {}


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    return {
        name: value
        for part in field.metadata
        for name in ("ge", "le", "gt", "lt")
        if isinstance(value := getattr(part, name, None), int | float)
    }


MODELS: dict[str, Mapping[str, FieldInfo]] = {
    "docs/options.md": fields_of(Judge, "criterion"),
    "docs/gate.md": fields_of(settings.Gate),
    "docs/alignment.md": fields_of(settings.Alignment, "judge"),
    "docs/confidence.md": fields_of(Uncertain),
    "docs/approvals.md": fields_of(Approval),
    "docs/panel.md": fields_of(Aggregate),
}
"""Whose options a page lists in its tables that begin with option, default and takes."""


@pytest.mark.parametrize("page", MODELS)
def test_options_have_the_documented_defaults_and_bounds(page: str) -> None:
    rows = table(page, "option", "default", "takes")
    fields = MODELS[page]
    assert sorted(code(row[0])[0] for row in rows) == sorted(fields)
    for option, default, takes, *_ in rows:
        field = fields[code(option)[0]]
        assert ast.literal_eval(code(default)[0]) == field.get_default(call_default_factory=True), (
            option
        )
        if bounded := bounds_of(field):
            assert "timedelta" in takes or bounds(takes) == bounded, option
        else:
            assert bounds(takes) == {}, option
        allowed, is_all = literals(field.annotation)
        names = {value for value in allowed if isinstance(value, str)}
        if is_all:
            assert {ast.literal_eval(text) for text in code(takes)} == allowed, option
        elif names:
            assert {ast.literal_eval(text) for text in code(takes)} == names, option


def test_readme_and_the_builders_have_the_documented_defaults() -> None:
    fields = fields_of(Judge)
    builders = {"review": create_review_graph, "clarify": create_review_graph}
    for option, default, *_ in table("README.md", "option", "default"):
        [name] = code(option)
        value = ast.literal_eval(code(default)[0])
        if name in fields:
            assert fields[name].default == value
        else:
            assert inspect.signature(builders[name]).parameters[name].default == value
    for option, where, default, *_ in table("docs/options.md", "option", "where"):
        [name], value = code(option), ast.literal_eval(code(default)[0])
        if where == "gates":
            assert settings.Gate.model_fields[name].default == value
        else:
            builder = getattr(memalign_graph, code(where)[0])
            assert inspect.signature(builder).parameters[name].default == value
    assert inspect.signature(create_panel_graph).parameters["review"].default == "never"


def test_context_has_the_documented_fields() -> None:
    rows = table("docs/graphs.md", "field", "takes")
    assert [code(row[0])[0] for row in rows] == list(MemAlignContext.model_fields)
    for field, takes, what in rows:
        info = MemAlignContext.model_fields[code(field)[0]]
        assert bounds(takes) == bounds_of(info) or info.annotation == int | None
        if info.default is not None:
            assert ast.literal_eval(code(what)[0]) == info.default
    assert bounds(rows[1][1]) == {"ge": 0, "le": settings.MAX_K}


REPLIES = {*interrupts._DECISIONS, "ignore", '{"value": ..., "rationale": ..., "author": ...}'}
LISTED: list[tuple[str, tuple[str, ...], set[str]]] = [
    ("docs/gate.md", ("status",), set(get_args(gate.GateStatus))),
    ("docs/gate.md", ("field",), set(get_type_hints(GateVerdict))),
    ("docs/evaluation.md", ("name in the report",), {*BASELINES, "base", "aligned"}),
    ("docs/checks.md", ("key",), set(types.Check.model_fields)),
    ("docs/replies.md", ("reply",), REPLIES),
    ("docs/options.md", ("status of a guideline",), set(get_args(types.GuidelineStatus))),
    ("docs/confidence.md", ("source",), set(get_args(types.ConfidenceSource))),
    (
        "docs/confidence.md",
        ("reason",),
        {*get_args(types.ReviewReason)}
        - (cases.ALWAYS_ASKED | {"judged_wrong", "episodes_disagree"}),
    ),
    ("docs/confidence.md", ("`decide`",), {f'"{mode}"' for mode in get_args(types.Decide)}),
    (
        "docs/errors.md",
        ("exception",),
        {
            name
            for name, kind in vars(errors).items()
            if inspect.isclass(kind) and issubclass(kind, errors.MemAlignError)
        }
        - {"MemAlignError"},
    ),
]


@pytest.mark.parametrize(("page", "header", "names"), LISTED)
def test_documented_names_exist(page: str, header: tuple[str, ...], names: set[str]) -> None:
    listed = [name for row in table(page, *header) for name in code(row[0])]
    assert sorted(listed) == sorted(names)


def test_fields_of_judgments_and_guidelines_are_documented() -> None:
    listed = {name for row in table("docs/options.md", "field") for name in code(row[0])}
    assert listed - {"question", "worth", "status"} == set(Judgment.model_fields)
    assert listed - set(Judgment.model_fields) <= set(Guideline.model_fields)


def test_each_extra_is_in_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = table("docs/index.md", "extra")
    extras = set(project["optional-dependencies"]) - {"docs", "dev", "benchmark"}
    assert {code(row[0])[0] for row in rows} == extras


def test_each_environment_variable_is_in_the_table() -> None:
    listed = {name for row in table("docs/operations.md", "variable") for name in code(row[0])}
    sources = (ROOT / "memalign_graph").rglob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in sources]
    read = {name for text in texts for name in re.findall(r"\"(MEMALIGN_[A-Z_]+)\"", text)}
    assert {name for name in listed if name.startswith("MEMALIGN")} == read


def needed(target: float, level: float) -> int:
    return threshold.find_threshold([], target, level).needed


def test_documented_case_counts_match_the_code() -> None:
    counts = {
        "the evidence decides": cases.MIN_CASES,
        "verdicts that are compared": evidence_model._MAX_COMPARED,
        "confidence is calibrated": comparison.MIN_CALIBRATING,
        "a case is found to be unlike memory": round(1 / evidence_model._NOVELTY_QUANTILE) - 1,
    }
    rows = table("docs/confidence.md", "what", "number")
    for what, number, _ in rows:
        if match := re.search(r"0\.\d+", what):
            level = threshold.LEFT_OUT_LEVEL if "evidence" in what else threshold.LEVEL
            assert int(number) == needed(float(match[0]), level), what
        else:
            assert int(number) == counts.pop(what)
    assert counts == {}


def _is_used_after_failures(accepted: int) -> bool:
    weights = value_from_checks.weigh_check([-1.0] * accepted, [])
    return weights.failed > value_from_checks._MIN_WEIGHT


SENTENCES: list[tuple[str, str, list[Any]]] = [
    (
        "how-it-works",
        r"about n / (\d+) chat calls .* n / (\d+) embedding requests",
        [settings.DEFAULT_BATCH_SIZE, recall._EMBED_TEXTS],
    ),
    ("how-it-works", r"refuses the same feedback (\w+) times", [distill.MAX_ATTEMPTS]),
    ("alignment", r"After (\w+) attempts", [distill.MAX_ATTEMPTS]),
    ("alignment", r"loses at least (\w+) cases more than", [replay._SLACK + 1]),
    ("alignment", r"compared with the (\w+) nearest", [merge._NEIGHBORS]),
    ("approvals", r"at most ([\d,]+) characters", [_MAX_CHANGE_CHARS]),
    ("approvals", r"more than ([\d,]+) of these values", [_MAX_DESTINATIONS]),
    (
        "checks",
        r"gives none (\w+) times in a row is not asked for them for (\w+) minutes",
        [confidence._MAX_WITHOUT_LOGPROBS, confidence._WITHOUT_LOGPROBS_S / 60],
    ),
    ("command-line", r"its first (\w+) characters", [_MIN_ID_CHARS]),
    ("command-line", r"`--port` \((\d+);", [inspect.signature(review).parameters["port"].default]),
    ("confidence", r"closer to it than a (\w+) of the median", [regression._NEAR_DUPLICATE_SHARE]),
    ("confidence", r"than (\S+) % of the distance", [100 * regression._FAR_SHARE]),
    ("confidence", r"more than (\S+) of the range", [comparison._MAX_LOSS]),
    (
        "confidence",
        r"any case there than (\d+) % of those cases",
        [100 * (1 - evidence_model._NOVELTY_QUANTILE)],
    ),
    ("evaluation", r"after (\d+), (\d+), (\d+), (\d+), (\d+), \.\.\.", [*Options().sizes[:5]]),
    ("evaluation", r"fewer than (\d+) items differ", [metrics._MANY_PAIRS]),
    ("in-production", r"within (\d+) points to each side", [100 * reports._MARGIN]),
    ("in-production", r"more than (\w+) weeks later", [reports._TIMELY.days / 7]),
    ("in-production", r"at most (\d+) % of all streams", [100 * drift.DRIFT_LEVEL]),
    (
        "confidence",
        r"at a level of (\d+) % \((\d+) % if the confidence is the evidence's\)",
        [100 * threshold.LEVEL, 100 * threshold.LEFT_OUT_LEVEL],
    ),
    ("confidence", r"Of more than ([\d,]+) cases", [cases.MAX_CASES]),
    ("alignment", r"`max_concurrency` \((\d+) by default\)", [DEFAULT_MAX_CONCURRENCY]),
    ("alignment", r"asked of the newest (\d+) cases", [checks.MEASURED_CASES]),
    ("approvals", r"To show 0.95 takes (\d+) right calls", [needed(0.95, 0.95)]),
    ("approvals", r"kept for (\d+) days", [KEEP_CALLS.days]),
    ("checks", r"of the newest (\d+) cases that experts valued", [checks.MEASURED_CASES]),
    ("checks", r"on at least (\d+) cases: it contradicts", [memory_checks.MIN_CASES]),
    ("checks", r"its weight, times n / \(n \+ (\d+)\)", [value_from_checks._HALF_WEIGHT_CASES]),
    ("checks", r"on average, times n / \(n \+ (\d+)\)", [value_from_checks._ADDED_CASES]),
    ("checks", r"at a logarithm of (\d+) its weight is 1", [value_from_checks._MAX_ODDS]),
    (
        "checks",
        r"a weight of (\S+) or less .* at (\d+) accepted cases that all fail",
        [
            value_from_checks._MIN_WEIGHT,
            next(n for n in range(50) if not _is_used_after_failures(n)),
        ],
    ),
    (
        "checks",
        r"above the anchor by (\S+) of .* towards (\S+) of it",
        [value_from_checks._FIRST_SHARE, value_from_checks._LAST_SHARE],
    ),
    ("checks", r"has a weight of at least (\S+) on the case", [value_from_checks._DECISIVE_WEIGHT]),
    ("checks", r"least to (\S+) times its own", [value_from_checks._JUDGE_WEIGHT]),
    ("checks", r"of up to (\d+) cases in memory", [comment_questions._MAX_OTHER_CASES]),
    ("checks", r"of the (\d+) newest guidelines", [comment_questions._MAX_ACTIVE]),
    ("checks", r"of at least (\S+) counts as yes", [comment_questions._SAME_FAULT]),
    ("checks", r"by at least ([\d.]+) in log-odds", [comment_questions._MIN_SUPPORT]),
    (
        "checks",
        r"Up to (\d+) comments .* up to (\d+) at a time, the model writes at most (\d+)",
        [distill._MAX_SINGLE_COMMENTS, distill_small.MAX_COMMENTS, distill_small._MAX_QUESTIONS],
    ),
    ("evaluation", r"`Numeric` with at most (\d+) values", [metrics._MOST_LABELS]),
    ("models", r"in requests of up to (\d+)", [models._MAX_TEXTS_PER_REQUEST]),
    ("models", r"waits up to (\d+) ms", [1_000 * models._BATCH_WAIT_S]),
    ("memory", r"a pool of up to (\d+) connections", [POOL_SIZE]),
    ("memory", r"`MEMALIGN_CACHE_BYTES` \((\d+) GiB\)", [view._DEFAULT_BYTES / 2**30]),
    ("review-page", r"theirs for (\d+) minutes", [LEASE.seconds / 60]),
    ("review-page", r"The list shows (\d+) cases", [queue._MAX_LISTED]),
]
"""What a page says in a sentence: each group of the pattern is a fact of the code."""

WORDS = {"tenth": 0.1, "two": 2, "three": 3, "four": 4, "ten": 10}


@pytest.mark.parametrize(("page", "pattern", "facts"), SENTENCES)
def test_documented_sentences_match_the_code(page: str, pattern: str, facts: list[Any]) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    [matches] = re.findall(pattern, text)
    sentences = [matches] if isinstance(matches, str) else list(matches)
    numbers = [WORDS.get(number, number.replace(",", "")) for number in sentences]
    assert [float(number) for number in numbers] == pytest.approx(facts)


@pytest.mark.parametrize(
    ("page", "pattern", "names"),
    [
        ("command-line", r"- `learn` takes options of .*?: (.*)\.", _SETTINGS["learn"]),
        ("command-line", r"- `evaluate` takes options of .*?: (.*)\.", _SETTINGS["evaluate"]),
        (
            "gate",
            r"Each event has (.*?)\. The",
            {"type", "gate", "criterion", "max_revisions", *gate._EVENT_FIELDS},
        ),
    ],
)
def test_listed_names_match_the_code(page: str, pattern: str, names: set[str]) -> None:
    [listed] = re.findall(pattern, (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert {*code(listed)} - {"quality_gate"} == names


def test_names_of_fields_with_untrusted_text_are_those_of_the_page() -> None:
    text = (ROOT / "docs" / "approvals.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"one of these words, or its plural: ([a-z, ]+)\.", text)
    words = listed.split(", ")
    for word in words:
        assert repeats_tool_text({f"new_{word}s": "77"}, [ToolMessage("77", tool_call_id="1")])
    assert not repeats_tool_text({"new_words": "77"}, [ToolMessage("77", tool_call_id="1")])


@pytest.mark.parametrize("page", ["graphs", "hosting"])
def test_graphs_take_and_return_the_documented_keys(page: str) -> None:
    rows = {code(row[0])[0]: row[-2:] for row in table(f"docs/{page}.md", "graph")}
    names = {"create_alignment_graph": "align"}
    for row, (taken, returned) in rows.items():
        graph = GRAPHS[names.get(row, row.removeprefix("create_").removesuffix("_graph"))]()
        taking = graph.get_input_jsonschema()
        assert taken.startswith("as ") or {*code(taken)} == {*taking["properties"]}
        assert all(field["description"] for field in taking["properties"].values())
        assert {*code(returned)} - {"feedback"} <= {*graph.get_output_jsonschema()["properties"]}


def test_purposes_in_traces_are_listed() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"`memalign_purpose` \(([^)]*)\)", text)
    assert {*get_args(asking.Purpose), "confidence"} == {*code(listed)}


def test_documented_interval_widths_match_the_formula() -> None:
    for count, width, _ in table("docs/evaluation.md", "labeled cases"):
        documented = float(width.removeprefix("±"))
        assert documented == pytest.approx(1.96 * (0.8 * 0.2 / int(count)) ** 0.5, abs=0.005)


EPISODE = {"inputs": "My order never came.", "outputs": "Wait.", "value": True, "author": "ann"}
GUIDELINES = {f"Rule: {question}": question for question in (SORRY, BRIEF)}


def test_each_row_of_the_table_matches_the_counted_calls(server: LoopbackServer) -> None:
    model: Any = {"model": server.chat_model(), "embeddings": server.embedder()}
    store, checkpointer, case = InMemoryStore(), InMemorySaver(), iter(range(100))
    memory = JudgeMemory(store, CRITERION, embeddings=model["embeddings"])
    memory.remember(EPISODE)
    answers = Model({SORRY: 0.9, BRIEF: 0.9})
    server.responder = answers

    def count(call: Callable[[], Any]) -> tuple[int, int]:
        server.chats.clear()
        server.embeddings.clear()
        call()
        return len(server.chats), len(server.embeddings)

    def judging(**options: Any) -> tuple[int, int]:
        graph = create_judge_graph(CRITERION, **model, **options).compile(store=store)
        number = next(case)
        return count(lambda: graph.invoke({"inputs": f"Q{number}", "outputs": f"A{number}"}))

    def reviewing(reply: Any) -> tuple[int, int]:
        graph = create_review_graph(CRITERION, **model)
        compiled = graph.compile(store=store, checkpointer=checkpointer)
        number = next(case)
        thread: Any = {"configurable": {"thread_id": str(number)}}
        compiled.invoke({"inputs": f"Q{number}", "outputs": f"A{number}"}, thread)
        server.responder = server.judge
        return count(lambda: compiled.invoke(Command(resume=reply), thread))

    seen = {"a judgment": judging(), "a judgment with `confidence=True`": judging(confidence=True)}
    for text in GUIDELINES:
        memory.add_guideline(text)
    run_sync(record_questions(SYNC, memory.access, GUIDELINES))
    seen["a judgment with `checks=True` and n guidelines"] = judging(checks=True)
    answers.tells = False
    for _ in range(3):
        assert judging(checks=True) == (3, 1)
    seen["the same, if the model gives no log-probabilities"] = judging(checks=True)
    seen["an expert agrees"] = reviewing({"decisions": [{"type": "approve"}]})
    seen["an expert disagrees with a comment"] = reviewing({"value": False, "rationale": "Cold."})

    numbers = {"1 + n": 1 + len(GUIDELINES)}
    documented = {
        what: (numbers.get(chats) or int(chats), int(embedded))
        for what, chats, embedded in table("docs/how-it-works.md", "what happens")
    }
    assert seen == documented


def gated() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", lambda state: state)
    builder.add_node("person", lambda state: state)
    builder.add_edge(START, "writer")
    builder.add_edge("person", END)
    add_quality_gate(builder, CRITERION, after="writer", revise="writer", escalate="person")
    return builder


GRAPHS: dict[str, Callable[[], Any]] = {
    "judge": lambda: create_judge_graph(CRITERION).compile(),
    "review": lambda: create_review_graph(CRITERION).compile(),
    "feedback": lambda: create_feedback_graph(CRITERION).compile(),
    "align": lambda: create_alignment_graph(
        CRITERION, conflicts="ask", guard="replay", judge_cases=True
    ).compile(),
    "panel": lambda: create_panel_graph([CRITERION]).compile(),
    "gate": lambda: gated().compile(),
    "agent": lambda: create_agent(
        FakeListChatModel(responses=[]), middleware=[QualityGateMiddleware(CRITERION)]
    ),
}

PAGES = {
    "docs/agents.md": ["agent"],
    "docs/alignment.md": ["align"],
    "docs/gate.md": ["gate"],
    "docs/graphs.md": ["review", "judge"],
    "docs/panel.md": ["panel"],
    "docs/replies.md": ["feedback"],
}
"""The diagrams of each page, in order."""


@pytest.mark.parametrize("page", PAGES)
def test_diagram_matches_its_graph(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    diagrams = re.findall(r"^```mermaid\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    wanted = [GRAPHS[name]().get_graph().draw_mermaid() for name in PAGES[page]]
    assert diagrams == wanted, "copy the second list's text into the page"


COMMAND_LINE = ROOT / "docs" / "command-line.md"
COMMAND_LINE_TEXT = COMMAND_LINE.read_text("utf-8")
SHARED_FLAGS = {"--criterion", "--memory", "--namespace", "--model", "--embeddings", "--k"}
SHARED_FLAGS |= {"--json", "--quiet", "--help"}


def flags_of(name: str) -> set[str]:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined] # a group's
    return {flag for option in command.params for flag in option.opts if flag.startswith("--")}


@pytest.mark.parametrize("name", ["align", "judge", "evaluate", "review", "rate", "migrate"])
def test_each_flag_of_a_command_is_in_its_row(name: str) -> None:
    [row] = re.findall(rf"^\| `{name}` \|.*$", COMMAND_LINE_TEXT, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", row)) == flags_of(name) - SHARED_FLAGS


def test_each_flag_of_the_demo_is_in_its_table() -> None:
    text = COMMAND_LINE.with_name("models.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE)) == flags_of("demo") - {"--help"}


def test_each_exit_status_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", COMMAND_LINE_TEXT, re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == {*Status}
