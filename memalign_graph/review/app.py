"""The review page: what experts see of their judges, as a Starlette app under `/review`."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import httpx
import jinja2
from langgraph_sdk.client import LangGraphClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memalign_graph.errors import EmbeddingError, InvalidInputError, MemAlignError
from memalign_graph.io import ASYNC
from memalign_graph.memory import history
from memalign_graph.memory.access import MemoryAccess
from memalign_graph.memory.feedback import Selection, forget, revise
from memalign_graph.memory.guidelines import (
    add_guideline,
    check_name,
    edit_guideline,
    remove_guideline,
)
from memalign_graph.memory.recall import embed_once
from memalign_graph.review import effect, standing
from memalign_graph.review.blocks import sections_of
from memalign_graph.review.desk import Case, Desk, Question, Visitor, feedback_of
from memalign_graph.review.forms import (
    criteria_of,
    fields_of,
    read_answer,
    shown_judgments,
    shown_reply,
    value_field,
)
from memalign_graph.scales import Boolean, Pairwise
from memalign_graph.types import Criterion, Example

_MAX_BODY = 262_144
_YEAR_S = 31_536_000
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TEMPLATES = jinja2.Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_TEMPLATES.loader = jinja2.DictLoader(
    {it.name: it.read_text("utf-8") for it in files(__package__).joinpath("templates").iterdir()}
)
_GONE = "This case is answered, no longer kept, or was never asked."


class _RefusedError(Exception):
    """What was sent is not taken; says why."""


@dataclass
class _Visit:
    """One request of an expert."""

    desk: Desk
    request: Request
    who: Visitor
    token: str
    form: Mapping[str, str]

    @property
    def question_id(self) -> str:
        return str(self.request.path_params["question_id"])

    @property
    def criterion(self) -> str:
        return str(self.request.path_params["criterion"])

    async def show(self, name: str, active: str, title: str, **context: Any) -> Response:
        """Show a page, with what became of earlier answers."""
        _, count = await self.desk.questions(self.who)
        told = self.desk.outcomes(self.who) if self.who.name else []
        page = {**self.frame(title, active), "open": count, "notices": told}
        return self.fragment(name, page=page, **context)

    def frame(self, title: str, active: str = "") -> dict[str, Any]:
        """Return what every page shows, as far as nothing is read for it."""
        criterion = self.request.path_params.get("criterion")
        return {
            "title": title,
            "active": active,
            "criteria": list(self.desk.judges),
            "criterion": criterion if criterion in self.desk.judges else None,
            "who": self.who.name or None,
            "verified": self.who.verified,
            "token": self.token,
            "notices": [],
            "open": "…",
        }

    def fragment(self, name: str, **context: Any) -> Response:
        return HTMLResponse(_TEMPLATES.get_template(f"{name}.html.jinja").render(**context))

    async def open(self) -> Question:
        """Take this request's question; what belongs to an open page may come late."""
        late = self.request.method == "POST" or self.request.url.path.endswith("/nearest")
        question = await self.desk.open(self.who, self.question_id, late=late)
        if question is None:
            raise InvalidInputError(_GONE)
        return question


_Handler = Callable[[_Visit], Awaitable[Response]]


