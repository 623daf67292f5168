"""Tool calls: as examples to judge, the answers in their place, and how an edit is described."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage

from memalign_graph.conversation import questions_in, with_notes_as_results
from memalign_graph.errors import InvalidInputError, excerpt
from memalign_graph.identity import digest
from memalign_graph.memory.traces import texts_in
from memalign_graph.prompts.fences import Words, repeats, split_words
from memalign_graph.transcript import read_messages
from memalign_graph.types import Example, parse_example

Call = Mapping[str, Any]
"""A tool call as LangChain writes it: `name`, `args` and `id`."""

_REJECTION = "User rejected the tool call for `{}`"
"""The beginning of what the model gets if a person rejects a call; a reason may follow."""
_REFUSED = {"memalign": "refused"}
"""The artifact of the message in place of a refused call's result."""
_MAX_VALUE_CHARS, _MAX_CHANGE_CHARS = 1_000, 4_000
"""The maximum lengths of a value, and of all changes, in the description of an edit."""
_SHORT = re.compile(r"[\w.@:/+-]{0,64}", re.ASCII)


def call_key(call: Call) -> str:
    """Return a hash of a call's id and content."""
    parts = [call.get("id"), call["name"], call["args"]]
    return digest(json.dumps(parts, sort_keys=True, default=str))


def action_of(call: Call) -> dict[str, Any]:
    """Return a call without its id."""
    return {"name": call["name"], "args": call["args"]}


def call_example(call: Call, messages: Sequence[Any] | None) -> Example | None:
    """Return what is judged: the conversation so far, and the call; None if it is not JSON."""
    try:
        said = with_notes_as_results(messages or ())
        inputs = read_messages(said, "messages", lenient=True)
        if inputs is None and messages != []:
            return None
        return parse_example({"inputs": inputs or "(no messages)", "outputs": action_of(call)})
    except (ValueError, TypeError):
        return None


def refusal_message(call: Call, critique: str) -> ToolMessage:
    """Return what the model gets in place of the result of a call that the judge refused."""
    text = f"The call of `{call['name']}` was refused and did not run. {critique}"
    return ToolMessage(
        text, name=call["name"], tool_call_id=call["id"], status="error", artifact=_REFUSED
    )


def rejection_reason(rejection: ToolMessage, call: Call) -> str:
    """Return why a person rejected a call; empty without a reason."""
    # Without a reason, the message names the call's id, which may be a model's text.
    begin = f"{_REJECTION.format(call['name'])} with reason: "
    return rejection.text.removeprefix(begin) if rejection.text.startswith(begin) else ""


def refused_tools(messages: Sequence[Any], asked_ids: Collection[str] = ()) -> set[str]:
    """Return the tools of calls that the judge or a person refused in this turn."""
    questions = questions_in(messages, asked_ids)
    return {
        message.name
        for message in messages[questions[-1] if questions else 0 :]
        if isinstance(message, ToolMessage) and message.status == "error" and message.name
        if message.artifact == _REFUSED or message.text.startswith(_REJECTION.format(message.name))
    }


def check_edit(edited: Any) -> None:
    """Check an edited call. In `batched` mode langchain runs the original one in place of None."""
    fields = edited if isinstance(edited, Mapping) else {}
    if not (isinstance(fields.get("name"), str) and isinstance(fields.get("args"), dict)):
        raise InvalidInputError(
            f"edited_action: {excerpt(repr(edited), 200)} is not a call. Give the tool's `name` as "
            "text and its `args` as an object."
        )


def describe_edit(call: Call, edited: Call) -> str:
    """Describe what an edit changed.

    Of the judged call only short values and names are quoted: its sentences could be learned as the
    person's.
    """
    before, after = call["args"], edited["args"]
    names = {name: name if _SHORT.fullmatch(name) else "an argument" for name in before | after}
    changes = [f"{names[name]} is left out" for name in before if name not in after]
    if edited["name"] != call["name"]:
        changes.append(f"the tool is {_json(edited['name'])}, not {_json(call['name'])}")
    judged = split_words("\n".join(texts_in(before)))
    for name, new in after.items():
        if name not in before or before[name] != new:
            is_shown = name in before and _SHORT.fullmatch(str(before[name]))
            old = f", not {_json(before[name])}" if is_shown else ""
            changes.append(f"{names[name]} is {_own_text(new, judged)}{old}")
    return f"In the right call {excerpt('; '.join(changes), _MAX_CHANGE_CHARS)}."


def _own_text(value: Any, judged: Sequence[str]) -> str:
    """Return a new value as JSON; of one that repeats the judged words, only the other words."""
    texts, known = [*texts_in(value)], {*judged}
    words = split_words(text := "\n".join(texts))
    own = [word for word in words if word not in known]
    is_copied = len(words) - len(own) > max(len(own), 1) or repeats(text, Words(judged), Words())
    if not is_copied or _SHORT.fullmatch("".join(texts)):
        return _json(value)
    return f"reworded, with {_json(' '.join(own))}" if own else "reworded"


def _json(value: Any) -> str:
    return excerpt(json.dumps(value, ensure_ascii=False, default=str), _MAX_VALUE_CHARS)
