"""Signals as in a terminal, whatever started the tests: `nohup`, or a script with `&`, ignores some."""

import signal

HANDLERS = {
    **dict.fromkeys((signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM), signal.SIG_DFL),
    signal.SIGINT: signal.default_int_handler,
}


def handle(handlers=HANDLERS):
    """Set handlers of this process; returns those before."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
