"""`python -m ponytail` and the `ponytail` script: hands over to the command line."""

from __future__ import annotations

import sys

from ponytail.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
