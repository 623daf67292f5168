"""The review page as a Starlette app under `/review`."""

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

from memalign_graph.errors import MemAlignError
from memalign_graph.review import pages
from memalign_graph.review.queue import ReviewQueue
from memalign_graph.review.requests import (
    NotOpenError,
    PageRequest,
    SignIn,
    read_form,
    redirect,
    secure,
    token_of,
)

_Handler = Callable[[PageRequest], Awaitable[Response]]
_CASE, _LEARNED = "/case/{question_id}", "/learned/{criterion:path}"
_PAGES: list[tuple[str, str, _Handler]] = [
    ("GET", "", pages.list_tasks),
    ("GET", "/next", pages.next_task),
    ("GET", "/name", pages.ask_name),
    ("POST", "/name", pages.save_name),
    ("GET", _CASE, pages.show_case),
    ("GET", f"{_CASE}/nearest", pages.show_nearest),
    ("POST", f"{_CASE}/effect", pages.preview_answer),
    ("POST", f"{_CASE}/rule", pages.preview_guideline),
    ("POST", f"{_CASE}/answer", pages.post_answer),
    ("POST", f"{_CASE}/skip", pages.skip_task),
    ("POST", f"{_CASE}/beat", pages.heartbeat),
    ("POST", f"{_CASE}/leave", pages.leave_task),
    ("GET", f"{_LEARNED}/changes/{{version}}", pages.show_changes),
    ("GET", _LEARNED, pages.show_guidelines),
    ("POST", f"{_LEARNED}/{{action}}", pages.edit_guidelines),
    ("GET", "/mine/{criterion:path}", pages.show_answers),
    ("POST", "/mine/{criterion:path}", pages.revise_answer),
    ("GET", "/standing/{criterion:path}", pages.show_agreement),
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
        routes=[static, *(route(*entry) for entry in _PAGES)],
        lifespan=None if served else lifespan,
    )


def _written(form: Mapping[str, str]) -> dict[str, str]:
    """Return what an expert wrote, by the field's name."""
    is_answer = re.compile(r"(.*\.)?(value|rationale|text)", re.DOTALL).fullmatch
    return {name: text for name, text in form.items() if is_answer(name) and text.strip()}
