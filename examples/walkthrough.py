"""From an agent to a judge, three experts' answers, an evaluation and a gate.

docs/walkthrough.md explains each step. It needs the extras `local` and `evaluation`.
"""

from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from memalign_graph import (
    Criterion,
    JudgeMemory,
    add_quality_gate,
    create_feedback_graph,
    create_judge_graph,
)
from memalign_graph.evaluation import evaluate
from memalign_graph.local import open_local_store
from memalign_graph.models import models_from_environment

# 1. The agent
COMPLAINTS = ("My order never came.", "The cup arrived broken.", "My bill is wrong.")
QUESTIONS = ("When do you open?", "Do you ship to Norway?", "Is the lamp in stock?")


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer a customer. Your agent goes here."""
    first, last = state["messages"][0].text, state["messages"][-1].text
    if "did not pass" in last:  # the gate sent the answer back with a critique
        text = "I am sorry! We will put it right today."
    elif first in QUESTIONS:
        text = "Yes, or at nine: see our site for more."
    else:
        text = "Please fill in the form on our site."
    return {"messages": [AIMessage(text)]}


agent = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()

# 2. The judge
criterion = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
model, embeddings = models_from_environment()
models: Any = {"model": model, "embeddings": embeddings}
closing = ExitStack()
store = closing.enter_context(open_local_store("walkthrough.db"))
judge = create_judge_graph(criterion, keep_judgments=timedelta(days=30), **models).compile(
    store=store
)
for request in COMPLAINTS + QUESTIONS:
    messages: Any = {"messages": [("human", request)]}
    reply = agent.invoke(messages)["messages"][-1].text
    judgment = judge.invoke({"inputs": request, "outputs": reply})["judgment"]
    print(f"{judgment['value']!s:5}  {request}  {reply}")

# 3. The review queue
memory = JudgeMemory(store, criterion, embeddings=embeddings, model=model)
waiting = memory.judgments(waiting=True)
print(len(waiting), "judgments wait for an expert")

# 4. Three experts answer
feedback_graph = create_feedback_graph(criterion, **models).compile(store=store)
RULE = "When something went wrong for the customer, the reply must say sorry first."
experts = ("ann", "bob", "cem")
for number, kept in enumerate(waiting):
    if kept.example.inputs in COMPLAINTS:
        correction = {"value": False, "rationale": RULE}
    else:
        correction = {"value": True}
    correction["author"] = experts[number % 3]
    feedback_graph.invoke({"judgment_id": kept.judgment.id, "reply": correction})
second_opinion = {"value": False, "rationale": RULE, "author": "cem"}
feedback_graph.invoke({"judgment_id": waiting[0].judgment.id, "reply": second_opinion})
for guideline in memory.guidelines():
    print(guideline.text)

# 5. The evaluation
good_replies = [
    {"inputs": request, "outputs": "I am sorry! We will put it right today.", "value": True}
    for request in COMPLAINTS
]
fields = {"example", "value", "rationale", "author"}
labels = [episode.model_dump(include=fields) for episode in memory.episodes()]
report = evaluate(
    criterion,
    [*labels, *good_replies],
    folds=3,
    group_by="inputs",
    cache="evaluation.db",
    progress=False,
    **models,
)
for name in ("majority", "base", "aligned"):
    print(f"{name:8}  agreement {report.metric(name, 'agreement').value:.2f}")
report.save("report.html")

# 6. The gate
builder = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
add_quality_gate(builder, criterion, after="answer", revise="answer", max_revisions=1, **models)
gated_agent = builder.compile(store=store)
new_request: Any = {"messages": [("human", "The lamp is dark.")]}
result = gated_agent.invoke(new_request)
print(result["quality_gate"]["status"], "after", result["quality_gate"]["revisions"], "revision")
print(result["messages"][-1].text)
closing.close()
