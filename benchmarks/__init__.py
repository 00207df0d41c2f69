"""Benchmarks of torch-pjrt against its peers, each a ratio from one run; `python -m benchmarks.run`, see README.md."""
