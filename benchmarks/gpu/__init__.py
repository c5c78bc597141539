"""The product on a GPU against the full grid; see README.md beside this file."""
