"""Nothing in these tests outlives a power cut, so files need not wait for the disk: a third of the time.

Imported by the tests and by the processes that they fork; a command that they start anew does wait.
"""

import os


def fsync(file):
    """Only fails where it would: if this is no open file."""
    os.fstat(file)


os.fsync = fsync
