"""Finding what is near: the text that stands for an example, vectors, and the index of them."""
