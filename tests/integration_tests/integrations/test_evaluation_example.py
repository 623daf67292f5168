"""The example, run as a user would."""

from tests.integration_tests.examples_support import example_server, run_example
from tests.loopback import LoopbackServer, Rule

__all__ = ["example_server"]


def test_the_example_evaluates_before_and_after(server: LoopbackServer) -> None:
    server.rules.append(Rule(when=lambda chat: "says sorry first" in chat.text, value=False))
    printed = run_example(server, "examples/evaluate_with_langsmith.py")
    before, _, after = printed.partition("After:")
    assert before.count("support_tone = True, with 0 guideline(s) and 0 expert's word(s)") == 3
    assert after.count("support_tone = False, with 1 guideline(s) and 1 expert's word(s)") == 3
