"""PJRT through jaxlib: the only place that touches clients, buffers and executables."""
