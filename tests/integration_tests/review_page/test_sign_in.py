"""Authentication by a reverse proxy."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.authentication import AuthCredentials
from starlette.exceptions import HTTPException
from starlette.requests import Request

from memalign_graph.review import create_review_app
from memalign_graph.review.requests import SignIn
from tests.integration_tests.review_page.conftest import Expert, Office

HEADER = "X-Forwarded-User"


def through(office: Office, address: str, proxy: str | None = None, **headers: Any) -> Expert:
    """Open the page as a proxy at an address would."""
    app = create_review_app(office.queue(), name="nobody", user_header=HEADER, proxy=proxy)
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, client=(address, 40_000)),
        base_url="https://reviews.example.com",
        headers=headers.get("headers"),
        cookies={"memalign_name": "bob"},
        follow_redirects=True,
    )
    office.open.append(http)
    return Expert(http)


@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("10.1.2.3", "10.0.0.0/8"),
        ("fd00::7", "fd00::/8"),
    ],
)
async def test_proxy_user_is_the_author(office: Office, address: str, proxy: str | None) -> None:
    await office.judged("Wait.")
    name = "Zoë".encode()
    expert = through(office, address, proxy, headers=[(HEADER.encode(), name)])
    zoe = await expert.get("/review/next")
    assert ("Zoë" in zoe.text, "not checked" in zoe.text) == (True, False)
    for cookie in zoe.page.headers.get_list("set-cookie"):
        parts = {part.strip() for part in cookie.split(";")[1:]}
        assert {"HttpOnly", "Path=/review", "SameSite=lax", "Secure"} <= parts
    await zoe.answer(value="false", who="bob", author="bob")
    assert await office.feedback() == {("Zoë", "Wait."): (False, None)}
    version = await office.memory.aversion()
    await office.memory.aadd_guideline("Says sorry first.")
    await zoe.get("/review/learned/support_tone")
    assert "Go back to this" not in zoe.text
    await zoe.post("/review/learned/support_tone", action="rollback", version=version)
    assert (zoe.page.status_code, "This needs a permission" in zoe.text) == (400, True)
    assert len(await office.memory.aguidelines()) == 1


@pytest.mark.parametrize(
    ("address", "proxy"),
    [("10.1.2.3", None), ("127.0.0.1", "10.1.2.3"), ("testclient", None), ("::1", "10.0.0.0/8")],
)
async def test_only_the_proxy_is_trusted(office: Office, address: str, proxy: str | None) -> None:
    await office.judged("Wait.")
    forged = {HEADER: "ann", "X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"}
    eve = await through(office, address, proxy, headers=forged).get("/review/next")
    assert eve.page.status_code == 403
    assert f"{address} is not it" in eve.text
    assert "Wait." not in eve.text


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ([], "no name"),
        ([(HEADER, "  ")], "no name"),
        ([("X-User", "ann")], "no name"),
        ([(HEADER, "ann"), (HEADER, "bob")], "several names"),
    ],
)
async def test_request_needs_a_user(office: Office, headers: Any, problem: str) -> None:
    await office.judged("Wait.")
    ann = await through(office, "127.0.0.1", headers=headers).get("/review")
    assert (ann.page.status_code, "Wait." in ann.text) == (403, False)
    assert f"Nobody is signed in: the proxy sent {problem} in the header {HEADER}." in ann.text


async def test_form_of_the_proxys_own_site_is_taken(office: Office) -> None:
    await office.judged("Wait.")
    ann = await through(office, "::1", headers={HEADER: "ann"}).get("/review/next")
    for origin, status in (("https://evil.example", 403), ("https://reviews.example.com", 200)):
        ann.http.headers["origin"] = origin
        assert (await ann.get("/review/next")).page.status_code == 200
        assert (await ann.answer(value="false")).page.status_code == status
    assert len(await office.feedback()) == 1


async def test_users_with_a_common_long_name_prefix_are_distinct(office: Office) -> None:
    await office.judged("Wait.")
    names = [f"CN={'x' * 100},OU={unit}" for unit in ("care", "sales")]
    path = f"/review/case/j-support_tone-{(await office.judgment_ids())[0]}"
    users = [await through(office, "127.0.0.1", headers={HEADER: name}).get(path) for name in names]
    for user, value in zip(users, ("true", "false"), strict=True):
        await user.answer(value=value)
    given = {(name, "Wait."): (name == names[0], None) for name in names}
    assert await office.feedback() == given


@pytest.mark.parametrize(
    ("client", "host", "marks", "status"),
    [
        (("127.0.0.1", 1), "localhost", {}, 200),
        (("::1", 1), "[::1]:8765", {}, 200),
        (None, "localhost", {}, 200),  # a Unix socket
        (("10.0.0.9", 1), "localhost", {}, 403),
        (("127.0.0.1", 1), "reviews.example.com", {}, 403),
        # Apache replaces the header Host unless it is told not to.
        (("127.0.0.1", 1), "127.0.0.1:8765", {"headers": {"X-Forwarded-For": "10.0.0.9"}}, 403),
        # A proxy that marks nothing, as nginx by default.
        (("127.0.0.1", 1), "127.0.0.1:8765", {"http_version": "1.0"}, 403),
    ],
)
async def test_without_sign_in_only_local_requests_are_served(
    office: Office, client: Any, host: str, marks: dict[str, Any], status: int
) -> None:
    app = create_review_app(office.queue(), name="ann")

    async def marked(scope: Any, receive: Any, send: Any) -> None:
        version = marks.get("http_version", scope["http_version"])
        await app({**scope, "http_version": version}, receive, send)

    transport = httpx.ASGITransport(app=marked, client=client)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        page = await http.get("/review", headers=marks.get("headers"))
    assert (page.status_code, "--user-header" in page.text) == (status, status == 403)


async def test_trailing_slash_keeps_the_address_of_the_proxy(office: Office) -> None:
    ann = await through(office, "127.0.0.1", headers={HEADER: "ann"}).get("/review/")
    assert ann.page.status_code == 200
    assert ann.page.url == "https://reviews.example.com/review/"
    assert ann.page.history == []


@pytest.mark.parametrize(("name", "author"), [("  Ann   Lee ", "Ann Lee"), ("a\0nn", "ann")])
async def test_name_of_the_command_is_normalized(office: Office, name: str, author: str) -> None:
    queue, ann = await office.begin("Wait.", name=name)
    await office.answer(queue, ann, value="false")
    assert await office.feedback() == {(author, "Wait."): (False, None)}
    await ann.get("/review/mine/support_tone")
    assert "You have not answered anything" not in ann.text


@pytest.mark.parametrize(
    ("user", "reviewer"),
    [
        ({"is_authenticated": True}, ("ann", True, True)),
        ({"is_authenticated": True, "kind": "StudioUser"}, ("eve", False, False)),
        ({"is_authenticated": False}, ("eve", False, False)),
    ],
)
def test_only_a_user_whom_the_server_has_signed_in_is_verified(user: Any, reviewer: Any) -> None:
    scope: dict[str, Any] = {"type": "http", "app": None}
    scope |= {
        "user": SimpleNamespace(identity="ann", **user),
        "headers": [(b"cookie", b"memalign_name=eve")],
    }
    request = Request({**scope, "auth": AuthCredentials(["memalign:roll-back"])})
    sign_in = SignIn(served=True, user_header=None, proxy=None, name="")
    seen = sign_in.reviewer(request)
    assert (seen.name, seen.verified, seen.may_roll_back) == reviewer
    del scope["user"]
    with pytest.raises(HTTPException, match="enable_custom_route_auth"):
        sign_in.reviewer(Request(scope))
