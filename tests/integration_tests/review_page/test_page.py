"""The review page over HTTP: stored answers, notices and refusals."""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from memalign_graph import (
    Boolean,
    Categorical,
    Criterion,
    Example,
    Feedback,
    JudgeMemory,
    Numeric,
    Pairwise,
)
from memalign_graph.interrupts import case_payload
from memalign_graph.io import ASYNC
from memalign_graph.memory.guidelines import GuidelineOperation
from memalign_graph.memory.learning import commit_lesson
from memalign_graph.review import create_review_app, dashboard, leases
from memalign_graph.review import queue as queue_module
from memalign_graph.review.answers import Answer
from memalign_graph.review.forms import answer_fields, fields_of, parse_form
from memalign_graph.review.requests import _TEMPLATES, SignIn
from memalign_graph.review.tasks import Reviewer
from tests.conftest import CRITERION, operations
from tests.integration_tests.review_page.conftest import NAME, Expert, Office, Threads
from tests.loopback import Rule


async def test_answer_is_learned_and_the_expert_is_notified(office: Office) -> None:
    queue, ann = await office.begin("Wait.", "Send a photo.")
    assert "The loopback judge" not in ann.text  # hidden until the expert wants to see it
    case, page = ann.here, ann.page
    assert "The loopback judge finds nothing" in (await ann.get(f"{case}?show=verdict")).text
    await ann.post(f"{case}/effect", value="false", rationale="Too cold.")
    assert "Settled cases that would change" in ann.text
    assert await office.feedback() == {}  # a preview stores nothing
    ann.page = page
    await ann.answer(value="false", rationale="Too cold.")
    assert 'Your answer is stored. <a href="/review/mine/support_tone"' in ann.page.text
    await queue.answers.drain()
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}
    assert (await ann.get("/review")).notices == [
        "Learned: When judging, heed the expert: Too cold."
    ]
    assert (await ann.get("/review")).notices == []
    assert "1 case waits" in ann.text
    assert "Too cold." in (await ann.get(f"/review/learned/{NAME}")).text
    assert "0 of 1 (0%)" in (await ann.get(f"/review/standing/{NAME}")).text


async def test_memory_below_the_leases_changes_nothing(office: Office) -> None:
    namespace, embeddings = ["memalign_review", "leases"], office.judge.embeddings
    memory = JudgeMemory(office.store, CRITERION, namespace=namespace, embeddings=embeddings)
    await memory.aadd_guideline("Say sorry first.")
    _, ann = await office.begin("Wait.")
    assert ann.page.status_code == 200