def create_review_app(desk: Desk, *, served: bool = False, name: str = "") -> Starlette:
    """Create the page for a desk.

    Args:
        desk: What waits, and for which judges.
        served: Whether an Agent Server serves it: then its users are who they are there. Else
            visitors say their names, and only this machine is answered.
        name: Who answers, where nobody has said so.

    Returns:
        The app.
    """

    def route(path: str, handler: _Handler, method: str = "GET") -> Route:
        async def answer(request: Request) -> Response:
            token = request.cookies.get("memalign_token", "")
            if not re.fullmatch(r"[A-Za-z0-9_-]{22}", token):
                token = secrets.token_urlsafe(16)
            try:
                who = _visitor(request, served=served, name=name)
                form = await _form(request, token) if request.method == "POST" else {}
                visit = _Visit(desk, request, who, token, form)
                if path != "/name" and not who.name:
                    back = request.url.path if request.method == "GET" else "/review"
                    response: Response = _to(f"/review/name?back={quote(back)}")
                else:
                    response = await handler(visit)
            except _RefusedError as error:
                response = Response(str(error), 403, media_type="text/plain")
            except (MemAlignError, httpx.HTTPError) as error:  # the latter from the Agent Server
                page, is_gone = visit.frame("That did not work"), str(error) == _GONE
                response = visit.fragment(
                    "error", page=page, told=str(error), written=_written(form), is_gone=is_gone
                )
                response.status_code = 404 if is_gone else 400
            response.headers.update(_HEADERS)
            # Not "strict": a link to a case in a mail would have the token of open pages replaced.
            cookie: Any = {"path": "/review", "httponly": True, "samesite": "lax"}
            response.set_cookie("memalign_token", token, **cookie)
            return response

        return Route(f"/review{path}", answer, methods=[method])

    one, learned = "/case/{question_id}", "/learned/{criterion:path}"
    routes = [
        Mount("/review/static", StaticFiles(packages=[(__package__, "static")])),
        route("", queue),
        route("/next", next_case),
        route("/name", ask_name),
        route("/name", take_name, "POST"),
        route(one, show_case),
        route(one, show_case, "POST"),
        route(f"{one}/nearest", nearest),
        route(f"{one}/effect", show_effect, "POST"),
        route(f"{one}/rule", word_rule, "POST"),
        route(f"{one}/answer", take_answer, "POST"),
        route(f"{one}/skip", skip, "POST"),
        route(f"{one}/beat", beat, "POST"),
        route(f"{one}/leave", leave, "POST"),
        route(learned + "/changes/{version}", changes),
        route(learned, show_learned),
        route(learned + "/{action}", change_rules, "POST"),
        route("/mine/{criterion:path}", mine),
        route("/mine/{criterion:path}", change_mine, "POST"),
        route("/standing/{criterion:path}", show_standing),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await desk.settled()

    return Starlette(routes=routes, lifespan=None if served else lifespan)


def _visitor(request: Request, *, served: bool, name: str) -> Visitor:
    said = _name(unquote(request.cookies.get("memalign_name", ""))) or name
    if not served:
        if re.sub(r":\d+$", "", request.headers.get("host", "")) not in _LOCAL:
            raise _RefusedError("This page answers its own machine alone: open it as 127.0.0.1.")
        return Visitor(said, may_roll_back=True)
    user = request.scope.get("user")
    if user is None:
        raise _RefusedError("Set `enable_custom_route_auth` under `http` in langgraph.json.")
    known = user.is_authenticated and getattr(user, "kind", "") != "StudioUser"
    rights = request.auth.scopes if known else []
    return Visitor(
        user.identity if known else said,
        known,
        "memalign:roll-back" in rights,
        _client(request),
        user.identity,
    )


_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def _name(text: str) -> str:
    return " ".join(text.replace("\0", "").split())[:100]


def _client(request: Request) -> Any:
    """Return a client that is allowed what the request is: the server's own would see all."""
    of_body = ("content-", "accept", "transfer-", "connection", "host", "origin")
    sent = request.headers.items()
    headers = {name: value for name, value in sent if not name.startswith(of_body)}
    transport = httpx.ASGITransport(app=request.app)
    return LangGraphClient(
        httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, timeout=600)
    )


