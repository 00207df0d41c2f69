"""A module of another package is changed when the program imports it, whoever has looked for it before."""

from __future__ import annotations

from ..process import output


def test_looking_for_a_module_does_not_lose_what_is_to_happen_to_it() -> None:
    said = output(
        """
        import importlib.util, torch
        print(importlib.util.find_spec("safetensors") is not None)
        import safetensors
        print(hasattr(safetensors.safe_open, "__wrapped__"))
        """
    )
    assert said.split() == ["True", "True"]
