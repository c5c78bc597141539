"""Ways to search compared on simulated surfaces: `python -m benchmarks.search`."""
