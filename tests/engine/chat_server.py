"""A server on this machine that speaks the protocol of chat completions, in the words of a script."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentrl.engine.openai import Endpoint


@dataclass
class Answer:
    """What the server sends: a body, or for ``cut`` nothing at all, after ``wait_s`` seconds."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    cut: bool = False


def said(content: Any = "", calls: Any = None, finish: str = "stop", usage: Any = (10, 5), **message: Any) -> Answer:
    """A chat completion."""
    reply = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **message}
    body = {"model": "small-1", "choices": [{"index": 0, "message": reply, "finish_reason": finish}]}
    if usage:
        counts = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
        body["usage"] = {**counts, "total_tokens": sum(usage)}
    return Answer(body)


def call(name: str, arguments: str, identity: str | None = "c1") -> dict[str, Any]:
    """A tool call in the protocol's form."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class ChatServer:
    """Answers the n-th request with what ``script(n, body)`` gives. Use it as a context."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Answer]) -> None:
        self.script, self.requests, self.keys, self.now, self.most = script, [], [], 0, 0
        self.tokens: list[str | None] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """One request."""
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.keys.append(handler.headers["idempotency-key"])
            self.tokens.append(handler.headers["authorization"])
            self.now += 1
            self.most = max(self.most, self.now)
        answer = self.script(number, body)
        time.sleep(answer.wait_s)
        with self._lock:
            self.now -= 1
        if answer.cut:
            handler.close_connection = True
            handler.connection.close()
            return
        data = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        try:
            handler.send_response(answer.status)
            for name, value in {"content-length": str(len(data)), **answer.headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            handler.close_connection = True  # it did not wait

    def __enter__(self) -> "ChatServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def endpoint(self, **options: Any) -> Endpoint:
        """It as an endpoint, with short waits."""
        return Endpoint(**{"model": "small", "base_url": self.url, "backoff_s": 0.01, "request_s": 5.0, **options})
