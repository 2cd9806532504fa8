"""Ranks as processes that start in milliseconds: forks of one that has imported TorchRec already.

Each child is told its rank as torchrun would tell it. All end with the parent, none outlives its time.
"""

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
MISSING = [name for name in ("torchrec", "fbgemm_gpu") if find_spec(name) is None]

needs_torchrec = pytest.mark.skipif(
    bool(MISSING), reason=f"{' and '.join(MISSING)} not installed: make distributed"
)


class Ranks:
    """Starts functions of a file in several processes, which are the ranks of one group."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp())
        self.parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        self.parent.stdout.readline()  # it is ready
        self.started = 0

    def close(self):
        self.parent.communicate()

    def start(self, file, function, world, *arguments):
        """Start `function(rank, world, *arguments)` of a file on every rank."""
        self.started += 1
        names = [str(self.folder / f"{self.started}-{rank}") for rank in range(world)]
        print(json.dumps([file, function, world, arguments, names]), file=self.parent.stdin, flush=True)
        return Group(json.loads(self.parent.stdout.readline()), names)

    def run(self, file, function, world, *arguments, timeout=60):
        """What the function returned on each rank."""
        group = self.start(file, function, world, *arguments)
        codes = group.wait(timeout)
        assert codes == [0] * world, "\n".join(map(group.printed, range(world)))
        return [pickle.loads(Path(name).read_bytes()) for name in group.names]


class Group:
    """Some ranks at work."""

    def __init__(self, pids, names):
        self.pids, self.names = pids, names

    def codes(self):
        """The exit codes of those that ended, None of others."""
        codes = []
        for name in self.names:
            path = Path(f"{name}.code")
            codes.append(int(path.read_text()) if path.exists() else None)
        return codes

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while None in (codes := self.codes()):
            if time.monotonic() > end:
                for pid, code in zip(self.pids, codes, strict=True):
                    if code is None:
                        os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"{codes} after {timeout} s: {self.printed(0)} {self.printed(1)}")
            time.sleep(0.01)
        return codes

    def kill(self, rank):
        os.kill(self.pids[rank], signal.SIGKILL)

    def printed(self, rank):
        return Path(f"{self.names[rank]}.log").read_text()


def main():
    import torch
    import torch._dynamo  # of the first optimizer
    import torchrec  # noqa: F401

    import mixdim.distributed.checkpoint
    import mixdim.distributed.sharding
    import mixdim.runs.train  # noqa: F401

    torch.set_num_threads(1)
    living = {}
    print("ready", flush=True)
    while True:
        reap(living)
        if not select.select([sys.stdin], [], [], 0.01)[0]:
            continue
        if not (line := sys.stdin.readline()):
            break
        file, function, world, arguments, names = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pids = []
        for rank, name in enumerate(names):
            pid = os.fork()
            if pid == 0:
                work(file, function, rank, world, port, arguments, name)
            living[pid] = name
            pids.append(pid)
        print(json.dumps(pids), flush=True)
    for pid in list(living):
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # Python would take a second to put torch away


def reap(living):
    """Write down how children ended."""
    for pid in list(living):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            name = living.pop(pid)
            Path(f"{name}.new").write_text(str(os.waitstatus_to_exitcode(status)))
            Path(f"{name}.new").rename(f"{name}.code")


def work(file, function, rank, world, port, arguments, name):
    code = 70
    try:
        output = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in told.items()})
        spec = spec_from_file_location("at_work", file)
        module = module_from_spec(spec)
        sys.modules["at_work"] = module
        sys.path.insert(0, str(Path(file).parent))
        sys.path.insert(0, str(Path(file).parent.parent))
        import unsynced  # noqa: F401
        import usual_signals

        usual_signals.handle()
        spec.loader.exec_module(module)
        result = getattr(module, function)(rank, world, *arguments)
        Path(name).write_bytes(pickle.dumps(result))
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
