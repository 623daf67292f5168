"""The examples of gates, panels and later feedback, run as a user would."""

from tests.integration_tests.examples_support import example_server, run_example
from tests.loopback import ChatRequest, LoopbackServer, Rule

__all__ = ["example_server"]


def _writes(request: ChatRequest) -> bool:
    return request.schema is None


def test_quality_gate_sends_a_draft_back_and_takes_the_next(server: LoopbackServer) -> None:
    server.rules.append(
        Rule(
            when=lambda request: "tracking page" in request.text, value=False, rationale="No sorry."
        )
    )
    printed = run_example(server, "examples/quality_gate.py")
    assert printed.startswith("revise: The answer did not pass.")
    assert "No sorry." in printed
    assert printed.splitlines()[-1].startswith("accepted: I am sorry that order 4711")
    assert len(server.chats) == 2


def test_quality_gate_calls_a_person_where_nothing_passes(server: LoopbackServer) -> None:
    server.rules.append(Rule(when=lambda _: True, value=False))
    printed = run_example(server, "examples/quality_gate.py")
    assert printed.splitlines()[-1].startswith("escalated: A colleague will write to you")


def test_agent_revises_and_an_expert_decides(server: LoopbackServer) -> None:
    good = "SELECT SUM(total) FROM orders WHERE status <> 'cancelled'"
    server.rules += [
        Rule(when=lambda request: _writes(request) and "did not pass" in request.text, reply=good),
        Rule(when=_writes, reply="SELECT SUM(total) FROM orders"),
        Rule(when=lambda _: True, value=False),
    ]
    printed = run_example(server, "examples/agent_with_a_gate.py")
    assert f"ai: {good}" in printed
    assert printed.splitlines()[-1] == "accepted, as the expert decided"
    judged = [chat for chat in server.chats if chat.schema_name == "judgment"]
    assert len(judged) == 2, "not again when the expert's word comes"


def test_panel_grades_nine_criteria_and_learns_two(server: LoopbackServer) -> None:
    printed = run_example(server, "examples/panel_of_criteria.py")
    graded, _, learned = printed.partition("Learned:")
    assert len(graded.strip().splitlines()) == 9
    assert "Zeros for all columns are no imputation." in learned
    assert learned.splitlines()[-1] == "Score 0.80, passed: False, veto: ['metrics']"
    assert len([chat for chat in server.chats if chat.schema_name == "judgment"]) == 9


def test_feedback_comes_later_by_the_judgments_id(server: LoopbackServer) -> None:
    printed = run_example(server, "examples/feedback_later.py").splitlines()
    assert printed[:2] == ["Judged: True", "Waiting for a word: [True]"]
    assert "must begin with an apology" in printed[2]


def test_loop_asks_once_and_is_right_the_second_time(server: LoopbackServer) -> None:
    certified = "SELECT MAX(total) FROM finance.certified_orders"
    server.rules += [
        Rule(
            when=lambda request: _writes(request) and "experts say" in request.text, reply=certified
        ),
        Rule(when=_writes, reply="SELECT COUNT(*) FROM orders"),
        Rule(when=lambda request: certified in request.text, value="certified"),
    ]
    printed = run_example(server, "examples/self_evaluating_loop.py")
    first, _, second = printed.partition("== What is the highest")
    assert first.count("writes: ") == 2
    assert first.count("asks the expert") == 1
    assert "exhausted: " in first
    assert "it passed" not in first
    assert (second.count("writes: "), second.count("asks the expert")) == (1, 0)
    assert "accepted: it passed." in second
    assert "read finance.certified_orders" in second.partition("Guidelines:")[2]
