"""The extension module, or a stand-in with the same functions where it must not be loaded.

The module is built for the stable ABI of CPython with a GIL. A free-threaded interpreter would load the file and crash
(its objects are laid out differently), another implementation could not load it; neither has arenas to put on huge
pages. There the stand-in answers why nothing is hooked, and every number is 0.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn, Protocol, cast

from ._errors import HugeheapError


class Native(Protocol):
    """What the package needs of the extension module; see ``_hugeheap.pyi``."""

    __version__: str
    POLICIES: list[str]
    LEVELS: list[str]

    def environment_mistake(self) -> str | None: ...
    def bytes_of(self, text: str) -> int: ...
    def enable(
        self, policy: str | None, decay: float | None, limit: int | None, level: str | None, merge: bool | None
    ) -> str: ...
    def configure(
        self, policy: str | None, decay: float | None, limit: int | None, merge: bool | None
    ) -> None: ...
    def give_back(self) -> int: ...
    def stats(self, measure: bool) -> dict[str, Any]: ...
    def status(self) -> dict[str, str]: ...
    def hint(self, reason: str) -> str | None: ...
    def system(self) -> dict[str, Any]: ...
    def process(self, pid: int, budget: float) -> dict[str, Any]: ...
    def heaps(self, budget: float) -> list[dict[str, Any]]: ...
    def collapse(
        self, pid: int, min_density: float, max_growth: int | None, budget: float, dry_run: bool
    ) -> dict[str, Any]: ...
    def release(self, pid: int, budget: float, dry_run: bool) -> dict[str, Any]: ...


class StandIn:
    """Answers why this interpreter has nothing to hook."""

    POLICIES = ["auto", "thp", "dense", "hugetlb", "base"]
    LEVELS = ["arenas", "objects", "malloc"]

    def __init__(self, state: str, explanation: str) -> None:
        self._status = {
            "state": state,
            "explanation": explanation,
            "level": "arenas",
            "policy": "auto",
            "effective_policy": "auto",
            "python": sys.version.replace("\n", " "),
        }

    @property
    def __version__(self) -> str:
        # Only here, because it reads the installed package's files.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("hugeheap")
        except PackageNotFoundError:
            return "unknown"

    def environment_mistake(self) -> str | None:
        return None

    def bytes_of(self, text: str) -> int:
        # Nothing here is limited.
        return 0

    def enable(
        self, policy: str | None, decay: float | None, limit: int | None, level: str | None, merge: bool | None
    ) -> str:
        return self._status["state"]

    def configure(
        self, policy: str | None, decay: float | None, limit: int | None, merge: bool | None
    ) -> None:
        pass

    def give_back(self) -> int:
        return 0

    def stats(self, measure: bool) -> dict[str, Any]:
        from ._heap import Stats

        return {name: 0 for name in Stats.__dataclass_fields__} | {"fallbacks": {}}

    def status(self) -> dict[str, str]:
        return dict(self._status)

    def hint(self, reason: str) -> str | None:
        return None

    def _refuse(self) -> NoReturn:
        raise HugeheapError(
            "this interpreter cannot load the extension module", "unsupported", "use the command hugeheap --json"
        )

    def system(self) -> dict[str, Any]:
        self._refuse()

    def process(self, pid: int, budget: float) -> dict[str, Any]:
        self._refuse()

    def heaps(self, budget: float) -> list[dict[str, Any]]:
        self._refuse()

    def collapse(
        self, pid: int, min_density: float, max_growth: int | None, budget: float, dry_run: bool
    ) -> dict[str, Any]:
        self._refuse()

    def release(self, pid: int, budget: float, dry_run: bool) -> dict[str, Any]:
        self._refuse()


def _load() -> Native:
    if sys.implementation.name != "cpython":
        found = sys.implementation.name
        return cast(Native, StandIn("not_python", f"nothing was hooked: {found} is not CPython and has no arenas"))
    # The letter of a free-threaded build; `sys._is_gil_enabled` says whether the GIL is on, which does not matter here.
    if "t" in sys.abiflags:
        return cast(
            Native,
            StandIn(
                "free_threaded",
                "nothing was hooked: free-threaded CPython keeps its objects in its own mimalloc, not in arenas",
            ),
        )
    from . import _hugeheap

    return cast(Native, _hugeheap)


native = _load()
