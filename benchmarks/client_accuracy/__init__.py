"""The measuring client against servers that know the truth, and against other clients."""
