"""What `langgraph.json` serves under `/review`: the page for the criteria of `studio`."""

from memalign_graph import studio
from memalign_graph.review import ReviewQueue, create_review_app

app = create_review_app(ReviewQueue(studio.judges), served=True)
