"""Commands as processes that start in milliseconds: forks of one that has imported everything already.

Not forks of the process of the tests, which has threads. Nothing can be tried so while it imports.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


class Commands:
    """Starts commands; at its end it kills those that still run."""

    def __init__(self):
        self.parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        self.parent.stdout.readline()  # it is ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.parent.communicate()

    def ask(self, *told):
        print(json.dumps(told), file=self.parent.stdin, flush=True)
        return json.loads(self.parent.stdout.readline())

    def start(self, arguments, log, temporary=None):
        """Run `mixdim` with these arguments; what it prints goes to the end of the file `log`.

        Sweeps keep what is temporary in the folder `temporary`, and start runs at once.
        """
        told = list(map(str, arguments)), str(log), None if temporary is None else str(temporary)
        return Command(self, self.ask("start", *told), log)


class Command:
    """A process with a part of the methods that those of subprocess have."""

    def __init__(self, commands, pid, log):
        self.commands, self.pid, self.log, self.returncode = commands, pid, log, None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.commands.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout=60):
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, f"it still runs after {timeout} s"
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def printed(self):
        return Path(self.log).read_text()


def main():
    import torch
    import torch._dynamo  # of the first optimizer

    import mixdim.runs.train  # noqa: F401
    import unsynced  # noqa: F401
    from forks import Fork
    from mixdim.cli.main import run
    from mixdim.runs.sweeps import worker
    from warm_sweeps import ready_forkserver, sweep_of_fork

    def command(arguments, log, temporary):
        tempfile.tempdir = temporary
        return sweep_of_fork(arguments) if arguments[0] == "sweep" else run(arguments)

    torch.set_num_threads(1)
    worker.PRELOAD.append("unsynced")
    tempfile.tempdir = own = tempfile.mkdtemp()  # with the socket of the forkserver
    lives = {}
    print("ready", flush=True)
    for line in sys.stdin:
        asked, *told = json.loads(line)
        if asked == "start":
            if told[0][0] == "sweep":
                ready_forkserver()
            life = Fork(partial(command, *told), told[1])
            lives[life.pid] = life
            answer = life.pid
        else:
            answer = lives[told[0]].wait(0)
        print(json.dumps(answer), flush=True)
    for life in lives.values():
        if life.wait(0) is None:
            life.kill()
    shutil.rmtree(own)
    os._exit(0)  # Python would take a second to put torch away


if __name__ == "__main__":
    main()
