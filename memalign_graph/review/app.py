"""The review page as a Starlette app under `/review`: its routes, and the pages with open cases."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memalign_graph.errors import InvalidInputError, MemAlignError
from memalign_graph.memory.guidelines import check_name
from memalign_graph.review import dashboard, preview
from memalign_graph.review.answers import Answer
from memalign_graph.review.blocks import sections_of, tool_call
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

_YEAR_S = 31_536_000
_MAX_SHOWN = 50


async def ask_name(page: PageRequest) -> Response:
    return await page.show("name", "Who are you?", back=_back(page), who=page.reviewer.name)


async def save_name(page: PageRequest) -> Response:
    name = check_name(short_name(page.form.get("who", "")), "name") or ""
    response = redirect(_back(page))
    set_cookie(response, page.request, "memalign_name", quote(name), _YEAR_S)
    return response


def _back(page: PageRequest) -> str:
    back = page.form.get("back") or page.request.query_params.get("back", "")
    return back if back.startswith("/review/") else "/review"


async def list_tasks(page: PageRequest) -> Response:
    tasks, _ = await page.queue.list_tasks(page.reviewer)
    more = max(len(tasks) - _MAX_SHOWN, 0)
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


_Handler = Callable[[PageRequest], Awaitable[Response]]
_CASE, _LEARNED = "/case/{question_id}", "/learned/{criterion:path}"
_PAGES: list[tuple[str, str, _Handler]] = [
    ("GET", "", list_tasks),
    ("GET", "/next", next_task),
    ("GET", "/name", ask_name),
    ("POST", "/name", save_name),
    ("GET", _CASE, show_case),
    ("GET", f"{_CASE}/nearest", preview.show_nearest),
    ("POST", f"{_CASE}/effect", preview.preview_answer),
    ("POST", f"{_CASE}/rule", preview.preview_guideline),
    ("POST", f"{_CASE}/answer", post_answer),
    ("POST", f"{_CASE}/skip", skip_task),
    ("POST", f"{_CASE}/beat", heartbeat),
    ("GET", f"{_LEARNED}/changes/{{version}}", dashboard.show_changes),
    ("GET", _LEARNED, dashboard.show_guidelines),
    ("POST", f"{_LEARNED}/{{action}}", dashboard.edit_guidelines),
    ("GET", "/mine/{criterion:path}", dashboard.show_answers),
    ("POST", "/mine/{criterion:path}", dashboard.revise_answer),
    ("GET", "/standing/{criterion:path}", dashboard.show_agreement),
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
                    back = request.url.path if method == "GET" else "/review"
                    response = redirect(f"/review/name?back={quote(back)}")
                else:
                    response = await handler(page)
            except HTTPException as error:
                response = PlainTextResponse(error.detail, error.status_code)
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
