"""Imported once by the server that forks the workers, because PyTorch's databases take seconds to import.

JAX must not start here.
"""

from .units import DATABASES, entries

for database in DATABASES:
    entries(database)
