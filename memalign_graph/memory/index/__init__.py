"""Finding what is near: the vectors of texts, and the index derived from them.

- `retrieval_text`: the text that stands for an example.
- `vectors`: vectors as store items, and `VectorIndex`, what the memory uses.
- `rows`, `codes`: its matrix, and the 8-bit codes by which a large one is searched.
- `shared_lock`: many search at once, one changes.
"""
