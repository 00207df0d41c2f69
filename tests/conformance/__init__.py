"""Conformance: PyTorch's own operator, module and optimizer databases, run on the device and held against CPU PyTorch.

Run `python -m tests.conformance --help`, or `make conformance`. The published result is `docs/coverage.md`.
"""
