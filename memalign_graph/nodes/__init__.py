"""The nodes of the graphs: each an operation, and the function that makes it a node."""
