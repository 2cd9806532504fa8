"""A command as a user types it: what it prints, once it has ended as expected."""

from mixdim.cli.main import run


def output(capsys, *arguments, code=0):
    """Run a command in this process; returns what it wrote to standard output and error."""
    assert run([str(argument) for argument in arguments]) == code
    return capsys.readouterr()


def complaint(capsys, *arguments):
    """Run a command that is refused; returns the one line that it says, and it says nothing else."""
    printed = output(capsys, *arguments, code=2)
    assert printed.out == ""
    assert printed.err.startswith("mixdim: ")
    assert printed.err.count("\n") == 1
    return printed.err
