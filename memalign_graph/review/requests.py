"""A request to the review page: its reviewer, its form, and the response."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import httpx
import jinja2
from langgraph_sdk.client import LangGraphClient
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from memalign_graph.errors import InvalidInputError, MemAlignError, visible
from memalign_graph.review.queue import NotOpenError, ReviewQueue
from memalign_graph.review.tasks import Reviewer, ReviewTask

_MAX_NAME_CHARS = 100
_MAX_BODY_BYTES = 262_144
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_Network = IPv4Network | IPv6Network
_LOOPBACK: list[_Network] = [ip_network("127.0.0.0/8"), ip_network("::1")]
_FORWARDED = {"forwarded", "x-forwarded-for", "x-real-ip", "via"}
"""Headers of a proxy, which may replace the header Host by this machine's."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters["visible"] = visible
_TEMPLATES.filters["time"] = lambda at: f"{at.astimezone(UTC):%d %b %Y, %H:%M} UTC"


@dataclass
class SignIn:
    """How reviewers are identified, as `create_review_app` documents it."""

    served: bool
    user_header: str | None
    proxy: str | None
    name: str
    _proxies: Sequence[_Network] = ()

    def __post_init__(self) -> None:
        header, proxy = self.user_header, self.proxy
        if header is not None and not re.fullmatch(r"[\w-]+", header, re.ASCII):
            raise InvalidInputError(
                f"user_header: {header!r} is not the name of a header. Use one such as "
                "X-Forwarded-User."
            )
        if proxy is not None and header is None:
            raise InvalidInputError(
                "proxy: also name the header with the user's name (user_header, --user-header)."
            )
        try:
            self._proxies = _LOOPBACK if proxy is None else [ip_network(proxy, strict=False)]
        except ValueError as error:
            raise InvalidInputError(
                f"proxy: {proxy!r} is not an IP address or network. Use one such as 10.0.0.7 or "
                "10.0.0.0/8."
            ) from error

    def reviewer(self, request: Request) -> Reviewer:
        """Return who sent a request; raises an HTTPException if that cannot be trusted."""
        if self.served:
            return self._user_of_server(request)
        if self.user_header:
            return Reviewer(self._user_of_proxy(request, self.user_header), verified=True)
        headers = request.headers
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        # Any client can send this header. A client without an address uses a Unix socket.
        is_local = request.client is None or _is_in(request.client.host, _LOOPBACK)
        # No browser sends HTTP/1.0; a proxy may, as nginx did by default for years.
        is_forwarded = request.scope["http_version"] == "1.0" or not _FORWARDED.isdisjoint(headers)
        if host not in _LOCAL_HOSTS or not is_local or is_forwarded:
            raise _refusal(
                "This page answers its own machine only: open it as 127.0.0.1. (Behind a reverse "
                "proxy it needs --user-header.)"
            )
        return Reviewer(self._name_of_cookie(request), may_roll_back=True)

    def _user_of_proxy(self, request: Request, header: str) -> str:
        address = request.client.host if request.client else ""
        if not _is_in(address, self._proxies):
            raise _refusal(
                f"This page is served through a proxy, and {address or 'this address'} is not it: "
                "open the proxy's address. (--proxy names the address that the proxy calls from.)"
            )
        # Starlette decodes headers as Latin-1.
        sent = (name.encode("latin-1") for name in request.headers.getlist(header))
        names = {clean_name(name.decode("utf-8", "replace")) for name in sent} - {""}
        if len(names) != 1:
            problem = "several names" if names else "no name"
            raise _refusal(
                f"Nobody is signed in: the proxy sent {problem} in the header {header}. Sign in, "
                "or have the proxy set this header (--user-header)."
            )
        return names.pop()

    def _user_of_server(self, request: Request) -> Reviewer:
        user = request.scope.get("user")
        if user is None:
            raise _refusal("Set `enable_custom_route_auth` under `http` in langgraph.json.")
        is_known = user.is_authenticated and getattr(user, "kind", "") != "StudioUser"
        permissions = request.auth.scopes if is_known else []
        return Reviewer(
            name=user.identity if is_known else self._name_of_cookie(request),
            verified=is_known,
            may_roll_back="memalign:roll-back" in permissions,
            client=_server_client(request),
            account=user.identity,
        )

    def _name_of_cookie(self, request: Request) -> str:
        name = short_name(unquote(request.cookies.get("memalign_name", "")))
        return name or short_name(self.name)


def _is_in(address: str, networks: Sequence[_Network]) -> bool:
    try:
        client = ip_address(address)
    except ValueError:
        return False
    client = getattr(client, "ipv4_mapped", None) or client
    return any(client in network for network in networks)


