"""Answer JSON over HTTP with an exported model: onnxruntime and mixdim's encoder, without PyTorch.

    mixdim export run --out model.onnx --bits 8
    python examples/serve.py model.onnx --port 8000
    curl -d '[{"user": "17", "item": "260"}, {"user": "new", "item": "1"}]' localhost:8000/predict

A sample is a row as it is in the file that `mixdim prepare` read, and gets the prediction of `mixdim
predict --raw`: columns that the model does not need are passed over, and one that is not there or empty
is missing. The answer is `{"predictions": [...]}`; what is wrong is one line and a code 400.
"""

import argparse
import contextlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnxruntime

from mixdim.data import RowEncoder

MOST_BYTES, MOST_SAMPLES = 16 * 2**20, 10_000


class Model:
    """An exported model and the encoder of the vocabularies beside it."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input_names = [entry.name for entry in self.session.get_inputs()]
        self.encoder = RowEncoder.of_model(path)

    def predict(self, samples: Any) -> list[float]:
        """Return a probability or a rating for each sample; ValueError says what is wrong with one."""
        if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
            raise ValueError("a request must be a list of objects, one a sample")
        if not 1 <= len(samples) <= MOST_SAMPLES:
            raise ValueError(f"a request must have 1 to {MOST_SAMPLES} samples, got {len(samples)}")
        inputs = self.encoder.arrays(samples)
        (answer,) = self.session.run(None, {name: inputs[name] for name in self.input_names})
        return [float(prediction) for prediction in answer]


class Handler(BaseHTTPRequestHandler):
    """POST /predict answers with predictions, GET /health with the word ok."""

    protocol_version = "HTTP/1.1"  # one connection for many requests
    disable_nagle_algorithm = True
    timeout = 60  # seconds that a silent client is waited for
    model: Model

    def do_POST(self) -> None:
        """Answer a request."""
        try:
            length = int(self.headers.get("Content-Length", "none"))
        except ValueError:
            length = -1
        if not 0 <= length <= MOST_BYTES:
            self.close_connection = True
            return self.reply(400, {"error": f"Content-Length must be 0 to {MOST_BYTES} bytes"})
        body = self.rfile.read(length)
        if self.path != "/predict":
            return self.reply(404, {"error": "POST to /predict"})
        try:
            return self.reply(200, {"predictions": self.model.predict(json.loads(body))})
        except (ValueError, RecursionError) as error:  # JSON that is none is a ValueError too
            return self.reply(400, {"error": " ".join(str(error).split())})
        except Exception as error:  # such as an id that an exported model refuses
            return self.reply(500, {"error": type(error).__name__})

    def do_GET(self) -> None:
        """Say that the server is there."""
        self.reply(*((200, {"health": "ok"}) if self.path == "/health" else (404, {"error": "no page"})))

    def reply(self, code: int, answer: dict[str, Any]) -> None:
        """Send JSON."""
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing about each request."""


def server_of(path: Path, port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """A server with a model, not started yet; port 0 takes a free one."""
    handler = type("ModelHandler", (Handler,), {"model": Model(path)})
    return ThreadingHTTPServer((host, port), handler)


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    try:
        server = server_of(options.model, options.port, options.host)
    except Exception as error:  # a file that is not there or damaged, a port that is taken
        raise SystemExit(f"cannot serve {options.model}: {str(error).splitlines()[0]}") from None
    with server:
        print(f"http://{options.host}:{server.server_address[1]}/predict", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
