"""Programming tasks: a suite, its answers, and the sandbox that runs them."""
