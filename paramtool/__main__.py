"""`python -m paramtool` is `paramtool`: the command, from its first import on."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(__file__))
if "" in os.environ.get("PYTHONPATH", ROOT).split(os.pathsep) and os.path.exists(os.curdir):
    # as in `PYTHONPATH=$PYTHONPATH:/mine`, which means the current folder
    sys.path[:] = [one for one in sys.path if one == ROOT or one not in ("", os.getcwd())]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> "NoReturn":
    """Run a command.  Ctrl-C ends it with 130, also while its modules are imported, and no more once it has ended.

    SIGTERM ends it then, too, by the system: Python ignores exceptions, and calls no handler, while it ends.
    """
    import gc
    import signal

    gc.set_threshold(100_000)  # with the usual 700, a seventh of a short command's time is spent on what stays alive
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start threads, and nothing here uses them
    try:
        from paramtool.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    run()
