"""Assertions about data: they make nothing, and the program that holds one runs for its sake."""

from __future__ import annotations

from jax import Array

from .check import require
from .registry import lower


@lower("_assert_async", "_assert_async.msg")
def assert_async(self: Array, assert_msg: str = "") -> tuple[()]:
    require(self != 0, _message(assert_msg))
    return ()


@lower("_functional_assert_async.msg")
def functional_assert_async(self: Array, assert_msg: str, dep_token: Array) -> Array:
    require(self != 0, _message(assert_msg))
    return dep_token


def _message(said: str) -> str:
    # The text is a format string for the offending value.
    return said.replace("{", "{{").replace("}", "}}") or "expected a tensor with only non-zero values"
