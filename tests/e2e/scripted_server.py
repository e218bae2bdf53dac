"""A server that serves lily's page and answers its requests from a script: what a model is hard to be made to say."""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


def content(text: str, piece: int = 7) -> list[dict]:
    """The steps of an answer that comes in pieces of so many characters."""
    return [{"content": text[i:i + piece]} for i in range(0, len(text), piece)]


def reasoning(text: str, piece: int = 7) -> list[dict]:
    return [{"reasoning_content": step["content"]} for step in content(text, piece)]


def call(index: int, identity: str, name: str, arguments: str) -> list[dict]:
    """A call as OpenAI streams it: a first part with id, type and name, then its arguments in pieces."""
    first = {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": arguments[i:i + 5]}} for i in range(0, len(arguments), 5)]
    return [{"tool_calls": [part]} for part in [first, *rest]]


class Answer:
    """deltas: dictionaries, seconds to wait, or threading.Event to wait for. `finish` None: the stream just ends.
    `error`: sent in place of the finish. `status`: not 200: answered at once with `error` as the body."""

    def __init__(self, deltas=(), finish: str | None = "stop", usage: dict | None = None, error: dict | None = None,
                 status: int = 200, headers: dict | None = None):
        self.deltas, self.finish, self.error, self.status = list(deltas), finish, error, status
        self.headers = headers or {}
        self.usage = usage or {"prompt_tokens": 20, "completion_tokens": len(self.deltas),
                               "total_tokens": 20 + len(self.deltas)}


class ScriptedServer:
    """with ScriptedServer(lily_url) as server: server.answers.append(Answer(content("Hello")))"""

    def __init__(self, lily: str):
        page = httpx.get(lily + "/")
        assert page.status_code == 200, page
        self.document = page.content
        self.headers = {name: value for name, value in page.headers.items()
                        if name in ("content-type", "content-security-policy", "x-content-type-options", "referrer-policy")}
        self.answers: list[Answer] = []
        self.requests: list[dict] = []
        self.keys: list[str | None] = []  # Authorization of each request
        self.paths: list[str] = []
        self.asked_key: str | None = None
        self.loading = False
        self.ended_early = threading.Event()  # a reader went away in the middle of an answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.paths.append(self.path)
                if self.path == "/":
                    self.whole(200, outer.document, outer.headers)
                elif self.path == "/v1/models" and outer.loading:
                    self.whole_json(503, {"error": {"message": "The model is loading.", "code": "loading"}})
                elif self.path == "/v1/models" and outer.allowed(self):
                    self.whole_json(200, {"object": "list", "data": [{"id": "scripted", "context_length": 1000}]})
                elif self.path == "/v1/models":
                    self.whole_json(401, {"error": {"message": "A key, please.", "code": "invalid_api_key"}})
                else:
                    self.whole(404, b"", {})

            def do_POST(self):
                outer.paths.append(self.path)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers.get("Authorization"))
                answer = outer.answers.pop(0)
                if answer.status != 200:
                    self.whole_json(answer.status, {"error": answer.error}, answer.headers)
                    return
                try:
                    self.stream(answer)
                except (BrokenPipeError, ConnectionResetError):
                    outer.ended_early.set()
                self.close_connection = True

            def whole_json(self, status, body, headers=None):
                self.whole(status, json.dumps(body).encode(), {"content-type": "application/json"} | (headers or {}))

            def whole(self, status, body, headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self, answer):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.chunk({"role": "assistant", "content": ""})
                for step in answer.deltas:
                    if isinstance(step, dict):
                        self.chunk(step)
                    else:
                        self.rest(step)
                if answer.error:
                    self.event({"error": answer.error})
                elif answer.finish:
                    self.chunk({}, answer.finish)
                    self.event({"choices": [], "usage": answer.usage})
                    self.wfile.write(b"data: [DONE]\n\n")

            def rest(self, step):
                end = time.monotonic() + (30 if isinstance(step, threading.Event) else step)
                while time.monotonic() < end and not (isinstance(step, threading.Event) and step.wait(0.02)):
                    self.wfile.write(b": keep-alive\n\n")  # notices a reader that is gone
                    self.wfile.flush()
                    time.sleep(0.02)

            def chunk(self, delta, finish=None):
                self.event({"object": "chat.completion.chunk",
                            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

            def event(self, body):
                self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
                self.wfile.flush()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def allowed(self, handler) -> bool:
        return self.asked_key is None or handler.headers.get("Authorization") == f"Bearer {self.asked_key}"

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
