"""The command line: parse, call one function, print.  One module per command.

Heavy modules are imported inside the commands, so that `autotune --help` stays quick.
"""

from autotune.cli.app import main

__all__ = ["main"]
