"""torch-pjrt: one native PyTorch device backend for every chip with a PJRT plugin."""
