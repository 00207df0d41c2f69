"""BERT-base's shape, apart from `bert.py` so that the JAX model can know it without importing torch."""

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT, SEGMENTS = 12, 12, 768, 30522, 512, 2
EPS = 1e-12  # of its layer norms
