"""Who runs the starts: this process, or Ray."""
