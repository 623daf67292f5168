"""Judge a reply, learn from the expert's comment, and judge the next reply."""

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Criterion, create_review_graph
from memalign_graph.models import models_from_environment

model, embeddings = models_from_environment()
criterion = Criterion(
    name="support_tone", instructions="Is the reply appropriate for the customer?"
)
builder = create_review_graph(criterion, model=model, embeddings=embeddings)
store, checkpointer = InMemoryStore(), InMemorySaver()
graph = builder.compile(store=store, checkpointer=checkpointer)

first: RunnableConfig = {"configurable": {"thread_id": "1"}}
graph.invoke({"inputs": "My order never came.", "outputs": "Check the tracking page."}, first)
reply = {"value": False, "rationale": "Too cold: it must say sorry before anything else."}
print(graph.invoke(Command(resume=reply), first)["learned"])

second: RunnableConfig = {"configurable": {"thread_id": "2"}}
result = graph.invoke({"inputs": "The cup is broken.", "outputs": "Send a photo."}, second)
print(result["judgment"]["value"], "-", result["judgment"]["rationale"])
