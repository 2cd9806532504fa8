"""A command of mixdim, in this process: what it printed."""

from mixdim.cli.main import run


def output(capsys, *arguments, code=0):
    assert run(list(arguments)) == code
    return capsys.readouterr()
