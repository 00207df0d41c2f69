"""ATen -> JAX, one small function per op: the only place that knows what an op means.

Nothing here knows of devices, traces or Dynamo: eager traces, compiled graphs and exports all come through `apply`.
"""

from .apply import Spec, apply, find, load

__all__ = ["Spec", "apply", "find", "load"]