@dataclass
class PageRequest:
    """A reviewer's request."""

    queue: ReviewQueue
    request: Request
    reviewer: Reviewer
    token: str
    form: Mapping[str, str]

    @property
    def task_id(self) -> str:
        return str(self.request.path_params["task_id"])

    @property
    def criterion(self) -> str:
        return str(self.request.path_params["criterion"])

    async def open_task(self) -> ReviewTask:
        """Open this request's task; a page that is open already may be answered late."""
        shown = "show" in self.request.query_params or self.request.url.path.endswith("/nearest")
        late = self.request.method == "POST" or shown
        return await self.queue.open(self.reviewer, self.task_id, late=late)

    async def show(self, template: str, title: str, **context: Any) -> Response:
        """Render a page, with notices about earlier answers."""
        active = "queue" if template == "case" else template
        _, count = await self.queue.list_tasks(self.reviewer)
        notices = self.queue.answers.take_notices(self.reviewer)
        page = {**self.page_context(title, active), "open": count, "notices": notices}
        return self.render(template, page=page, **context)

    def page_context(self, title: str, active: str = "") -> dict[str, Any]:
        """Return what every page shows, apart from what is read from the store."""
        criterion = self.request.path_params.get("criterion")
        return {
            "title": title,
            "active": active,
            "criteria": list(self.queue.judges),
            "criterion": criterion if criterion in self.queue.judges else None,
            "who": self.reviewer.name or None,
            "verified": self.reviewer.verified,
            "token": self.token,
            "stored": "done" in self.request.query_params,
            "answered": self.request.query_params.get("in"),
            "notices": [],
            "open": "…",
        }

    def render(self, template: str, **context: Any) -> Response:
        return HTMLResponse(_TEMPLATES.get_template(f"{template}.html.jinja").render(**context))

    def fragment(self, macro: str, **context: Any) -> Response:
        """Render a part of a page, which the browser loads on demand."""
        fragments: Any = _TEMPLATES.get_template("fragments.html.jinja").module
        return HTMLResponse(str(getattr(fragments, macro)(**context)))


Handler = Callable[[PageRequest], Awaitable[Response]]


async def respond(
    queue: ReviewQueue, sign_in: SignIn, handler: Handler, request: Request
) -> Response:
    """Respond to a request of a reviewer with a name; show errors as pages."""
    token, form, is_get = token_of(request), dict[str, str](), request.method != "POST"
    try:
        reviewer = sign_in.reviewer(request)
        form = {} if is_get else await read_form(request, token)
        page = PageRequest(queue, request, reviewer, token, form)
        if reviewer.name or request.url.path == "/review/name":
            response = await handler(page)
        else:
            back = quote(request.url.path) if is_get else "/review"
            response = redirect(f"/review/name?back={quote(back)}")
    except HTTPException as error:
        response = PlainTextResponse(error.detail, error.status_code)
    except ClientDisconnect:
        response = Response(status_code=400)  # nobody reads it
    except (MemAlignError, httpx.HTTPError) as error:  # the latter from the Agent Server
        fields, is_gone = ("value", "rationale", "text"), isinstance(error, NotOpenError)
        typed = {name: text for name, text in form.items() if text.strip()}
        written = {name: text for name, text in typed.items() if name.rpartition(".")[2] in fields}
        context = {"message": str(error), "written": written, "is_gone": is_gone}
        response = page.render("error", page=page.page_context("That did not work"), **context)
        response.status_code = 404 if is_gone else 400
    response.headers.update(_HEADERS)
    # Same-site "lax": with "strict", a link in a mail would replace the token of open pages.
    set_cookie(response, request, "memalign_token", token)
    return response


def _refusal(reason: str) -> HTTPException:
    return HTTPException(403, reason)


def redirect(path: str) -> Response:
    return RedirectResponse(path, 303)


def clean_name(text: str) -> str:
    """Return a name on one line; in full, since two users may have the same beginning."""
    return " ".join(text.replace("\0", "").split())


def short_name(text: str) -> str:
    """Return a name that nobody checks, up to a length."""
    return clean_name(text)[:_MAX_NAME_CHARS].strip()


def token_of(request: Request) -> str:
    """Return the browser's form token, or a new one."""
    token = request.cookies.get("memalign_token", "")
    return token if re.fullmatch(r"[A-Za-z0-9_-]{22}", token) else secrets.token_urlsafe(16)


def set_cookie(
    response: Response, request: Request, name: str, value: str, max_age: int | None = None
) -> None:
    """Set a cookie for this page, hidden from scripts, and secure if the browser uses TLS."""
    is_tls = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    options: Any = {"path": "/review", "httponly": True, "samesite": "lax", "secure": is_tls}
    response.set_cookie(name, value, max_age=max_age, **options)


async def read_form(request: Request, token: str) -> dict[str, str]:
    """Parse a form; raises an HTTPException if it is forged or too long."""
    origin = request.headers.get("origin")
    if origin and origin.partition("://")[2] != request.headers.get("host"):
        raise _refusal(
            "This form was sent from another site. (A proxy in front of the page must pass on the "
            "header Host.)"
        )
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise _refusal("That is too long: shorten what you wrote.")
    fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    form = {name: text.replace("\r\n", "\n") for name, text in fields}
    if not secrets.compare_digest(form.pop("token", "").encode(), token.encode()):
        raise _refusal("This page is too old: open it again. What you wrote on a case is kept.")
    return form


def _server_client(request: Request) -> LangGraphClient:
    """Return a client with the rights of the request; without them it would see all threads."""
    of_body = ("content-", "accept", "transfer-", "connection", "host", "origin")
    sent: Sequence[tuple[str, str]] = request.headers.items()
    headers = {name: value for name, value in sent if not name.startswith(of_body)}
    transport = httpx.ASGITransport(app=request.app)
    return LangGraphClient(
        httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, timeout=600)
    )
