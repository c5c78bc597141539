"""Imported by name, never used on CPU."""
