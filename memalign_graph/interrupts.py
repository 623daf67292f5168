"""Questions to experts: the payload of an interrupt, and the parser of the reply.

A payload is langchain's `HITLRequest`, which inboxes show as a form; other clients get plain JSON.
Approve confirms and edit corrects. Reject and respond give a comment without a value, since the
opposite is never inferred. Ignore stores nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from langgraph.types import interrupt
from pydantic import (
    ConfigDict,
    PlainValidator,
    RootModel,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)

from memalign_graph.alignment.report import Conflict, ConflictSide
from memalign_graph.errors import excerpt, visible
from memalign_graph.identity import check_json
from memalign_graph.prompts.fences import as_text, headline
from memalign_graph.types import (
    Criterion,
    Episode,
    Example,
    Feedback,
    GivenAt,
    Guideline,
    Judgment,
    ReviewReason,
)

T = TypeVar("T")

_DECISIONS = ("approve", "edit", "reject", "respond")
_INBOX_DECISIONS = {"accept": "approve", "response": "respond"}
_MAX_SHOWN_CHARS = 4_000
CASE_KEYWORD = "x-case"
"""The keyword in a reply's JSON Schema that holds the case: see `case_payload`."""
_BLOCK = re.compile(
    r"(?m)^([ \t]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+|>[ \t]*)*)(?=#|~~~|(?:=+|-+)[ \t]*$)"
)
"""Where a heading or a fence begins, also in a list or a quotation."""


class _Answer(RootModel[Any]):
    model_config = ConfigDict(hide_input_in_errors=True)


@dataclass(frozen=True)
class Form(Generic[T]):
    """A question to an expert."""

    action: str
    actions: Sequence[tuple[Mapping[str, Any], Sequence[str]]]
    """The `args` and the paragraphs of the description of each action of that name."""
    title: str
    description: str
    properties: Mapping[str, Any]  # the JSON Schema of each field of a reply
    case: Mapping[str, Any]  # what the question is about, as `case_payload`
    read: Callable[[Any], T]  # parses a reply; raises ValueError with the accepted replies
    decisions: Sequence[str] = _DECISIONS  # what inboxes offer
    required: Sequence[str] = ()
    args_schema: Mapping[str, Any] | None = None
    """The JSON Schema of each argument; None where the arguments are fields of the reply."""

    @property
    def payload(self) -> dict[str, Any]:
        names = dict.fromkeys(name for args, _ in self.actions for name in args)
        schemas = self.args_schema or {name: self.properties[name] for name in names}
        config = {
            "action_name": self.action,
            "allowed_decisions": list(self.decisions),
            "args_schema": {"type": "object", "properties": dict(schemas)},
        }
        requests = [
            {"name": self.action, "args": args, "description": "\n\n".join(parts)}
            for args, parts in self.actions
        ]
        return {"action_requests": requests, "review_configs": [config]}

    @property
    def schema(self) -> type[RootModel[Any]]:
        """The model that validates a reply; its root is the parsed reply."""
        reply = {
            "title": self.title,
            "description": self.description,
            "type": "object",
            "properties": self.properties,
            **({"required": self.required} if self.required else {}),
            CASE_KEYWORD: self.case,
        }
        root = Annotated[Any, PlainValidator(self.read), WithJsonSchema(reply)]
        return create_model(f"the {self.title}", __base__=_Answer, root=root)

    def ask(self, namespace: Sequence[str]) -> T:
        """Raise the interrupt, with the memory's namespace in its case; return the parsed reply."""
        own = replace(self, case={**self.case, "namespace": [*namespace]})
        answer: RootModel[T] = interrupt(self.payload, response_schema=own.schema)
        return answer.root


