"""Eager execution: what the C++ core asks of Python when it meets an op, a view or a trace for the first time."""
