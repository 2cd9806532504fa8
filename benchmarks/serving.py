"""How many requests the HTTP example answers: a bounded load on this machine, over loopback only.

    python benchmarks/serving.py model.onnx --samples 1 --clients 2

Clients and the server share the cores; each client keeps one connection and asks again when answered.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parent.parent / "examples" / "serve.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=int, default=1, help="of a request")
    parser.add_argument("--requests", type=int, default=2000, help="of all clients together")
    parser.add_argument("--clients", type=int, default=1)
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, EXAMPLE, options.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1].split("/")[0])
        bodies = requests(options.model, options.samples)
        ask(port, bodies, 20)  # what is done only once is not counted
        share = options.requests // options.clients
        took: list[list[float]] = [[] for _ in range(options.clients)]
        clients = [
            threading.Thread(target=lambda own=own: own.extend(ask(port, bodies, share))) for own in took
        ]
        start = time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.perf_counter() - start
    finally:
        server.terminate()
        server.wait()
    times = sorted(1000 * one for own in took for one in own)
    low, middle, high = statistics.quantiles(times, n=4)
    print(
        f"{len(times)} requests of {options.samples} samples by {options.clients} clients: "
        f"{len(times) / seconds:,.0f} requests/s, "
        f"{options.samples * len(times) / seconds:,.0f} samples/s, "
        f"{middle:.2f} ms each ({low:.2f} to {high:.2f}; 99 % below {times[int(0.99 * len(times))]:.2f})"
    )


def requests(model: Path, samples: int) -> list[bytes]:
    """A hundred requests with values that the vocabularies hold, popular ones most of the time."""
    side = json.loads(model.with_name(f"{model.name}.vocabulary.json").read_text(encoding="utf-8"))
    random = np.random.default_rng(0)

    def value(feature: dict[str, object]) -> object:
        values = feature["values"]
        assert isinstance(values, list)
        found = values[int(len(values) * random.random() ** 3)]
        return format(found, "08x") if feature["kind"] == "hexadecimal" and found is not None else found

    def sample() -> dict[str, object]:
        numbers: dict[str, object] = {
            column["name"]: int(100 * random.random()) for column in side["dense"]
        }
        bags = {f["name"]: [value(f), value(f)] for f in side["features"] if f["bag"]}
        return numbers | bags | {f["name"]: value(f) for f in side["features"] if not f["bag"]}

    return [json.dumps([sample() for _ in range(samples)]).encode() for _ in range(100)]


def ask(port: int, bodies: list[bytes], times: int) -> list[float]:
    """Ask one after the other over one connection; returns the seconds that each answer took."""
    connection, took = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for number in range(times):
        start = time.perf_counter()
        connection.request("POST", "/predict", bodies[number % len(bodies)])
        answer = connection.getresponse()
        body = answer.read()
        took.append(time.perf_counter() - start)
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {body.decode()}")
    connection.close()
    return took


if __name__ == "__main__":
    main()