class Reply(NamedTuple):
    """An expert's reply to one action, from any client."""

    kind: str  # `text`, `object`, or a decision: approve, edit, reject, respond or ignore
    content: Any  # the text or the fields; unvalidated
    judgment_ids: Sequence[Any]  # all in the reply, whichever part has them; unvalidated
    author: Any  # unvalidated

    def edited(self) -> dict[str, Any]:
        if isinstance(self.content, dict):
            return self.content
        raise ValueError("an edit needs the edited arguments: an object with the form's fields.")


def parse_replies(reply: Any, shapes: str) -> list[Reply]:
    """Parse a reply of any shape: text, an object, or decisions as inboxes write and wrap them."""
    reply = _from_json_text(reply)
    wrapper: Mapping[str, Any] = {}
    if isinstance(reply, dict) and "decisions" in reply:
        wrapper, reply = reply, reply["decisions"]
        if not isinstance(reply, list) and not (isinstance(reply, dict) and "type" in reply):
            raise ValueError(f"`decisions` is a list of decisions: {shapes}.")
    items = reply if isinstance(reply, list) else [reply]
    return [_parse_item(item, wrapper, shapes) for item in items]


def _from_json_text(reply: Any) -> Any:
    """Parse a JSON object, or a list of them, that a client sent as text."""
    if not isinstance(reply, str) or not reply.lstrip().startswith(("{", "[")):
        return reply
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        return reply
    return value if isinstance(value, dict) or (value and isinstance(value[0], dict)) else reply


def _parse_item(reply: Any, wrapper: Mapping[str, Any], shapes: str) -> Reply:
    if isinstance(reply, str):
        return _new_reply("text", reply, wrapper)
    if not isinstance(reply, dict):
        raise ValueError(f"a reply of type {type(reply).__name__} is not understood: {shapes}.")
    if "type" not in reply:
        return _new_reply("object", reply, wrapper, reply)
    decision = reply["type"]
    kind = _INBOX_DECISIONS.get(str(decision), decision)
    if kind not in (*_DECISIONS, "ignore"):
        raise ValueError(f"the decision {decision!r} is not known: {shapes}.")
    args = action = reply.get("edited_action", reply.get("args"))
    if isinstance(action, dict) and isinstance(action.get("args"), dict):
        args = action["args"]
    content = args if kind == "edit" else reply.get("message")
    if kind in ("reject", "respond"):
        content = content or reply.get("args")
    return _new_reply(kind, content, wrapper, reply, action, args)


def _new_reply(kind: str, content: Any, *parts: Any) -> Reply:
    """Return a reply with the judgments that its parts name; the author in the last part counts."""
    fields = [part for part in parts if isinstance(part, dict)]
    ids = [part[JUDGMENT_ID] for part in fields if part.get(JUDGMENT_ID) is not None]
    authors = [part["author"] for part in fields if part.get("author")]
    return Reply(kind, content, ids, authors[-1] if authors else None)


def parse_answer(reply: Any, shapes: str, pending_id: str | None) -> Reply:
    """Parse one reply, without its judgment's id; a `ValueError` if it names another judgment."""
    replies = parse_replies(reply, shapes)
    if len(replies) != 1:
        raise ValueError(f"the reply has {len(replies)} decisions: send one.")
    [parsed] = replies
    if others := [named for named in parsed.judgment_ids if named != pending_id]:
        raise ValueError(
            f"`{JUDGMENT_ID}`: the answer is to the judgment {others[0]!r}, but the pending one is "
            f"{pending_id or 'none'}. Open the case again."
        )
    if not isinstance(parsed.content, dict):
        return parsed
    fields = {name: part for name, part in parsed.content.items() if name != JUDGMENT_ID}
    return parsed._replace(content=fields)


