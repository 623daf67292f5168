"""The review page as a Starlette app under `/review`: its routes and their handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memalign_graph.agreement import value_or_none
from memalign_graph.errors import InvalidInputError, MemAlignError, visible
from memalign_graph.io import ASYNC
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.facts import EMPTY_VERSION
from memalign_graph.memory.feedback import revise
from memalign_graph.memory.guidelines import check_name
from memalign_graph.memory.history import diff, history, rollback
from memalign_graph.memory.learning import add_guideline, edit_guideline, remove_guideline
from memalign_graph.memory.purge import Selection, forget
from memalign_graph.review import dashboard, forms, preview, requests
from memalign_graph.review.answers import Answer
from memalign_graph.review.blocks import sections_of, tool_call
from memalign_graph.review.queue import ReviewQueue
from memalign_graph.review.requests import Handler, PageRequest, SignIn, redirect, respond
from memalign_graph.scales import Pairwise
from memalign_graph.types import Episode

_YEAR_S = 31_536_000


async def ask_name(page: PageRequest) -> Response:
    return await page.show("name", "Who are you?", back=_back(page), who=page.reviewer.name)


async def save_name(page: PageRequest) -> Response:
    name = check_name(requests.short_name(page.form.get("who", "")), "name") or ""
    response = redirect(_back(page))
    requests.set_cookie(response, page.request, "memalign_name", quote(name), _YEAR_S)
    return response


def _back(page: PageRequest) -> str:
    back = page.form.get("back") or page.request.query_params.get("back", "")
    return back if back.startswith("/review/") else "/review"


async def list_tasks(page: PageRequest) -> Response:
    tasks, count = await page.queue.list_tasks(page.reviewer)
    return await page.show("queue", "Cases that wait for you", tasks=tasks, more=count - len(tasks))


async def next_task(page: PageRequest, **answered: str) -> Response:
    task_id = await page.queue.claim_next(page.reviewer)
    path = f"/review/case/{quote(task_id)}" if task_id else "/review"
    return redirect(f"{path}?{urlencode(answered)}" if answered else path)


async def show_case(page: PageRequest, error: str = "") -> Response:
    task = await page.open_task()
    case, criteria, example = task.case, forms.criteria_of(task.case), task.case["example"]
    shows_verdict = page.request.query_params.get("show") == "verdict"
    pairwise = any(isinstance(criterion.scale, Pairwise) for criterion in criteria.values())
    return await page.show(
        "case",
        f"{task.criterion}: a case",
        task=task,
        fields=forms.fields_of(case, page.form),
        sections=sections_of(example, pairwise=pairwise),
        criteria=list(criteria.values()),
        filled=page.form,
        judgments=forms.shown_judgments(case) if shows_verdict else None,
        error=error or None,
        is_call=bool(tool_call(example["outputs"])),
    )


async def post_answer(page: PageRequest) -> Response:
    case = (await page.open_task()).case
    try:
        reply = forms.parse_form(case, page.form, page.reviewer.name)
    except InvalidInputError as error:
        return await show_case(page, str(error))
    await page.queue.answer(Answer(page.reviewer, page.task_id, case, reply))
    answered = {"done": page.task_id}
    if case["namespace"] == page.queue.namespace:  # whose answers can be changed on the page
        answered["in"] = next(iter(forms.feedback_of(case, reply)))
    return await next_task(page, **answered)


async def skip_task(page: PageRequest) -> Response:
    await page.queue.leases.release(page.reviewer.name, page.task_id, skip=True)
    return await next_task(page)


async def heartbeat(page: PageRequest) -> Response:
    await page.queue.leases.renew(page.reviewer.name, page.task_id)
    return Response(status_code=204)


async def show_nearest(page: PageRequest) -> Response:
    """Show the nearest settled case; for a tool call, the nearest approved call of its tool."""
    case = (await page.open_task()).case
    near = await preview.nearest(page.queue, case)
    call = tool_call(case["example"]["outputs"])
    return page.fragment("nearest", near=near, tool=call and visible(call["name"]))


async def preview_answer(page: PageRequest) -> Response:
    """Show what an answer would change, or the rules that it would teach; store nothing."""
    case = (await page.open_task()).case
    try:
        feedback = forms.feedback_of(case, forms.parse_form(case, page.form, page.reviewer.name))
        if page.request.url.path.endswith("/rule"):
            return page.fragment("rule", rules=await preview.rules(page.queue, case, feedback))
        effect = await preview.effect(page.queue, case, feedback)
        return page.fragment("effect", **effect)
    except MemAlignError as error:
        return page.fragment("problem", text=str(error))


async def show_guidelines(page: PageRequest) -> Response:
    overview = await dashboard.guideline_overview(page.queue.access(page.criterion))
    title, may_roll_back = "What the judge has learned", page.reviewer.may_roll_back
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
        case "rollback" if page.reviewer.may_roll_back:
            await rollback(ASYNC, access, form.get("version", ""), author=author)
        case _:
            raise InvalidInputError("This needs a permission that you do not have.")
    return redirect(f"/review/learned/{quote(page.criterion)}")


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
    return page.fragment("changes", changes=await diff(ASYNC, access, before, version))


async def show_answers(page: PageRequest) -> Response:
    access, start = page.queue.access(page.criterion), page.request.query_params.get("from", "0")
    first = int(start[:9]) if start.isdecimal() else 0
    overview = await dashboard.answers_by(access, page.reviewer.name, first)
    return await page.show("mine", "My answers", **overview)


async def change_answer(page: PageRequest) -> Response:
    access, key = page.queue.access(page.criterion), page.form.get("episode_id", "")
    author = page.reviewer.name
    episode = (await access.episodes(ASYNC, [key])).get(key)
    if episode is None or episode.author != author:
        raise InvalidInputError("This is not your answer.")
    if page.form.get("action") == "take-back":
        await forget(ASYNC, access, Selection(episode_ids=[key], author=author), author=author)
    else:
        await _revise(page, access, episode)
    return redirect(f"/review/mine/{quote(page.criterion)}")


async def _revise(page: PageRequest, access: MemoryAccess, episode: Episode) -> None:
    scale = access.criterion.scale
    value = None if episode.value is None else scale.show(episode.value)
    answer = " ".join(filter(None, (value, episode.rationale)))
    _check_unchanged("answer", answer, page.form.get("was"))
    fields = {name: page.form.get(name, "").strip() or None for name in ("value", "rationale")}
    if fields["value"] is None and value_or_none(episode.value, scale) is None:
        del fields["value"]  # of an earlier scale, so the form could not show it
    await revise(ASYNC, access, episode.id, fields)


async def show_agreement(page: PageRequest) -> Response:
    overview = await dashboard.agreement_overview(page.queue.access(page.criterion))
    return await page.show("standing", "Where we stand", **overview)


_CASE, _LEARNED = "/case/{task_id}", "/learned/{criterion:path}"
_PAGES: list[tuple[str, str, Handler]] = [
    ("GET", "", list_tasks),
    ("GET", "/", list_tasks),
    ("GET", "/next", next_task),
    ("GET", "/name", ask_name),
    ("POST", "/name", save_name),
    ("GET", _CASE, show_case),
    ("GET", f"{_CASE}/nearest", show_nearest),
    ("GET", f"{_CASE}/{{form}}", show_case),  # a form that is loaded again
    ("POST", f"{_CASE}/answer", post_answer),
    ("POST", f"{_CASE}/skip", skip_task),
    ("POST", f"{_CASE}/beat", heartbeat),
    ("POST", f"{_CASE}/effect", preview_answer),
    ("POST", f"{_CASE}/rule", preview_answer),
    ("GET", f"{_LEARNED}/changes/{{version}}", show_changes),
    ("GET", _LEARNED, show_guidelines),
    ("POST", _LEARNED, edit_guidelines),
    ("GET", "/mine/{criterion:path}", show_answers),
    ("POST", "/mine/{criterion:path}", change_answer),
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
    routes = [
        Route(f"/review{path}", partial(respond, queue, sign_in, handler), methods=[method])
        for method, path, handler in _PAGES
    ]
    static = Mount("/review/static", StaticFiles(packages=[(__package__, "static")]))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await queue.answers.drain()

    return Starlette(routes=[static, *routes], lifespan=None if served else lifespan)