async def test_leased_case_is_not_offered(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.judged(*(f"Answer {number}." for number in range(4)))
    queue = office.queue()
    ann, bob = office.expert("ann", queue), office.expert("bob", queue)
    read = queue.leases.all

    async def slowly() -> Any:
        leases = await read()
        await asyncio.sleep(0.01)
        return leases

    monkeypatch.setattr(queue.leases, "all", slowly)
    await asyncio.gather(*(expert.get("/review/next") for expert in (ann, bob)))
    first = ann.here
    assert bob.here != first
    assert "ann" in (await bob.get(first)).text
    await bob.post(f"{first}/skip")
    assert bob.here != first
    monkeypatch.setattr(leases, "LEASE", timedelta(0))
    listed, _ = await queue.list_tasks(Reviewer("bob"))
    assert [task.skipped for task in listed] == [False, False, False, True]


async def test_case_judged_twice_is_two_tasks(office: Office) -> None:
    await office.judged("Wait.", "Wait.")
    queue = office.queue()
    ann = office.expert("ann", queue)
    for _ in range(2):
        await (await ann.get("/review/next")).answer(value="true")
        await queue.answers.drain()
    assert (await office.queue().list_tasks(Reviewer("ann")))[0] == []
    # One expert's answers to one example are one.
    assert "1 of 1 (100%)" in (await ann.get(f"/review/standing/{NAME}")).text


async def test_shutdown_waits_for_learning(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    await office.judged("Wait.")
    queue, learned = office.queue(), list[str]()

    async def learn(answer: Answer) -> None:
        await asyncio.sleep(0.5)
        learned.append(answer.task_id)

    monkeypatch.setattr(queue.answers, "_learn", learn)
    app = create_review_app(queue)
    async with app.router.lifespan_context(app):
        ann = await office.expert("ann", queue).get("/review/next")
        await ann.answer(value="false")
        assert learned == []
    assert len(learned) == 1


async def test_list_says_how_many_cases_it_leaves_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "_MAX_LISTED", 1)
    _, ann = await office.begin("One.", "Two.", "Three.")
    assert "2 more come after these." in (await ann.get("/review")).text


async def test_expert_is_told_that_an_answer_changed_no_guideline(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    case = {"inputs": "Hi", "value": False, "rationale": "Say sorry."}
    said = await office.memory.aremember([{**case, "outputs": "a", "author": who} for who in "xyz"])
    read = {episode.id: episode.word for episode in said}
    taught = GuidelineOperation(action="add", text="Say sorry.", episode_ids=list(read))
    await commit_lesson(ASYNC, office.memory.access, [taught], read)
    queue, ann = await office.begin("Wait.")
    office.server.script(operations({"action": "retire", "guideline": "G1"}))
    await office.answer(queue, ann)
    [notice] = (await ann.get("/review")).notices
    assert "Say sorry." in notice
    assert "other experts support it" in notice
    assert 'class="notice warn"' in ann.page.text
    assert caplog.text.count("other experts support it") == 1


async def test_only_the_author_can_change_or_withdraw_an_answer(office: Office) -> None:
    await office.judged("Wait.")
    queue = office.queue()
    ann, bob = office.expert("ann", queue), office.expert("bob", queue)
    await ann.get("/review/next")
    await office.answer(queue, ann)
    [episode] = await office.memory.aepisodes()
    await ann.get(f"/review/mine/{NAME}")
    change = {"episode_id": episode.id, "value": "false", "rationale": "Too short."}
    for action in ("", "take-back"):
        await bob.get(f"/review/learned/{NAME}")
        await bob.post(f"/review/mine/{NAME}", **change, action=action)
        assert bob.page.status_code == 400
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.")}
    assert "Too short." in (await ann.post(f"/review/mine/{NAME}", **change)).text
    await ann.post(f"/review/mine/{NAME}", action="take-back", episode_id=episode.id, was="")
    assert await office.feedback() == {}
    assert ann.here == f"/review/mine/{NAME}"


async def test_new_comment_keeps_a_value_of_an_earlier_scale(office: Office) -> None:
    queue, ann = await office.begin("Wait.")
    await office.answer(queue, ann)
    changed = office.judge.criterion.model_copy(update={"scale": marks(1, 5)})
    office.judge = office.judge.model_copy(update={"criterion": changed})
    [episode] = await office.memory.aepisodes()
    ann = await office.expert("ann", office.queue()).get(f"/review/mine/{NAME}")
    form = {"episode_id": episode.id, "was": was(ann)}
    await ann.post(f"/review/mine/{NAME}", **form, rationale="Too short.")
    assert await office.feedback() == {("ann", "Wait."): (False, "Too short.")}


@pytest.mark.parametrize("newer", [{"value": True}, {"rationale": "Too cold.\nAnd late."}])
async def test_answer_that_changed_since_is_not_overwritten(
    office: Office, newer: dict[str, Any]
) -> None:
    queue, ann = await office.begin("Wait.")
    await office.answer(queue, ann)
    [episode] = await office.memory.aepisodes()
    change = {"episode_id": episode.id, "value": "false", "rationale": "Too short."}
    await ann.get(f"/review/mine/{NAME}")
    before = was(ann)
    await office.memory.arevise(episode.id, newer)
    kept = await office.feedback()
    await ann.post(f"/review/mine/{NAME}", **change, was=before)
    assert "This answer was changed since" in ann.text
    assert await office.feedback() == kept
    await ann.get(f"/review/mine/{NAME}")
    await ann.post(f"/review/mine/{NAME}", **change, was=was(ann).replace("\n", "\r\n"))
    assert await office.feedback() == {("ann", "Wait."): (False, "Too short.")}


async def test_line_breaks_of_a_browser_do_not_change_an_answer(office: Office) -> None:
    queue, ann = await office.begin("Wait.")
    form = {"value": "false", "rationale": "Too cold.\r\nAnd late."}
    await office.answer(queue, ann, **form)
    assert await office.feedback() == {("ann", "Wait."): (False, "Too cold.\nAnd late.")}
    [episode] = await office.memory.aepisodes()
    version = await office.memory.aversion()
    await ann.get(f"/review/mine/{NAME}")
    await ann.post(f"/review/mine/{NAME}", episode_id=episode.id, was=was(ann), **form)
    assert (ann.page.status_code, await office.memory.aversion()) == (200, version)


def was(expert: Expert) -> str:
    """Return the answer that a page shows, as its form sends it back."""
    [text] = re.findall(r'name="was" value="([^"]*)"', expert.page.text)
    return str(text)


async def test_older_answers_can_be_changed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_MAX_ANSWERS", 1)
    for outputs in ("Older.", "Newer."):
        example = Example(inputs="Where is my order?", outputs=outputs)
        await office.memory.aremember(Feedback(example=example, value=True, author="ann"))
    ann = await office.expert("ann", office.queue()).get(f"/review/mine/{NAME}")
    assert ("Newer." in ann.text, "Older." in ann.text) == (True, False)
    assert 'href="?from=1"' in ann.page.text
    await ann.get(f"{ann.here}?from=1")
    assert ("Newer." in ann.text, "Older." in ann.text) == (False, True)
    assert "from=" not in ann.page.text


async def test_guidelines_are_added_edited_and_rolled_back(office: Office) -> None:
    rules = f"/review/learned/{NAME}"
    ann = await office.expert("ann", office.queue()).get(rules)
    await ann.post(rules, action="add", text="Says sorry first.")
    # A login that ends in between leads back to the page.
    assert {*re.findall(r'<form method="post" action="([^"]+)', ann.page.text)} == {rules}
    assert "formaction" not in ann.page.text
    version = await office.memory.aversion()
    [guideline] = await office.memory.aguidelines()
    assert guideline.author == "ann"
    await ann.post(rules, action="edit", guideline_id=guideline.id, text="Says sorry.")
    assert (await ann.get(f"{rules}/changes/{version}")).text == "Says sorry first."
    await ann.get(rules)
    await ann.post(rules, action="rollback", version=version)
    [guideline] = await office.memory.aguidelines()
    assert guideline.text == "Says sorry first."
    await ann.post(rules, action="remove", guideline_id=guideline.id)
    assert await office.memory.aguidelines() == []


FORGED: dict[str, Callable[[Expert], Any]] = {
    "another site": lambda ann: ann.http.headers.update({"origin": "http://evil.example"}),
    "a file": lambda ann: ann.http.headers.update({"origin": "null"}),
    "no token": lambda ann: ann.http.cookies.delete("memalign_token"),
    "another host": lambda ann: ann.http.headers.update({"host": "evil.example"}),
}


@pytest.mark.parametrize("how", FORGED)
async def test_cross_site_requests_are_refused(office: Office, how: str) -> None:
    _, ann = await office.begin("Wait.")
    FORGED[how](ann)
    await ann.answer(value="false", rationale="Too cold.")
    assert ann.page.status_code == 403
    assert await office.feedback() == {}


async def test_invalid_answers_show_an_error_in_the_form(office: Office) -> None:
    _, ann = await office.begin("Wait.")
    case = ann.here
    await ann.post(f"{case}/answer", rationale="  ")
    assert "Choose a value, write why, or both." in ann.text
    await ann.post(f"{case}/answer", value="7", rationale="Too cold.")
    assert "is not on the scale" in ann.text
    assert "Too cold." in ann.text
    await ann.get(case)
    assert (await ann.post(f"{case}/answer", rationale="x" * 300_000)).page.status_code == 403
    assert (await ann.get("/review/case/t-no-such")).page.status_code == 404
    assert "no criterion 'other'" in (await ann.get("/review/learned/other")).text


async def test_judged_text_is_escaped(office: Office) -> None:
    hostile = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    _, ann = await office.begin(hostile)
    assert "<script>alert" not in ann.page.text
    assert "<img" not in ann.page.text
    assert ann.page.headers["content-security-policy"].startswith("default-src 'self'")
    assert "&lt;script&gt;alert(1)" in (await ann.get("/review")).page.text


async def test_characters_that_reorder_a_models_words_are_spelled_out(office: Office) -> None:
    office.server.rules = [Rule(lambda _: True, value=True, rationale="It says \u202eon.")]
    queue, ann = await office.begin("Wait.")
    assert r"It says \u202eon." in (await ann.get(f"{ann.here}?show=verdict")).text
    lesson = operations({"action": "add", "text": "It says \u202eyes."})
    office.server.rules = [Rule(lambda _: True, reply=lesson)]
    await office.answer(queue, ann)
    for path in ("/review", f"/review/learned/{NAME}", f"/review/mine/{NAME}"):
        assert r"It says \u202eyes." in (await ann.get(path)).text


async def test_characters_that_reorder_a_question_back_are_spelled_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, queue = Threads(office, clarify=True), office.queue()
    ann = Reviewer("ann", True, client=server)
    monkeypatch.setattr(SignIn, "reviewer", lambda *_: ann)
    asks = {"question": "What says \u202eno?"}
    office.server.rules = [Rule(lambda chat: chat.schema_name == "feedback_question", reply=asks)]
    question = await server.start("Wait.")
    await office.reply(queue, ann, question, value=False, rationale="Too cold.")
    expert = await office.expert("", queue).get("/review/next")
    assert r"What says \u202eno?" in expert.text


async def test_preview_shows_conflicting_labels_and_the_proposed_guideline(office: Office) -> None:
    await office.judged("Wait.")
    example: Any = {"inputs": "Where is my order?", "outputs": "Wait."}
    await office.memory.aremember(Feedback(**example, value=True, rationale="Fine.", author="bob"))
    _, ann = await office.begin()
    case, page, form = ann.here, ann.page, {"value": "false", "rationale": "Too cold."}
    await ann.post(f"{case}/effect", **form)
    assert "bob : Yes Fine." in ann.text
    ann.page = page
    await ann.post(f"{case}/rule", **form)
    lesson = "When judging, heed the expert: Too cold."
    assert f"a new rule {lesson}" in ann.text
    assert [episode.author for episode in await office.memory.aepisodes()] == ["bob"]


def marks(minimum: int, maximum: int) -> Numeric:
    return Numeric(minimum=minimum, maximum=maximum, integer=True)


@pytest.mark.parametrize(
    ("scale", "keys"),
    [
        (marks(1, 5), "1 2 3 4 5"),
        (marks(0, 10), "0 1 2 3 4 5 6 7 8 9 -"),
        (marks(-1, 1), "- 0 1"),
        (marks(12, 13), "- -"),
        (Boolean(), "1 2"),
        (Categorical(choices=("a", "b", "c")), "1 2 3"),
    ],
)
def test_keyboard_shortcut_of_a_mark_is_its_digit(scale: Any, keys: str) -> None:
    case = case_payload("review", [Criterion(name="c", instructions="Is it?", scale=scale)])
    assert [option.key or "-" for option in fields_of(case, {})[0].options] == keys.split()


def test_limits_of_a_number_are_written_in_full() -> None:
    scale = Numeric(minimum=0.1, maximum=1_234_567)
    [field, _] = answer_fields(Criterion(name="c", instructions="Is it?", scale=scale), {})
    parts: Any = _TEMPLATES.get_template("parts.html.jinja").module
    assert "0.1 to 1234567<" in str(parts.entry(field))


def test_form_replies_are_valid_for_the_graphs() -> None:
    scales: dict[str, Any] = {
        "choice": Categorical(choices=("poor", "good")),
        "marks": Numeric(minimum=1, maximum=5, integer=True),
        "share": Numeric(minimum=0, maximum=1),
        "pair": Pairwise(),
    }
    asked = {"instructions": "Is it?"}
    criteria = [Criterion(name=name, scale=scale, **asked) for name, scale in scales.items()]
    case = case_payload("panel", criteria)
    fields = [field for field in fields_of(case, {}) if field.kind != "comment"]
    kinds = {field.name: (field.kind, len(field.options)) for field in fields}
    assert kinds == {
        "choice.value": ("choice", 2),
        "marks.value": ("choice", 5),
        "share.value": ("number", 0),
        "pair.value": ("choice", 3),
    }
    filled = {"marks.value": "4", "share.value": "0.5", "pair.rationale": "A is kinder."}
    assert parse_form(case, filled, "ann") == {
        "marks": {"value": 4},
        "share": {"value": 0.5},
        "pair": {"rationale": "A is kinder."},
        "author": "ann",
    }
    case = case_payload("question", criteria[:1], asked=["What is cold?"], said={"author": "bob"})
    answer = {"rationale": "No greeting.", "author": "ann"}
    assert parse_form(case, {"rationale": "No greeting."}, "ann") == answer
