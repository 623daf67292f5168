"""Many criteria on one example: a data agent's notebook, graded from 1 to 3 on nine of them.

They are judged concurrently, each with its own memory. The expert gets one form for all criteria
and corrects what is wrong.
"""

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from memalign_graph import Aggregate, Criterion, Numeric, create_panel_graph
from memalign_graph.models import models_from_environment

ASPECTS = {
    "library_installation": "Are the libraries that the notebook needs installed, and no others?",
    "exploratory_analysis": "Does the notebook look at the data before it models them?",
    "data_imputation": "Are missing values found, and filled in a way that fits the column?",
    "feature_engineering": "Are the features made without a look at the test rows?",
    "model_training": "Is a model trained on the training rows alone?",
    "model_use": "Is the trained model used to predict the rows that were asked for?",
    "metrics": "Is the result measured with a metric that fits the task?",
    "plots": "Do the plots have titles and axis labels?",
    "explanation": "Is each step explained in a sentence?",
}
NOTEBOOK = {
    "inputs": "Predict the price of the houses in test.csv from train.csv.",
    "outputs": """\
!pip install pandas scikit-learn
train = pd.read_csv("train.csv").fillna(0)
model = LinearRegression().fit(train[["rooms", "area"]], train["price"])
print(model.score(train[["rooms", "area"]], train["price"]))
""",
}


def main() -> None:
    """Grade one notebook, and let an expert correct two of the grades."""
    model, embeddings = models_from_environment()
    scale = Numeric(minimum=1, maximum=3, integer=True)
    criteria = [
        Criterion(name=name, instructions=f"{question} From 1 (no) to 3 (yes).", scale=scale)
        for name, question in ASPECTS.items()
    ]
    graph = create_panel_graph(
        criteria,
        model=model,
        embeddings=embeddings,
        review="always",
        aggregate=Aggregate(weights={"model_training": 2}, vetoes={"metrics": 2}, passes=0.6),
    ).compile(store=InMemoryStore(), checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "notebook-1"}}
    result = graph.invoke(NOTEBOOK, thread)
    for name, judgment in result["judgments"].items():
        print(f"{name}: {judgment['value']} - {judgment['rationale']}")
    corrected = {
        "data_imputation": {"value": 1, "rationale": "Zeros for all columns are no imputation."},
        "metrics": {"value": 1, "rationale": "Scored on the rows it was trained on."},
        "author": "ann",
    }
    result = graph.invoke(Command(resume=corrected), thread)
    print("\nLearned:")
    for name, learned in result["learned"].items():
        print(f"- {name}: {[change['text'] for change in learned['guidelines']]}")
    whole = result["aggregate"]
    print(f"\nScore {whole['score']:.2f}, passed: {whole['passed']}, veto: {whole['vetoed_by']}")


if __name__ == "__main__":
    main()
