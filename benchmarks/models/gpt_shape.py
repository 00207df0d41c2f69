"""The GPT's shape, apart from `gpt.py` so that the JAX model can know it without importing torch."""

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 6, 6, 384, 65, 256
