"""Where the ``fa-numba`` command starts: outside the package, which chooses its device when it is imported."""

import sys


def main() -> int:
    """Run the command; say in one line, and return 2, if a variable asks for a device that is none."""
    try:
        from fa_numba.__main__ import main
    except ValueError as problem:
        print(f"fa-numba: {problem}", file=sys.stderr)
        return 2
    return main()
