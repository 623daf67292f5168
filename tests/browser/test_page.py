"""Failures of the page: lost text, executed markup, inaccessible pages."""

import json
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from memalign_graph import Criterion
from tests.browser.support import Bring, Expert, Shop, case

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>alert(1)</script><img src=http://elsewhere.example/x onerror=alert(2)>"
    "</textarea><svg onload=alert(3)>{{ 7*7 }}<a href='javascript:alert(4)'>a</a>\"'><b onclick=1>"
)
SAYS = "So cold."
PAGES = ("", "/learned/support_tone", "/mine/support_tone", "/standing/support_tone")


def test_form_text_survives_a_killed_server(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0), case(1))
    zoe = expert(shop.url, "zoe")
    with shop.open() as process:
        zoe.go("/next", on="case")
        question = zoe.question
        zoe.fill("2", SAYS)
        process.kill()
        process.wait()
        with zoe.page.expect_event("requestfailed"):
            zoe.press("Enter")
    with shop.open():
        zoe.go(f"/case/{question}", on="case")
        assert zoe.page.input_value("textarea") == SAYS
        assert zoe.page.is_checked("input[value=false]")
        zoe.turn(to="case")
        assert zoe.question != question
        assert zoe.page.input_value("textarea") == ""
        assert zoe.notice().startswith("Learned:")


def test_comment_on_a_case_that_is_gone_is_shown(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0))
    zoe, bob = expert(shop.url, "zoe"), expert(shop.url, "bob")
    with shop.open():
        zoe.go("/next", on="case")
        path = f"/case/{zoe.question}"
        zoe.fill("2", SAYS)
        bob.go(path, on="case")
        bob.answer("1")
        zoe.turn("v", to="case")
        assert zoe.page.input_value("textarea") == SAYS
        zoe.go(path)
        assert "This case is answered" in zoe.text
        assert SAYS in zoe.page.inner_text("#notices")


def test_answer_can_be_sent_again_after_a_stopped_request(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0))
    zoe = expert(shop.url, "zoe")
    with shop.open():
        zoe.page.clock.install()
        zoe.go("/next", on="case")
        zoe.fill("2", SAYS)
        # This response leaves the page as it is.
        zoe.page.route("**/answer", lambda route: route.fulfill(status=204))
        with zoe.page.expect_response("**/answer"):
            zoe.press("Enter")
        zoe.page.unroute("**/answer")
        zoe.page.clock.fast_forward(10_000)
        zoe.turn(to="queue")
    assert [episode.rationale for episode in shop.episodes()] == [SAYS]


def test_next_expert_in_the_browser_sees_no_earlier_draft(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0))
    zoe = expert(shop.url, "zoe")
    with shop.open():
        zoe.go("/next", on="case")
        path = f"/case/{zoe.question}"
        zoe.fill("2", SAYS)
        for name, typed in (("bob", ""), ("zoe", SAYS)):
            cookie: Any = {"name": "memalign_name", "value": name, "url": f"{shop.url}/review"}
            zoe.context.add_cookies([cookie])
            zoe.go(path, on="case")
            assert zoe.page.input_value("textarea") == typed


def test_hostile_text_is_escaped_and_never_executed(shop: Shop, expert: Bring) -> None:
    shop.criterion = Criterion(name="support_tone", instructions=HOSTILE)
    turns = [{"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": {HOSTILE: HOSTILE}}]
    shop.keep({"inputs": turns, "outputs": [HOSTILE]})
    zoe = expert(shop.url)
    with shop.open():
        zoe.go("/name?back=/review/next")
        zoe.page.keyboard.insert_text(HOSTILE[:90])
        zoe.turn(to="case")
        zoe.turn("v", to="case")
        assert HOSTILE in zoe.text
        zoe.press("1", "w")
        zoe.page.keyboard.insert_text(HOSTILE)
        zoe.press("Escape")
        zoe.preview()
        with zoe.page.expect_navigation():
            zoe.press("w", "Control+Enter")
        assert HOSTILE in zoe.notice()
        for path in PAGES:
            zoe.go(path)
            assert zoe.page.locator("[onerror], [onload], [onclick]").count() == 0


def check(zoe: Expert, where: str) -> None:
    """Check the current page in a wide light and a narrow dark layout."""
    colours: Any
    for colours, width in (("light", 1180), ("dark", 390)):
        zoe.page.emulate_media(color_scheme=colours)
        zoe.page.set_viewport_size({"width": width, "height": 800})
        violations = Axe().run(zoe.page).response["violations"]
        grave = [item for item in violations if item["impact"] in ("serious", "critical")]
        assert grave == [], f"{where}, {colours}, {width}: {json.dumps(grave, indent=1)}"
        assert zoe.page.evaluate("document.documentElement.scrollWidth") <= width, where


def open_case(zoe: Expert, title: str) -> None:
    """Open the first listed case whose output starts with this text."""
    zoe.go()
    zoe.page.click(f".list a:has-text('{title}') >> nth=0")
    zoe.see("case")


def test_every_page_is_accessible(shop: Shop, expert: Bring) -> None:
    long = {"inputs": [{"role": "user", "content": "Where? " * 90}], "outputs": {"a": ["b" * 300]}}
    code = {"inputs": "Sort.", "outputs": f"```python\nsorted({'x' * 200})\n```"}
    call = {"inputs": "Refund A7.", "outputs": {"name": "refund", "args": {"order": "A7"}}}
    shop.keep(long, code, case(0), call, {**call, "inputs": "Refund it."})
    zoe = expert(shop.url)
    with shop.open():
        zoe.go()
        check(zoe, "name")
        zoe.page.keyboard.type("zoe")
        zoe.turn()
        for title in ("b" * 20, "sorted"):
            open_case(zoe, title)
            zoe.turn("v", to="case")
            zoe.fill("2", SAYS)
            check(zoe, "case")
            zoe.preview()
            check(zoe, "preview")
            zoe.turn()
            assert SAYS in zoe.notice()
        open_case(zoe, "Answer number 0")
        zoe.page.click("text=Compare with the nearest")
        zoe.page.wait_for_selector("#nearest h2")
        check(zoe, "nearest")
        open_case(zoe, "refund")
        zoe.page.wait_for_selector("#nearest :text('No call of')")
        zoe.answer("1")
        open_case(zoe, "refund")
        zoe.page.wait_for_selector("#nearest .arguments")
        check(zoe, "call")
        zoe.press("?")
        check(zoe, "keys")
        for path in (*PAGES, "/case/j-support_tone-none"):
            zoe.go(path)
            check(zoe, path)
