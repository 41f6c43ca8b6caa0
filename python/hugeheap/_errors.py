"""The package's exception: what happened, a code for programs, a hint for people."""

from __future__ import annotations


class HugeheapError(ValueError):
    """A call that hugeheap refused.

    ``code`` names the mistake for programs, ``hint`` says what to do.
    """

    def __init__(self, message: str, code: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.code = code
        self.hint = hint
