"""A command as a user types it: what it prints, once it has ended as expected."""

from mixdim.cli.main import run


def output(capsys, *arguments, code=0):
    """Run a command in this process; returns what it wrote to standard output and error."""
    assert run([str(argument) for argument in arguments]) == code
    return capsys.readouterr()
