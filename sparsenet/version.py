"""The library's version, the one place of it."""

__version__ = "0.1.0"
