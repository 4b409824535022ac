"""`python -m paramtool` is `paramtool`: the command, from its first import on."""

import os
import signal
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run a command.  Ctrl-C ends it with 130, also while its modules are imported, and no more once it has ended.

    SIGTERM ends it with 143 then, too: an exception in what Python calls at its end would be ignored.
    """
    try:
        from paramtool.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


if __name__ == "__main__":
    run()
