import signal
import threading

import pytest

from mixdim._util.signals import StopRequests

pytestmark = pytest.mark.usefixtures("usual_signals")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_only_sets_the_name(number):
    before = handlers()
    with StopRequests() as stopped:
        assert not stopped()
        signal.raise_signal(number)
        assert stopped()
        assert stopped.name == number.name
    assert handlers() == before


def test_a_second_signal_works_as_usual():
    with StopRequests() as stopped:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stopped.name == "SIGTERM"


def test_every_signal_only_sets_the_name_for_who_wants_that():
    before = handlers()
    with StopRequests(every=True) as stopped:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stopped.name == "SIGINT"
    assert handlers() == before


def test_handlers_are_put_back_after_an_error():
    before = handlers()
    with pytest.raises(ZeroDivisionError), StopRequests():
        1 / 0  # noqa: B018
    assert handlers() == before


def test_outside_of_the_main_thread_nothing_is_changed():
    before, seen = handlers(), []

    def enter():
        with StopRequests() as stopped:
            seen.append((stopped(), handlers()))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_handlers_that_python_does_not_know_are_left_alone(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    set_now = []
    monkeypatch.setattr(signal, "signal", lambda *given: set_now.append(given))
    with StopRequests() as stopped:
        assert not stopped()
    assert set_now == []
