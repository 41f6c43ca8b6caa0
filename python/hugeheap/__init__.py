"""hugeheap: a running CPython's small objects and large tables on huge pages.

Importing this package does nothing. ``enable()`` installs the hooks in the running process: what is allocated from
then on comes from hugeheap; what exists stays where it is and is freed by its old owner. A process started by
``hugeheap run`` has them already, and the functions here then speak of that runtime. ``system()``, ``process()``,
``heaps()``, ``collapse()`` and ``release()`` are for this host and any process.

    >>> import hugeheap
    >>> hugeheap.enable().hooked
    True
    >>> hugeheap.stats().live >= 0
    True
"""

from __future__ import annotations

from ._errors import HugeheapError
from ._heap import Stats, Status, configure, enable, give_back, stats, status
from ._native import native
from ._observe import (
    Collapsed,
    Heap,
    Limits,
    Pool,
    Process,
    Released,
    System,
    collapse,
    heaps,
    process,
    release,
    system,
)

__version__: str = native.__version__

__all__ = [
    "Collapsed",
    "Heap",
    "HugeheapError",
    "Limits",
    "Pool",
    "Process",
    "Released",
    "Stats",
    "Status",
    "System",
    "__version__",
    "collapse",
    "configure",
    "enable",
    "give_back",
    "heaps",
    "process",
    "release",
    "stats",
    "status",
    "system",
]
