"""Entry point of the command `penstock` and of `python -m penstock`."""

import os
import signal
import sys

from penstock import _penstock


def main() -> int:
    """Executes the command line of this process and returns the exit code."""
    # A process that ignores Ctrl-C keeps ignoring it; in any other process the command handles Ctrl-C instead of the interpreter.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Opens /dev/null in place of closed standard streams, so that no other file gets descriptors 0 to 2.
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    return _penstock.main(["penstock", *sys.argv[1:]], sys.executable or "", _penstock.__file__)


if __name__ == "__main__":
    sys.exit(main())
