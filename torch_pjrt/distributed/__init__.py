"""torch.distributed on the device: a process group whose collectives are XLA programs over the processes' devices."""
