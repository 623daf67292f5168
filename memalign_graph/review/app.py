"""The review page as a Starlette app under `/review`: its routes and their handlers."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError, MemAlignError, visible
from memalign_graph.io import ASYNC
from memalign_graph.memory.facts import EMPTY_VERSION
from memalign_graph.memory.feedback import revise
from memalign_graph.memory.guidelines import check_name
from memalign_graph.memory.history import diff, history, rollback
from memalign_graph.memory.learning import add_guideline, edit_guideline, remove_guideline
from memalign_graph.memory.purge import Selection, forget
from memalign_graph.review import views
from memalign_graph.review.answers import Answer
from memalign_graph.review.blocks import arguments_of, sections_of, tool_call
from memalign_graph.review.forms import criteria_of, fields_of, parse_form, shown_judgments
from memalign_graph.review.queue import NotOpenError, ReviewQueue
from memalign_graph.review.requests import (
    PageRequest,
    SignIn,
    read_form,
    redirect,
    secure,
    set_cookie,
    short_name,
    token_of,
)
from memalign_graph.review.tasks import feedback_of
from memalign_graph.scales import Pairwise
from memalign_graph.types import Example

_YEAR_S = 31_536_000
_MAX_SHOWN = 50


async def ask_name(page: PageRequest) -> Response:
    return await page.show("name", "Who are you?", back=_back(page), who=page.reviewer.name)


async def save_name(page: PageRequest) -> Response:
    name = check_name(short_name(page.form.get("who", "")), "name") or ""
    response = redirect(_back(page))
    set_cookie(response, page.request, "memalign_name", quote(name), _YEAR_S)
    return response


def _back(page: PageRequest, default: str = "/review") -> str:
    back = page.form.get("back") or page.request.query_params.get("back", "")
    return back if back.startswith("/review/") else default


async def list_tasks(page: PageRequest) -> Response:
    tasks, count = await page.queue.list_tasks(page.reviewer)
    more = max(count - _MAX_SHOWN, 0)
    title = "Cases that wait for you"
    return await page.show("queue", title, tasks=tasks[:_MAX_SHOWN], more=more)


async def next_task(page: PageRequest) -> Response:
    query = page.request.query_params
    task_id = await page.queue.claim_next(page.reviewer)
    path = f"/review/case/{quote(task_id)}" if task_id else "/review"
    answered = [f"{name}={quote(query[name], safe='')}" for name in ("done", "in") if name in query]
    return redirect(f"{path}?{'&'.join(answered)}" if answered else path)


async def show_case(page: PageRequest, error: str = "") -> Response:
    task = await page.open_task()
    case, criteria, example = task.case, criteria_of(task.case), task.case["example"]
    shows_verdict = page.request.query_params.get("show") == "verdict"
    pairwise = any(isinstance(criterion.scale, Pairwise) for criterion in criteria.values())
    return await page.show(
        "case",
        f"{task.criterion}: a case",
        task=task,
        fields=fields_of(case, page.form),
        sections=sections_of(example, pairwise=pairwise),
        criteria=list(criteria.values()),
        filled=page.form,
        judgments=shown_judgments(case) if shows_verdict else None,
        error=error or None,
        is_call=bool(tool_call(example["outputs"])),
        is_own_memory=case["namespace"] == page.queue.namespace,
    )


async def post_answer(page: PageRequest) -> Response:
    case = (await page.open_task()).case
    try:
        reply = parse_form(case, page.form, page.reviewer.name)
    except InvalidInputError as error:
        return await show_case(page, str(error))
    await page.queue.answer(Answer(page.reviewer, page.task_id, case, reply))
    criterion = quote(next(iter(feedback_of(case, reply))), safe="")
    # The page of answers shows those in the queue's own namespace.
    place = f"&in={criterion}" if case["namespace"] == page.queue.namespace else ""
    return redirect(f"/review/next?done={quote(page.task_id)}{place}")


async def skip_task(page: PageRequest) -> Response:
    await page.queue.leases.release(page.reviewer.name, page.task_id, skip=True)
    return redirect("/review/next")


async def heartbeat(page: PageRequest) -> Response:
    await page.queue.leases.renew(page.reviewer.name, page.task_id)
    return Response(status_code=204)


async def show_nearest(page: PageRequest) -> Response:
    """Show the nearest settled case; for a tool call, the nearest approved call of its tool."""
    case = (await page.open_task()).case
    example, name = case["example"], next(iter(case["criteria"]))
    access = page.queue.access(name, case["namespace"])
    vector = await views.embed_case([access], example)
    near = await views.nearest_case(access, Example.model_validate(example), vector)
    call = tool_call(example["outputs"])
    tool = call and visible(call["name"])
    if near is None:
        return page.fragment("nearest", near=None, tool=tool)
    near_json = near["example"].to_json()
    if call is not None:
        arguments = arguments_of(call, near_json["outputs"])
        return page.fragment("approved_call", near=near, tool=tool, arguments=arguments)
    return page.fragment("nearest", near={**near, "sections": sections_of(near_json)})


async def preview_answer(page: PageRequest) -> Response:
    """Show what an answer would change, without storing it."""
    case = (await page.open_task()).case
    try:
        reply = parse_form(case, page.form, page.reviewer.name)
    except InvalidInputError as error:
        return page.fragment("problem", text=str(error))
    others, changes, unknown = list[Any](), list[Any](), None
    feedback_by_name = feedback_of(case, reply)
    accesses = [page.queue.access(name, case["namespace"]) for name in feedback_by_name]
    vector = await views.embed_case(accesses, case["example"])
    for access, (name, feedback) in zip(accesses, feedback_by_name.items(), strict=True):
        others += views.conflicting_labels(access, feedback)
        decide = page.queue.judges[name].mode
        more, unknown = await views.predicted_changes(access, feedback, vector, decide)
        changes += more
    judgments = shown_judgments(case)
    context = {"judgments": judgments, "others": others, "changes": changes, "unknown": unknown}
    return page.fragment("effect", **context)


async def preview_guideline(page: PageRequest) -> Response:
    """Show the guidelines that would be learned from an answer."""
    case = (await page.open_task()).case
    rules = list[Any]()
    try:
        reply = parse_form(case, page.form, page.reviewer.name)
        for name, feedback in feedback_of(case, reply).items():
            access = page.queue.access(name, case["namespace"])
            model = page.queue.distill_model(name)
            rules += await views.proposed_guidelines(access, model, feedback)
    except MemAlignError as error:
        return page.fragment("problem", text=str(error))
    return page.fragment("rule", rules=rules)


async def show_guidelines(page: PageRequest) -> Response:
    access, reviewer = page.queue.access(page.criterion), page.reviewer
    overview = await views.guideline_overview(access, reviewer.name)
    title, may_roll_back = "What the judge has learned", reviewer.may_roll_back
    return await page.show("learned", title, may_roll_back=may_roll_back, **overview)


async def edit_guidelines(page: PageRequest) -> Response:
    access, form, author = page.queue.access(page.criterion), page.form, page.reviewer.name
    guideline_id, text = form.get("guideline_id", ""), form.get("text", "")
    texts = {guideline.id: guideline.text for guideline in await access.guidelines(ASYNC)}
    _check_unchanged("rule", texts.get(guideline_id), form.get("was"))
    match form.get("action"):
        case "add":
            await add_guideline(ASYNC, access, text, author=author)
        case "edit":
            await edit_guideline(ASYNC, access, guideline_id, text, author=author)
        case "remove":
            await remove_guideline(ASYNC, access, guideline_id, author=author)
        case "take-back":
            own_episode = Selection(episode_ids=[form.get("episode_id", "")], author=author)
            await forget(ASYNC, access, own_episode, author=author)
        case "rollback" if page.reviewer.may_roll_back:
            await rollback(ASYNC, access, form.get("version", ""), author=author)
        case _:
            raise InvalidInputError("This needs a permission that you do not have.")
    return redirect(_back(page, f"/review/learned/{quote(page.criterion)}"))


def _check_unchanged(what: str, text: str | None, seen: str | None) -> None:
    """Refuse to overwrite a text that the expert has not seen."""
    if seen is not None and text is not None and seen.split() != text.split():
        raise InvalidInputError(
            f"This {what} was changed since you opened the page. It now says: {text}"
        )


async def show_changes(page: PageRequest) -> Response:
    access = page.queue.access(page.criterion)
    versions = [commit.version for commit in await history(ASYNC, access)]
    version = page.request.path_params["version"]
    if version not in versions:
        raise InvalidInputError(f"There is no version {version!r}.")
    before = [*versions, EMPTY_VERSION][versions.index(version) + 1]
    changes = await diff(ASYNC, access, before, version)
    guidelines, episodes = changes.guidelines, changes.episodes
    return page.fragment(
        "changes",
        added=[guideline.text for guideline in guidelines.added],
        removed=[guideline.text for guideline in guidelines.removed],
        changed=[(change.before.text, change.after.text) for change in guidelines.changed],
        episodes={kind: len(getattr(episodes, kind)) for kind in ("added", "removed", "changed")},
    )


async def show_answers(page: PageRequest) -> Response:
    access, start = page.queue.access(page.criterion), page.request.query_params.get("from", "0")
    first = int(start[:9]) if start.isdecimal() else 0
    overview = await views.answers_by(access, page.reviewer.name, first)
    return await page.show("mine", "My answers", **overview)


async def revise_answer(page: PageRequest) -> Response:
    access, key = page.queue.access(page.criterion), page.form.get("episode_id", "")
    episode = (await access.episodes(ASYNC, [key])).get(key)
    if episode is None or episode.author != page.reviewer.name:
        raise InvalidInputError("This is not your answer.")
    value = None if episode.value is None else access.criterion.scale.show(episode.value)
    said = " ".join(filter(None, (value, episode.rationale)))
    _check_unchanged("answer", said, page.form.get("was"))
    fields = {name: page.form.get(name, "").strip() or None for name in ("value", "rationale")}
    if fields["value"] is None and value_or_none(episode.value, access.criterion.scale) is None:
        del fields["value"]  # of an earlier scale, so the form could not show it
    await revise(ASYNC, access, key, fields)
    return redirect(f"/review/mine/{quote(page.criterion)}")


async def show_agreement(page: PageRequest) -> Response:
    overview = await views.agreement_overview(page.queue.access(page.criterion))
    return await page.show("standing", "Where we stand", **overview)


_Handler = Callable[[PageRequest], Awaitable[Response]]
_CASE, _LEARNED = "/case/{question_id}", "/learned/{criterion:path}"
_PAGES: list[tuple[str, str, _Handler]] = [
    ("GET", "", list_tasks),
    ("GET", "/", list_tasks),
    ("GET", "/next", next_task),
    ("GET", "/name", ask_name),
    ("POST", "/name", save_name),
    ("GET", _CASE, show_case),
    ("GET", f"{_CASE}/nearest", show_nearest),
    ("GET", f"{_CASE}/{{form}}", show_case),  # a form that is loaded again
    ("POST", f"{_CASE}/effect", preview_answer),
    ("POST", f"{_CASE}/rule", preview_guideline),
    ("POST", f"{_CASE}/answer", post_answer),
    ("POST", f"{_CASE}/skip", skip_task),
    ("POST", f"{_CASE}/beat", heartbeat),
    ("GET", f"{_LEARNED}/changes/{{version}}", show_changes),
    ("GET", _LEARNED, show_guidelines),
    ("POST", _LEARNED, edit_guidelines),
    ("GET", "/mine/{criterion:path}", show_answers),
    ("POST", "/mine/{criterion:path}", revise_answer),
    ("GET", "/standing/{criterion:path}", show_agreement),
]


def create_review_app(
    queue: ReviewQueue,
    *,
    served: bool = False,
    name: str = "",
    user_header: str | None = None,
    proxy: str | None = None,
) -> Starlette:
    """Create the review page of a queue.

    Args:
        queue: The open tasks of the judges to serve.
        served: Whether an Agent Server serves the page; its users are then the experts.
        name: The expert's name until another is entered. Without `served` and `user_header`,
            experts enter their names and only this machine is answered.
        user_header: The header in which a reverse proxy names the signed-in user.
        proxy: The address or network that the proxy calls from; by default this machine. Requests
            from other addresses are refused.

    Returns:
        The app.

    Raises:
        InvalidInputError: If `proxy` is not an address or network, or `user_header` is missing.
    """
    sign_in = SignIn(served, user_header, proxy, name)

    def route(method: str, path: str, handler: _Handler) -> Route:
        async def respond(request: Request) -> Response:
            token, form = token_of(request), dict[str, str]()
            try:
                reviewer = sign_in.reviewer(request)
                form = await read_form(request, token) if method == "POST" else {}
                page = PageRequest(queue, request, reviewer, token, form)
                if path != "/name" and not reviewer.name:
                    back = quote(request.url.path) if method == "GET" else "/review"
                    response = redirect(f"/review/name?back={quote(back)}")
                else:
                    response = await handler(page)
            except HTTPException as error:
                response = PlainTextResponse(error.detail, error.status_code)
            except ClientDisconnect:
                response = Response(status_code=400)  # nobody reads it
            except (MemAlignError, httpx.HTTPError) as error:  # the latter from the Agent Server
                is_gone = isinstance(error, NotOpenError)
                texts = {"message": str(error), "written": _written(form), "is_gone": is_gone}
                context = page.page_context("That did not work")
                response = page.render("error", page=context, **texts)
                response.status_code = 404 if is_gone else 400
            secure(response, request, token)
            return response

        return Route(f"/review{path}", respond, methods=[method])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await queue.answers.drain()

    static = Mount("/review/static", StaticFiles(packages=[(__package__, "static")]))
    return Starlette(
        routes=[static, *(route(*entry) for entry in _PAGES)], lifespan=None if served else lifespan
    )


def _written(form: Mapping[str, str]) -> dict[str, str]:
    """Return what an expert wrote, by the field's name."""
    is_answer = re.compile(r"(.*\.)?(value|rationale|text)", re.DOTALL).fullmatch
    return {name: text for name, text in form.items() if is_answer(name) and text.strip()}
