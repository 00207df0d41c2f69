"""torch.compile for the device: each FX graph becomes one XLA program, through the lowerings that eager uses.

`backend.py` is what Dynamo calls; `graph.py` reads an FX graph's calling convention; `program.py` compiles it for
arguments that lie in memory in a given way; `evaluate.py` runs its nodes on JAX tracers; `content.py` says when two
graphs are one program, `shared.py` finds it. What Dynamo's import triggers is `registration.py`; nothing else
here is imported before a program compiles something.
"""
