"""Tests that run the real SGLang on this machine's CPU; see docs/real-engine.md."""
