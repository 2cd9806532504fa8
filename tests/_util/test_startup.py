"""Commands as processes: Ctrl-C while they start, and readers who leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mixdim._util import startup

pytestmark = pytest.mark.usefixtures("usual_signals")
SOURCE = Path(startup.__file__).parents[2]


def start(*command, modules, more=None, **options):
    """Start a process that finds the modules of this folder first, then mixdim, then all others."""
    environment = {**os.environ, "PYTHONPATH": f"{modules}{os.pathsep}{SOURCE}", **(more or {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], env=environment, **{**pipes, **options})


@pytest.fixture
def script(tmp_path):
    """What an installer puts into `bin`."""
    path = tmp_path / "mixdim"
    path.write_text("import sys\nfrom mixdim.__main__ import main\nsys.exit(main())\n")
    return path


@pytest.mark.parametrize("way", ["module", "script"])
@pytest.mark.parametrize("library", ["numpy", "torch"])  # before the command runs, and when it does
def test_ctrl_c_in_an_import_that_makes_another_error_of_it_is_one_line(tmp_path, script, way, library):
    (tmp_path / f"{library}.py").write_text(
        "import signal\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "except BaseException:\n    raise ImportError('the extension module failed') from None\n"
    )
    command = ("-m", "mixdim") if way == "module" else (script,)
    done = start(*command, "doctor", modules=tmp_path)
    assert done.communicate() == ("", "mixdim: stopped\n")
    assert done.returncode == 130


PRESS_CTRL_C = """
import _thread, os, signal, sys, time

main = _thread.get_ident()

def runs(name):
    frame = sys._current_frames()[main]
    while frame and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None

def press():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Python itself is starting
        time.sleep(0.001)
    while os.environ["PRESS_IN"] and not runs(os.environ["PRESS_IN"]):
        time.sleep(0.01)
    time.sleep(float(os.environ["PRESS_AFTER"]))
    os.kill(os.getpid(), signal.SIGINT)

_thread.start_new_thread(press, ())
"""


def test_ctrl_c_is_one_line_whenever_it_comes(tmp_path, script):
    (tmp_path / "sitecustomize.py").write_text(PRESS_CTRL_C)
    os.mkfifo(tmp_path / "nobody-writes.csv")  # the command waits until somebody does
    command = (script, "plan", "--plan-from", tmp_path / "nobody-writes.csv")
    pressed = [
        start(*command, modules=tmp_path, more={"PRESS_IN": function, "PRESS_AFTER": seconds})
        for function, seconds in [("", "0"), ("", "0.3"), ("", "0.9"), ("plan", "0.1")]  # "": in imports
    ]
    assert [process.communicate() for process in pressed] == [("", "mixdim: stopped\n")] * 4
    assert [process.returncode for process in pressed] == [130] * 4


def test_an_ignored_ctrl_c_stays_ignored(tmp_path, script):
    (tmp_path / "numpy.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nraise SystemExit('went on')\n"
    )
    ignore = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    become = f"os.execv(sys.executable, [sys.executable, {str(script)!r}, 'doctor'])"
    done = start("-c", f"{ignore}; {become}", modules=tmp_path)
    assert done.communicate() == ("", "went on\n")


def test_a_reader_who_leaves_is_no_error(tmp_path, script):
    ours, theirs = os.pipe()
    os.close(ours)
    done = start(script, "--help", modules=tmp_path, stdout=theirs)
    os.close(theirs)
    assert done.communicate()[1] == ""
    assert done.returncode == 0


def test_in_a_library_ctrl_c_and_warnings_are_left_alone(monkeypatch):
    for argv, orig_argv in (
        (["train.py"], ["python", "train.py"]),
        (["-m"], ["python", "-m", "trainer"]),
        (["-c"], ["python", "-c", "from multiprocessing.spawn import spawn_main"]),
        (["/bin/mixdim", "sweep"], ["python", "-c", "from multiprocessing.spawn import spawn_main"]),
        ([], ["python"]),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(sys, "orig_argv", orig_argv)
        assert not startup.started_as_command(), argv


@pytest.mark.parametrize(
    ("said", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_of_a_command_sleep_soon_unless_the_user_said_how_they_wait(
    tmp_path, script, monkeypatch, said, spins
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "torch.py").write_text(
        "import os\nraise SystemExit(str(os.environ.get('GOMP_SPINCOUNT')))\n"
    )
    assert start(script, "doctor", modules=tmp_path, more=said).communicate() == ("", f"{spins}\n")
    if not said:  # in a library nothing is changed
        library = start("-c", "import mixdim; mixdim.fit", modules=tmp_path)
        assert library.communicate() == ("", "None\n")
