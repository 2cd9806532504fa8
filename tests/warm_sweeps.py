"""Sweeps in forks, which start their runs by the forkserver of the process they are forks of.

A sweep's own forkserver imports torch for seconds before the first run.
"""

import time
from multiprocessing import forkserver, get_context

from mixdim.cli import main as cli
from mixdim.runs.sweeps import worker


def ready_forkserver():
    """Its process id. A sweep that is killed while it asks it for a process ends it."""
    while True:
        try:
            idle = get_context("forkserver").Process(target=time.sleep, args=(0,))
            worker._start_forkserver()
            idle.start()
            idle.join()
        except (OSError, EOFError):
            time.sleep(0.05)
        else:
            return forkserver._forkserver._forkserver_pid


def sweep_of_fork(arguments):
    """Run a command in a fork; its parent has a forkserver that is ready."""
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
    worker.get_temp_dir = lambda: "/nowhere"  # the folder of its socket is the parent's to remove
    return cli.run(arguments)