async def _form(request: Request, token: str) -> dict[str, str]:
    origin = request.headers.get("origin")
    if origin and origin.partition("://")[2] != request.headers.get("host"):
        raise _RefusedError("This was sent from another site.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise _RefusedError("That is too long: shorten what you wrote.")
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    if not secrets.compare_digest(form.pop("token", "").encode(), token.encode()):
        raise _RefusedError("Your page is too old: open the case again. Your words are kept in it.")
    return form


def _written(form: Mapping[str, str]) -> dict[str, str]:
    """Return what an expert filled in, by the field's name."""
    fields = ("value", "rationale", "text")
    return {
        name: text
        for name, text in form.items()
        if name.rpartition(".")[2] in fields and text.strip()
    }


def _to(path: str) -> Response:
    return RedirectResponse(path, 303)


async def ask_name(visit: _Visit) -> Response:
    return await visit.show("name", "", "Who are you?", back=_back(visit), who=visit.who.name)


async def take_name(visit: _Visit) -> Response:
    name = check_name(_name(visit.form.get("who", "")), "name") or ""
    response = _to(_back(visit))
    cookie: Any = {"path": "/review", "httponly": True, "samesite": "lax", "max_age": _YEAR_S}
    response.set_cookie("memalign_name", quote(name), **cookie)
    return response


def _back(visit: _Visit) -> str:
    back = visit.form.get("back") or visit.request.query_params.get("back", "")
    return back if back.startswith("/review/") else "/review"


async def queue(visit: _Visit) -> Response:
    found, _ = await visit.desk.questions(visit.who)
    groups = []
    for name in visit.desk.judges:
        own = [it for it in found if name in it.criterion.split(", ")]
        oldest = min(own, key=lambda it: it.asked_at).age if own else None
        done = await _progress(visit, name)
        groups.append({"criterion": name, "open": len(own), "oldest": oldest, **done})
    shown = {"questions": found[:50], "more": max(len(found) - 50, 0), "groups": groups}
    return await visit.show("queue", "queue", "Cases that wait for you", **shown)


async def _progress(visit: _Visit, name: str) -> dict[str, int]:
    rows = (await visit.desk.access(name).refresh(ASYNC)).rows()
    own = [row for row in rows if row.content.get("author") == visit.who.name]
    return {"mine": len(own), "answered": len({row.example_id for row in rows})}


async def next_case(visit: _Visit) -> Response:
    query = visit.request.query_params
    only = query.get("criterion", unquote(visit.request.cookies.get("memalign_only", "")))
    found = await visit.desk.next(visit.who, only or None)
    done = f"?done={quote(query['done'])}" if "done" in query else ""
    response = _to(f"/review{f'/case/{quote(found)}' if found else ''}{done}")
    response.set_cookie("memalign_only", quote(only), path="/review", samesite="strict")
    return response


async def show_case(visit: _Visit, error: str = "") -> Response:
    question, shows = await visit.open(), visit.request.query_params.get("show") == "verdict"
    case, criteria = question.case, criteria_of(question.case)
    return await visit.show(
        "case",
        "queue",
        f"{question.criterion}: a case",
        question=question,
        case=case,
        fields=fields_of(case, visit.form),
        sections=_sections(case),
        criteria=[
            {"name": it.name, "instructions": it.instructions, "scale": _scale(it)}
            for it in criteria.values()
        ],
        asked=case.get("asked", []),
        said=visit.form,
        judgments=shown_judgments(case) if shows else None,
        error=error or None,
        progress=await _progress(visit, next(iter(criteria))),
        held_by=question.held_by,
        has_nearest=case["example"] is not None,
    )


def _scale(criterion: Criterion) -> str:
    is_plain = isinstance(criterion.scale, Boolean)
    return "" if is_plain else f"The answer is {criterion.scale.describe()}"


def _sections(case: Case) -> list[Any]:
    pairwise = any(isinstance(it.scale, Pairwise) for it in criteria_of(case).values())
    return [] if case["example"] is None else sections_of(case["example"], pairwise=pairwise)


async def show_effect(visit: _Visit) -> Response:
    """Show what an answer would do; nothing is stored yet."""
    question = await visit.open()
    case = question.case
    try:
        reply = read_answer(case, visit.form, visit.who.name)
    except InvalidInputError as error:
        return await show_case(visit, str(error))
    others: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    untold = None
    feedback_by_name = feedback_of(case, reply)
    vector = await _vector(visit, case, list(feedback_by_name))
    for name, feedback in feedback_by_name.items():
        access = visit.desk.access(name, case["namespace"])
        said = feedback.example, feedback.value
        others += await effect.others_on(ASYNC, access, *said, feedback.author)
        more, untold = await effect.values_changed_by(
            ASYNC,
            access,
            *said,
            vector,
            author=feedback.author,
            judgment=feedback.judgment,
            decide=visit.desk.judges[name].mode,
        )
        turns += more
    return await visit.show(
        "effect",
        "queue",
        "What your answer would do",
        question=question,
        reply=shown_reply(case, reply),
        hidden=list(visit.form.items()),
        judgments=shown_judgments(case),
        others=others,
        turns=turns,
        untold=untold,
        can_distil=any(it.rationale for it in feedback_by_name.values()),
        sections=_sections(case),
    )


async def _vector(visit: _Visit, case: Case, names: list[str]) -> Any:
    """Embed a case once for the memories of some criteria."""
    accesses = [visit.desk.access(name, case["namespace"]) for name in names]
    for access in accesses:
        await access.refresh(ASYNC)
    with suppress(EmbeddingError):  # then the page says that it is not known what would turn
        if accesses:
            return await embed_once(ASYNC, accesses, Example.model_validate(case["example"]))
    return None


async def word_rule(visit: _Visit) -> Response:
    """Word the rule that is likely to come of an answer."""
    case = (await visit.open()).case
    reply = read_answer(case, visit.form, visit.who.name)
    rules, told = [], None
    try:
        for name, feedback in feedback_of(case, reply).items():
            access = visit.desk.access(name, case["namespace"])
            rules += await effect.rules_from(ASYNC, access, visit.desk.chat(name), feedback)
    except MemAlignError as error:
        told = str(error)
    return visit.fragment("rule", rules=rules, error=told)


async def take_answer(visit: _Visit) -> Response:
    case = (await visit.open()).case
    try:
        reply = read_answer(case, visit.form, visit.who.name)
    except InvalidInputError as error:
        return await show_case(visit, str(error))
    await visit.desk.answer(visit.who, visit.question_id, case, reply)
    return _to(f"/review/next?done={quote(visit.question_id)}")


async def skip(visit: _Visit) -> Response:
    await visit.desk.release(visit.who, visit.question_id, skip=True)
    return _to("/review/next")


async def beat(visit: _Visit) -> Response:
    await visit.desk.hold(visit.who, visit.question_id)
    return Response(status_code=204)


async def leave(visit: _Visit) -> Response:
    await visit.desk.leave(visit.who, visit.question_id)
    return Response(status_code=204)


async def nearest(visit: _Visit) -> Response:
    case, near = (await visit.open()).case, None
    if (example := case["example"]) is not None:
        name = next(iter(case["criteria"]))
        access = visit.desk.access(name, case["namespace"])
        vector = await _vector(visit, case, [name])
        near = await effect.nearest_to(ASYNC, access, Example.model_validate(example), vector)
    if near is not None:
        # In a thread: to compare long texts takes a while, and others wait for the event loop.
        near["sections"] = await asyncio.to_thread(
            sections_of, near["example"].to_json(), besides=example
        )
    return visit.fragment("nearest", near=near)


async def show_learned(visit: _Visit) -> Response:
    found = await standing.learned(ASYNC, visit.desk.access(visit.criterion), visit.who.name)
    found["may_roll_back"] = visit.who.may_roll_back
    return await visit.show("learned", "learned", "What the judge has learned", **found)


async def change_rules(visit: _Visit) -> Response:
    access, form, who = visit.desk.access(visit.criterion), visit.form, visit.who.name
    rule, text = form.get("guideline_id", ""), form.get("text", "")
    match visit.request.path_params["action"]:
        case "add":
            await add_guideline(ASYNC, access, text, author=who)
        case "edit":
            await _check_unchanged(access, rule, form.get("was"))
            await edit_guideline(ASYNC, access, rule, text, author=who)
        case "remove":
            await remove_guideline(ASYNC, access, rule, author=who)
        case "take-back":
            own = Selection(episode_ids=[form.get("episode_id", "")], author=who)
            await forget(ASYNC, access, own, author=who)
        case "rollback" if visit.who.may_roll_back:
            await history.rollback(ASYNC, access, form.get("version", ""), author=who)
        case _:
            raise InvalidInputError("You may not do that here.")
    return _to(f"/review/learned/{quote(visit.criterion)}")


async def _check_unchanged(access: MemoryAccess, guideline_id: str, text: str | None) -> None:
    """Refuse to overwrite a wording that the expert has not seen."""
    texts = {guideline.id: guideline.text for guideline in await access.guidelines(ASYNC)}
    now = texts.get(guideline_id)
    if text is not None and now is not None and text.split() != now.split():
        raise InvalidInputError(
            f"Somebody has reworded this rule since you opened the page. It says now: {now}"
        )


async def changes(visit: _Visit) -> Response:
    """Show what a version changed."""
    access = visit.desk.access(visit.criterion)
    commits = await history.history(ASYNC, access)
    version = visit.request.path_params["version"]
    versions = [commit.version for commit in commits]
    if version not in versions:
        raise InvalidInputError(f"There is no version {version!r}.")
    before = [*versions, "0" * len(version)][versions.index(version) + 1]
    made = await history.diff(ASYNC, access, before, version)
    rules, cases = made.guidelines, made.episodes
    kinds = ("added", "removed", "changed")
    return visit.fragment(
        "changes",
        added=[rule.text for rule in rules.added],
        removed=[rule.text for rule in rules.removed],
        changed=[(rule.before.text, rule.after.text) for rule in rules.changed],
        episodes={kind: len(getattr(cases, kind)) for kind in kinds},
    )


async def mine(visit: _Visit) -> Response:
    access = visit.desk.access(visit.criterion)
    answers = await standing.answers_of(ASYNC, access, visit.who.name)
    for answer in answers:
        filled = {"value": answer["written"]}
        answer["fields"] = [value_field("value", "Your answer", access.criterion, filled)]
    return await visit.show("mine", "mine", "My answers", answers=answers)


async def change_mine(visit: _Visit) -> Response:
    access, key = visit.desk.access(visit.criterion), visit.form.get("episode_id", "")
    episode = (await access.episodes(ASYNC, [key])).get(key)
    if episode is None or episode.author != visit.who.name:
        raise InvalidInputError("That is no answer of yours.")
    words = {name: visit.form.get(name, "").strip() or None for name in ("value", "rationale")}
    await revise(ASYNC, access, key, words)
    return _to(f"/review/mine/{quote(visit.criterion)}")


async def show_standing(visit: _Visit) -> Response:
    found = await standing.standing(ASYNC, visit.desk.access(visit.criterion))
    return await visit.show("standing", "standing", "Where we stand", **found)
