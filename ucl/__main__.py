"""`python -m ucl`: the command `ucl`."""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        # `python -m` puts the working folder first, where a random.py would be imported instead of Python's own.
        sys.path.append(sys.path.pop(0))
    from ucl.cli.main import main

    sys.exit(main())
