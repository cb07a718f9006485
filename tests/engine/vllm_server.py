"""A server on this machine that speaks vLLM's routes for tokens and weights, and misbehaves when it is told to."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from safetensors import safe_open

GENERATE = "/inference/v1/generate"
VOCABULARY = 50
SHAPE = {"model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": 4, "num_hidden_layers": 2}


@dataclass
class Twist:
    """What becomes of one request: it comes ``before_s`` seconds late; its answer comes ``after_s`` late, with another
    ``status`` or ``body``, with a share ``cut`` of its bytes (0 for none), or after ``change`` has had it."""

    before_s: float = 0.0
    after_s: float = 0.0
    status: int = 200
    body: Any = None
    cut: float | None = None
    change: Callable[[dict[str, Any]], None] | None = None


@dataclass
class State:
    """What a process of the server knows; a new one knows nothing."""

    label: str = "default"
    stamp: int = 0
    tensors: int = 0
    paused: bool = False
    frozen: bool = False
    updating: bool = False
    cached: dict[str, int] = field(default_factory=dict)


class FakeVLLM:
    """Replies are made of the seed, the conversation's length and the first number of the first weight. ``twist(n,
    path, body)`` may give a `Twist` for the n-th request to that path. Use it as a context."""

    def __init__(self, twist: Callable[[int, str, dict[str, Any]], Twist | None] = lambda n, path, body: None) -> None:
        self.twist = twist
        self.state, self.shape, self.model, self.context = State(), dict(SHAPE), "policy", 64
        self.tokenizer: dict[str, list[int]] | None = None
        self.missing: set[str] = set()
        self.processed, self.masks, self.extension = True, False, True
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.running, self.most, self.mixed = 0, 0, 0
        self._lock = threading.Condition()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "FakeVLLM":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """A new process on the same port."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits for the client to acknowledge its head

            def do_GET(self) -> None:
                outer.take(self)

            def do_POST(self) -> None:
                outer.take(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.state = State()
        self._alive: set[Any] = set()
        ThreadingHTTPServer.request_queue_size = 256
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        """Drop every connection, as a process does that is killed."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None
        for connection in list(self._alive):
            _shut(connection)

    def sent(self, path: str) -> list[dict[str, Any]]:
        """The bodies of all requests to a path."""
        return [body for asked, body in self.requests if asked == path]

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        """One request."""
        self._alive.add(handler.connection)
        parts = urlsplit(handler.path)
        data = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        body = {**(json.loads(data) if data else {}), **dict(parse_qsl(parts.query))}
        with self._lock:
            number = len(self.sent(parts.path))
            self.requests.append((parts.path, body))
        twist = self.twist(number, parts.path, body) or Twist()
        state = self.state
        time.sleep(twist.before_s)
        with self._counted(parts.path):
            status, answer = self.answer(parts.path, body)
            time.sleep(twist.after_s)
            with self._lock:
                self._lock.wait_for(lambda: parts.path != GENERATE or not self.state.frozen, timeout=5)
        if twist.change is not None:
            twist.change(answer)
        if state is self.state:
            status = twist.status if twist.status != 200 else status
            self._send(handler, status, answer if twist.body is None else twist.body, twist.cut)

    @contextmanager
    def _counted(self, path: str) -> Any:
        if path != GENERATE:
            yield
            return
        with self._lock:
            self._lock.wait_for(lambda: not self.state.paused, timeout=5)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1
                self._lock.notify_all()

    def _send(self, handler: BaseHTTPRequestHandler, status: int, answer: Any, cut: float | None) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        try:
            if cut != 0:
                handler.send_response(status)
                handler.send_header("content-length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data if cut is None else data[: int(len(data) * cut)])
            if cut is not None:
                handler.close_connection = True
                _shut(handler.connection)
        except OSError:
            handler.close_connection = True  # it did not wait

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """What the server does and says."""
        if path in self.missing:
            return 404, {"detail": "Not Found"}
        route = getattr(self, "on" + path.replace("/", "_").replace("inference_v1_", "").replace("v1_", ""), None)
        return (404, {"detail": "Not Found"}) if route is None else route(body)

    def on_health(self, body: Any) -> tuple[int, Any]:
        return 200, {}

    def on_models(self, body: Any) -> tuple[int, Any]:
        return 200, {"data": [{"id": self.model, "max_model_len": self.context}]}

    def on_weight_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"weight_version": self.state.label}

    def on_is_paused(self, body: Any) -> tuple[int, Any]:
        return 200, {"is_paused": self.state.paused}

    def on_pause(self, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.state.paused, self.state.frozen = True, body["mode"] == "keep"
            if body["mode"] == "wait":
                self._lock.wait_for(lambda: self.running == 0, timeout=5)
        return 200, {"status": "paused"}

    def on_resume(self, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.state.paused = self.state.frozen = False
            self._lock.notify_all()
        return 200, {"status": "resumed"}

    def on_update_weight_version(self, body: Any) -> tuple[int, Any]:
        self.state.label = body["new_version"]
        return 200, {"success": True}

    def on_start_weight_update(self, body: Any) -> tuple[int, Any]:
        if not self.extension or self.state.updating:
            return 500, _error("Weight transfer not configured" if not self.extension else "a update is already active")
        self.state.updating = True
        return 200, {}

    def on_update_weights(self, body: Any) -> tuple[int, Any]:
        if not self.state.updating:
            return 500, _error("start_weight_update must be called before update_weights.")
        update = body["update_info"]
        self._load(Path(update["folder"]))
        if self.state.tensors != update["num_tensors"]:
            self.state.updating = False
            return 500, _error(f"{self.state.tensors} tensors and {update['num_tensors']} were announced")
        return 200, {}

    def on_finish_weight_update(self, body: Any) -> tuple[int, Any]:
        self.state.updating = False
        self.state.label = body.get("weight_version") or self.state.label
        return 200, {}

    def on_collective_rpc(self, body: Any) -> tuple[int, Any]:
        if body["method"] == "reload_weights":
            self._load(Path(body["kwargs"]["weights_path"]))
            return 200, {"results": [None]}
        if body["method"] == "agentrl_model" and self.extension:
            return 200, {"results": [self.shape]}
        return 500, _error(f"no attribute {body['method']!r}")

    def on_reset_prefix_cache(self, body: Any) -> tuple[int, Any]:
        self.state.cached.clear()
        return 200, {"success": True}

    def on_tokenize(self, body: Any) -> tuple[int, Any]:
        if self.tokenizer is None:
            return 400, _error("Tokenizer not available when `skip_tokenizer_init=True`")
        return 200, {"tokens": self.tokenizer[body["prompt"]]}

    def _load(self, folder: Path) -> None:
        self.mixed += self.running
        tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "np") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        self.state.tensors = len(tensors)
        self.state.stamp = int(next(iter(tensors.values())).ravel()[0])

    def on_generate(self, body: Any) -> tuple[int, Any]:
        params, ids = body["sampling_params"], body["token_ids"]
        allowed = params.get("allowed_token_ids")
        if allowed and max(allowed) >= self.shape["vocab_size"]:
            return 400, _error("allowed_token_ids contains out-of-vocab token id!")
        tokens = [self.token(params["seed"], len(ids) + t) for t in range(params["max_tokens"])]
        if allowed:
            tokens = allowed
        stops = [place for place, token in enumerate(tokens) if token in params.get("stop_token_ids", ())]
        tokens = tokens[: stops[0] + 1] if stops else tokens
        logprob = 0.0 if allowed and self.processed else -0.5
        rows = [{"token_id": token, "logprob": logprob, "top_logprobs": _top(token, params)} for token in tokens]
        choice = {
            "token_ids": tokens,
            "finish_reason": "stop" if stops else "length",
            "logprobs": {"content": rows},
            "sampling_mask": [[token, (token + 1) % VOCABULARY] for token in tokens] if self.masks else None,
            "weight_versions": [{"version": self.state.label, "start": 0, "end": len(tokens)}],
        }
        answer = {"choices": [choice]}
        if "prompt_logprobs" in params:
            answer["prompt_logprobs"] = [None, *({str(token): {"logprob": -float(token)}} for token in ids[1:])]
        return 200, answer

    def token(self, seed: int, place: int) -> int:
        """What it draws there under its weights."""
        return (seed + 7 * place + self.state.stamp) % VOCABULARY


def _top(token: int, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The two tokens of exp(-0.5) and 1 - exp(-0.5), and one that cannot be drawn."""
    listed = [(token, -0.5), ((token + 1) % VOCABULARY, -0.9327521295671886), ((token + 2) % VOCABULARY, -9999.0)]
    return [{"token_id": id_, "logprob": logprob} for id_, logprob in listed[: max(params["logprobs"], 1)]]


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "code": 0}}


def _shut(connection: Any) -> None:
    try:
        connection.shutdown(2)
        connection.close()
    except OSError:
        pass
