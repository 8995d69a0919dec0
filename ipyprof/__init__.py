"""Profile a notebook cell on the GPU and say what holds its step back."""

from __future__ import annotations

__version__ = "0.1.0"
