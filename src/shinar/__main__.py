"""`python -m shinar`: the command line, where the `shinar` script is not on the path."""

import sys

from shinar.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
