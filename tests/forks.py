"""Processes to be killed, started in milliseconds: forks of one that has imported everything already.

The parent must have no threads of its own when it forks, so it imports and does nothing else. (Those
that polars starts when it is imported only keep house; a sweep's forkserver has them too.)
"""

import os
import signal
import sys
import time
import traceback

import usual_signals


class Fork:
    """A process that does some work, which returns its exit code, in a process group of its own."""

    def __init__(self, work, log):
        self.code = None  # as subprocess has it: -9 of a process that SIGKILL ended
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, log)

    def wait(self, seconds=None):
        """The exit code, or None if it still runs after so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                return None
            else:
                time.sleep(0.002)
        return self.code

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()


def _work(work, log):
    code = 1
    try:
        os.setsid()
        usual_signals.handle()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
