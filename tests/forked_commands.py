"""Commands as processes that start in milliseconds: forks of one that has imported everything already.

Not forks of the process of the tests, which has threads. Nothing can be tried so while it imports.
"""

import json
import os
import subprocess
import sys
import time
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

    def start(self, arguments, log):
        """Run `mixdim` with these arguments; what it prints goes to the end of the file `log`."""
        return Command(self, self.ask("start", arguments, str(log)), log)


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
    from forks import Fork
    from mixdim.cli.main import run

    torch.set_num_threads(1)
    lives = {}
    print("ready", flush=True)
    for line in sys.stdin:
        asked, *told = json.loads(line)
        if asked == "start":
            life = Fork(lambda told=told: run(told[0]), told[1])
            lives[life.pid] = life
            answer = life.pid
        else:
            answer = lives[told[0]].wait(0)
        print(json.dumps(answer), flush=True)
    for life in lives.values():
        if life.wait(0) is None:
            life.kill()
    os._exit(0)  # Python would take a second to put torch away


if __name__ == "__main__":
    main()
