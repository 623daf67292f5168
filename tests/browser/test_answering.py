"""Experts answer by keyboard, and without JavaScript."""

import pytest

from tests.browser.support import Bring, Shop, case

pytestmark = pytest.mark.browser


def test_twelve_cases_are_answered_by_keyboard_only(shop: Shop, expert: Bring) -> None:
    shop.keep(*map(case, range(12)))
    zoe = expert(shop.url)
    with shop.open():
        zoe.go()
        zoe.page.keyboard.type("Zoë Ångström")
        zoe.turn(to="queue")
        zoe.turn(to="case")
        skipped = [zoe.question]
        zoe.turn("s", to="case", is_held=True)
        seen: list[str] = []
        answers_by_author: dict[str, tuple[bool, str | None]] = {}
        for number in range(12):
            zoe.see("case")
            seen.append(zoe.question)
            comment = f"us? 1 is {number}." if number < 4 else ""
            author = zoe.page.inner_text("article .outputs .text")
            answers_by_author[author] = (number % 2 == 0, comment or None)
            if number == 1:  # the help overlay blocks all other keys
                zoe.press("?", "1", "s")
                assert zoe.page.locator("dialog[open]").is_visible()
                zoe.press("Escape")
                assert zoe.page.locator("dialog[open], input:checked").count() == 0
            zoe.fill("2" if number == 2 else "12"[number % 2], comment)
            if number == 2:  # the preview stores nothing, and changing the answer hides it
                zoe.press("p")
                zoe.page.wait_for_selector("#effect h2")
                zoe.press("1")
                assert zoe.page.inner_text("#effect") == ""
            # A held key answers one case, not several.
            zoe.turn(is_held=number == 3)
            assert "Your answer is stored." in zoe.text
        zoe.see("queue")
        assert (len(set(seen)), seen[-1:]) == (12, skipped)
        assert "No case waits" in zoe.text
        zoe.turn("u")
        zoe.page.click("summary:text('Change')")
    episodes = shop.episodes()
    assert {
        episode.example.outputs: (episode.value, episode.rationale) for episode in episodes
    } == answers_by_author
    assert {episode.author for episode in episodes} == {"Zoë Ångström"}


def test_keys_of_a_layout_without_latin_letters(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0), case(1))
    zoe = expert(shop.url, "zoe")
    with shop.open():
        zoe.go("/next", on="case")
        skipped = zoe.question
        zoe.page.dispatch_event("body", "keydown", {"key": "\u0661", "code": "Digit1"})
        assert zoe.page.is_checked("input[value=true]")
        with zoe.page.expect_navigation():
            zoe.page.dispatch_event("body", "keydown", {"key": "ы", "code": "KeyS"})
        zoe.see("case")
        assert zoe.question != skipped
        zoe.go("/learned/support_tone")
        zoe.page.fill("textarea", "Says sorry.")
        with zoe.page.expect_navigation():
            zoe.press("Control+Enter")
        assert "written by hand" in zoe.text


def test_page_works_without_javascript(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0))
    zoe = expert(shop.url, java_script_enabled=False)
    with shop.open():
        zoe.go()
        zoe.page.fill("input[name=who]", "zoe")
        zoe.page.click("text=Go on")
        zoe.page.click("a:text('Begin')")
        zoe.page.check("input[value=false]")
        zoe.page.fill("textarea", "Too cold.")
        with zoe.page.expect_popup() as opened:
            zoe.page.click("button:text('What this answer would do')")
        assert "Settled cases that would change" in opened.value.inner_text("body")
        opened.value.close()
        zoe.page.click("button:text('Answer')")
        zoe.see("queue")
        assert zoe.notice() == "Learned: When judging, heed the expert: Too cold."
    assert [(episode.author, episode.value) for episode in shop.episodes()] == [("zoe", False)]


def test_choice_is_taken_back_by_its_digit_or_a_click(shop: Shop, expert: Bring) -> None:
    shop.keep(case(0))
    zoe = expert(shop.url, "zoe")
    with shop.open():
        zoe.go("/next", on="case")
        chosen = zoe.page.locator("input:checked")
        zoe.press("1")
        assert chosen.count() == 1
        zoe.press("1")
        assert chosen.count() == 0
        zoe.press("1")
        zoe.page.click(".option")
        assert chosen.count() == 0
        zoe.page.dblclick(".option")
        assert chosen.count() == 1
        # A click that ends elsewhere takes nothing back, and other keys of radio buttons neither.
        zoe.page.hover(".option")
        zoe.page.mouse.down()
        zoe.page.hover("h1")
        zoe.page.mouse.up()
        chosen.focus()
        for key, value in ((" ", "true"), (" ", "true"), ("ArrowDown", "false")):
            zoe.press(key)
            assert chosen.get_attribute("value") == value


def test_selected_text_is_quoted_and_an_open_page_renews_its_lease(
    shop: Shop, expert: Bring
) -> None:
    shop.keep(case(0))
    zoe = expert(shop.url, "zoe")
    with shop.open():
        zoe.page.clock.install()
        zoe.go("/next", on="case")
        zoe.page.locator(".outputs .text").select_text()
        zoe.press("q")
        assert zoe.page.input_value("textarea") == "“Answer number 0.” "
        with zoe.page.expect_response("**/beat") as renewed:
            zoe.page.clock.fast_forward(60_000)
        assert renewed.value.status == 204