def case_payload(
    kind: Literal["review", "panel", "question", "conflicts"],
    criteria: Iterable[Criterion],
    example: Example | None = None,
    judgments: Iterable[Judgment] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return what a question is about, as JSON; criteria and judgments by the criterion's name."""
    return {
        "kind": kind,
        "criteria": {criterion.name: criterion.model_dump(mode="json") for criterion in criteria},
        "example": None if example is None else example.to_json(),
        "judgments": {judgment.criterion: judgment.to_json() for judgment in judgments},
        **more,
    }


AUTHOR_SCHEMA = {"type": "string", "description": "Who you are."}
JUDGMENT_ID = "judgment_id"
"""The field of a review's form and reply that identifies the judgment."""
RATIONALE_SCHEMA = {"type": "string", "description": "Why, in your own words."}
_VALUE_DESCRIPTION = "What the value should be."


def judgment_id_schema(judgment_id: str) -> dict[str, Any]:
    text = "The judgment that is answered. Do not change it: an answer to another one is refused."
    return {"type": "string", "const": judgment_id, "description": text}


_REVIEW_SHAPES = (
    "reply with text, with an object that has `value`, `rationale` or both, or with a decision "
    "(approve, edit, reject, respond)"
)
REASONS: Mapping[ReviewReason, str] = {
    "too_little_feedback": "there is too little feedback yet to know how often the judge is right",
    "unsure": "the judge is not confident enough",
    "no_similar_episode": "the memory holds no similar case",
    "episodes_disagree": "experts disagree on the most similar cases",
    "sample": "it was drawn at random, to check whether the judge is still right",
    "no_budget": "the day's budget for other questions is used up",
    "always_ask": "a person is always asked about such calls",
    "untrusted_text": "it repeats an address, an amount or an identifier that a tool returned and "
    "the user did not write",
    "judged_wrong": "the judge says that the call is wrong",
    "refused_before": "another call of this tool was refused since the user's last message",
    "too_long": "it is too long, with its conversation, for the judge to read all of it",
}


def review_form(
    criterion: Criterion,
    example: Example,
    judgment: Judgment,
    *,
    guidelines: Sequence[Guideline] = (),
    episodes: Sequence[Episode] = (),
    was_shown: bool = True,
) -> Form[dict[str, Any] | None]:
    """Ask whether a judgment is right; a reply is parsed to the fields of a `Feedback`, or None.

    With `was_shown=False` the expert has not seen this judgment, and a reply can't decide on it.
    """
    scale, show = criterion.scale, criterion.scale.show
    seen = judgment if was_shown else None
    form_values = {
        "value": judgment.value,
        "rationale": judgment.rationale,
        JUDGMENT_ID: judgment.id,
    }
    parts = [
        f"## {criterion.name}",
        criterion.instructions.strip(),
        *describe_example(example),
        f"### The judge says: {show(judgment.verdict)}\n\n{escape(judgment.rationale)}",
    ]
    if judgment.evidence is not None and judgment.value != judgment.verdict:
        parts.append(
            f"### The evidence says: {show(judgment.value)}\n\nYou are asked about this value. It "
            "weighs the judge's verdict against the experts' values of the "
            f"{len(judgment.evidence.neighbours)} most similar cases."
        )
    if judgment.confidence is not None:
        count = judgment.calibrated_on
        basis = "not calibrated yet" if count is None else f"calibrated on {count} cases"
        parts.append(f"Confidence: {judgment.confidence:.0%} ({basis}).")
    if judgment.review is not None and judgment.review.reasons:
        reasons = "; ".join(REASONS[reason] for reason in judgment.review.reasons)
        parts.append(f"You are asked because {reasons}.")
    lists = {
        "Guidelines it was given": list(map(_format_guideline, guidelines)),
        "Earlier cases it was shown": [_format_episode(episode, criterion) for episode in episodes],
        "Note": list(map(escape, judgment.warnings)),
    }
    parts += [f"### {heading}\n\n{bullets(lines)}" for heading, lines in lists.items() if lines]
    parts.append(f"Is that right? The value is {scale.describe()}")
    return Form(
        action="review_judgment",
        actions=[(form_values, parts)],
        title="review",
        description="What the value should be, why, or both. Text alone is a rationale. Decisions "
        "of human-in-the-loop inboxes work, too.",
        properties={
            "value": {"description": _VALUE_DESCRIPTION, **scale.value_schema()},
            "rationale": RATIONALE_SCHEMA,
            "author": AUTHOR_SCHEMA,
            JUDGMENT_ID: judgment_id_schema(judgment.id),
        },
        case=case_payload("review", [criterion], example, [judgment]),
        read=lambda reply: parse_review(reply, criterion, seen, NOT_SEEN),
    )


def _format_guideline(guideline: Guideline) -> str:
    text, worth = escape(guideline.text), guideline.worth
    if worth is None:
        return text
    return f"{text} (tells good from bad {worth.auc:.0%} of the time, on {worth.cases} cases)"


NOT_SEEN = (
    "the judgment that was shown was not saved, and the case was judged again when the run was "
    "resumed"
)
"""As in a graph that is compiled with `checkpointer=False` inside another."""


def parse_review(
    reply: Any,
    criterion: Criterion,
    judgment: Judgment | None,
    why_none: str = "there is no judgment to decide on",
) -> dict[str, Any] | None:
    """Parse a reply to a review as the fields of a `Feedback`; None if it was ignored.

    Without a judgment a reply is a value or a comment on the case; `why_none` gives the reason.
    """
    parsed = parse_answer(reply, _REVIEW_SHAPES, None if judgment is None else judgment.id)
    if judgment is None and parsed.kind not in ("text", "object", "ignore"):
        raise ValueError(f"{why_none}: give a `value`, a `rationale` or both.")
    shown = {"value": judgment.value, "rationale": judgment.rationale} if judgment else {}
    return _read_feedback(parsed, criterion, shown, _REVIEW_SHAPES)


def _read_feedback(
    parsed: Reply, criterion: Criterion, shown: Mapping[str, Any], shapes: str
) -> dict[str, Any] | None:
    """Return the fields of a `Feedback` in a reply to a form that shows some of them."""
    match parsed.kind:
        case "ignore":
            return None
        case "object":
            fields = parsed.content
        case "approve":
            fields = {**shown, "rationale": parsed.content}
        case "edit":
            fields = {**shown, **parsed.edited()}
            if str(fields["rationale"] or "").split() == shown["rationale"].split():
                fields["rationale"] = None
        case _:
            fields = {"rationale": parsed.content}
    read = _read_fields({**fields, "author": parsed.author}, criterion, shapes)
    said, seen, value = (repr(part.get("value")) for part in (fields, shown, read))
    # An approval of 1 as the lowest of five grades is no approval of true.
    if parsed.kind in ("approve", "edit") and said == seen != value:
        raise ValueError(f"`value`: the scale was changed after {seen} was shown. Give a `value`.")
    return read


def _read_fields(fields: Mapping[str, Any], criterion: Criterion, shapes: str) -> dict[str, Any]:
    texts = ("rationale", "author", "id", "given_at")
    if unknown := ", ".join(repr(name) for name in fields if name not in ("value", *texts)):
        raise ValueError(f"the reply has unknown fields ({unknown}): {shapes}.")
    read: dict[str, Any] = {}
    if fields.get("value") is not None:
        try:
            read["value"] = criterion.scale.validate_value(fields["value"])
        except ValueError as error:
            raise ValueError(f"`value`: {error}") from error
    read |= {name: text for name in texts if (text := parse_text(fields.get(name), name))}
    if "value" not in read and "rationale" not in read:
        raise ValueError(f"the reply has neither a value nor a rationale: {shapes}.")
    if "given_at" in read:
        try:
            read["given_at"] = TypeAdapter(GivenAt).validate_python(read["given_at"])
        except ValueError as error:
            raise ValueError("`given_at` is not a date, such as 2026-05-31T10:00Z.") from error
    return read


def parse_text(text: Any, name: str) -> str | None:
    if text is not None and not isinstance(text, str):
        raise ValueError(f"`{name}` must be text, not {type(text).__name__}.")
    check_json(text, f"`{name}`")
    return text.strip() if text else None


def _format_episode(episode: Episode, criterion: Criterion) -> str:
    value = "no value" if episode.value is None else criterion.scale.show(episode.value)
    rationale = excerpt(" ".join((episode.rationale or "").split()), 160)
    outputs = visible(headline(episode.example.outputs, 160))
    comment = f": {escape(rationale)}" if rationale else ""
    ticks = _fence(outputs)
    return f"{ticks} {outputs} {ticks} (expert: {value}{comment})"


_WHY_ASKED = (
    "A model asks this, because the comment names nothing yet that a judge could look for in "
    "another case. Approve to continue without an answer."
)
_GO_ON = "approve to continue without an answer"
_CLARIFY_SHAPES = (
    "reply with text, with an object that has `rationale`, `value` or both, or with a decision "
    f"(respond, edit, reject, or {_GO_ON})"
)


def clarify_form(criterion: Criterion, feedback: Feedback, question: str) -> Form[dict[str, Any]]:
    """Ask what an expert's comment means; `merge_clarification` adds the answer to the comment."""
    answer = {"type": "string", "description": "Your answer, in your own words."}
    value = {"description": _VALUE_DESCRIPTION, **criterion.scale.value_schema()}
    show, judgment = criterion.scale.show, feedback.judgment
    parts = [
        f"## {criterion.name}: a question back",
        _WHY_ASKED,
        "### Question",
        escape(question),
        "### The expert said" + ("" if feedback.value is None else f": {show(feedback.value)}"),
        show_block(feedback.rationale),
        *describe_example(feedback.example),
    ]
    if judgment is not None:
        parts += [f"### The judge said: {show(judgment.value)}", escape(judgment.rationale)]
    return Form(
        action="clarify_feedback",
        actions=[({"rationale": ""}, parts)],
        title="clarification",
        description="The answer to the question; text alone works, too. Decisions of "
        "human-in-the-loop inboxes work: approve continues without an answer.",
        properties={"rationale": answer, "value": value, "author": AUTHOR_SCHEMA},
        case=case_payload(
            "question",
            [criterion],
            feedback.example,
            [judgment] if judgment else [],
            asked=[question],
            said=feedback.model_dump(mode="json", include={"value", "rationale", "author"}),
        ),
        read=lambda reply: _read_answer(reply, criterion, feedback),
    )


def _read_answer(reply: Any, criterion: Criterion, feedback: Feedback) -> dict[str, Any]:
    parsed = parse_answer(reply, _CLARIFY_SHAPES, None)
    if parsed.kind == "approve" and not parsed.content:
        return {}
    answer = _read_feedback(parsed, criterion, {"rationale": ""}, _CLARIFY_SHAPES) or {}
    if feedback.author is not None and answer.get("author", feedback.author) != feedback.author:
        raise ValueError(
            f"`author`: {feedback.author!r} wrote this comment and is asked what it means. Leave "
            f"`author` out, or {_GO_ON}; another expert's answer needs a review of its own."
        )
    return answer


_CHOICES = ("first", "second", "both")
_CONFLICT_SHAPES = (
    "reply with an object that says for each conflict which guideline stays (first, second or "
    "both), with 'newer' to keep the newer one of each, or with one decision a conflict (approve, "
    "edit, reject)"
)


def conflict_form(criterion: Criterion, conflicts: Sequence[Conflict]) -> Form[dict[str, str]]:
    """Ask which of two guidelines stays; a reply is parsed to a choice by the id of a conflict."""
    choice = {"type": "string", "enum": list(_CHOICES)}
    newer_by_id = {conflict.id: conflict.newer for conflict in conflicts}
    return Form(
        action="settle_conflict",
        actions=[
            ({"conflict": conflict.id, "keep": conflict.newer}, _describe(criterion, conflict))
            for conflict in conflicts
        ],
        args_schema={"conflict": {"type": "string"}, "keep": choice},
        title="decisions",
        description="For each conflict, which guideline stays.",
        properties={name: {**choice, "default": newer} for name, newer in newer_by_id.items()},
        required=list(newer_by_id),
        case=case_payload(
            "conflicts", [criterion], conflicts=[conflict.model_dump() for conflict in conflicts]
        ),
        read=lambda reply: _read_choices(reply, newer_by_id),
        decisions=("approve", "edit", "reject"),
    )


def _read_choices(reply: Any, newer: Mapping[str, str]) -> dict[str, str]:
    replies = parse_replies(reply, _CONFLICT_SHAPES)
    match replies:
        case [Reply(kind="text", content=choice)]:
            choices = dict.fromkeys(newer, choice)
        case [Reply(kind="object", content=fields)]:
            choices = fields
        case _:
            # One decision too many or too few leaves open which conflict each is about.
            choices = dict(zip(newer, replies, strict=True)) if len(replies) == len(newer) else {}
    if choices.keys() != newer.keys():
        names = ", ".join(newer)
        raise ValueError(f"decide on {names}, each once and nothing else: {_CONFLICT_SHAPES}.")
    return {name: _choice(choices[name], name, newer[name]) for name in newer}


def _choice(reply: Any, name: str, newer: str) -> str:
    choice = reply
    match reply:
        case Reply(kind="approve"):
            return newer
        case Reply(kind="ignore" | "reject"):
            return "both"
        case Reply(kind="edit", content={"keep": keep, **rest}):
            choice = keep if rest.get("conflict", name) == name else None
    choice = choice.strip().casefold() if isinstance(choice, str) else None
    if choice == "newer":
        return newer
    if choice not in _CHOICES:
        raise ValueError(f"the decision on {name} is not understood: {_CONFLICT_SHAPES}.")
    return choice


def _describe(criterion: Criterion, conflict: Conflict) -> list[str]:
    newer = conflict.first if conflict.newer == "first" else conflict.second
    return [
        f"## {criterion.name}: two guidelines contradict each other",
        _side("First", conflict.first),
        _side("Second", conflict.second),
        f"The newer feedback supports: {escape(newer.text)}",
        "Which stays? `first`, `second` or `both`.",
    ]


def _side(title: str, side: ConflictSide) -> str:
    number = len(side.episode_ids)
    source = f"{number} piece(s) of feedback" if number else "an expert's edit"
    guideline = f"**{title}** (from {source}): {escape(side.text)}"
    return "\n".join([guideline, *(f"- {escape(comment)}" for comment in side.said)])


def describe_example(example: Example) -> list[str]:
    sections = {"Inputs": example.inputs, "Outputs": example.outputs}
    if example.reference_outputs is not None:
        sections["Reference outputs"] = example.reference_outputs
    return [f"### {heading}\n\n{show_block(value)}" for heading, value in sections.items()]


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def escape(text: str) -> str:
    """Escape what Markdown would render as a link, a picture, a tag, a heading or a fence."""
    lines = visible(text).replace("\r\n", "\n").replace("\r", "\n")
    harmless = lines.replace("\\", "\\\\").replace("[", "\\[").replace("<", "&lt;")
    return _BLOCK.sub(r"\1\\", harmless.replace("`", "'"))


def show_block(value: Any) -> str:
    text = as_text(value, _MAX_SHOWN_CHARS)
    if len(text) > _MAX_SHOWN_CHARS:
        text = f"{text[:_MAX_SHOWN_CHARS]}\n[... {len(text) - _MAX_SHOWN_CHARS:,} more characters]"
    ticks = _fence(text, at_least=3)
    return f"{ticks}\n{visible(text)}\n{ticks}"


def _fence(text: str, at_least: int = 1) -> str:
    # A fence longer than any in the text can't be closed by the text.
    return max(["`" * at_least, *(f"{run}`" for run in re.findall("`+", text))], key=len)
