"""Tunes the speculative decoding of SGLang servers, unattended, and proves what it measured."""

__all__ = ["__version__"]
__version__ = "0.1.0"
