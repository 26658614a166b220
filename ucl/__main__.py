"""`python -m ucl`: the command `ucl`, of this very Python."""

import sys

from ucl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
