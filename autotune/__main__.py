"""`python -m autotune`: the command line without the installed script."""

from autotune.cli import main

if __name__ == "__main__":
    main()
