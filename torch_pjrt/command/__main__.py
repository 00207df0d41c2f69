"""`python -m torch_pjrt.command` is `torch-pjrt`."""

from . import run

run()
