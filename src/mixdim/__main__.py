"""`mixdim` and `python -m mixdim`."""

import sys


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from mixdim.cli.main import run
        from mixdim.cli.streams import outlive_readers
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            "mixdim: the command line needs more packages: pip install 'mixdim[all]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    outlive_readers()
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
