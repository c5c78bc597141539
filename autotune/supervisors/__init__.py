"""One service on one host: the protocol, and both that keep it."""
