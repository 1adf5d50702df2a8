"""The contract suite runs against every row of tests/cases.py."""

from __future__ import annotations

from cases import case, embedded

__all__ = ["case", "embedded"]
