"""Runs `lily serve` for a test: on a free port, with its log kept."""
import functools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx

LILY = os.environ.get("LILY", "build/apps/lily/lily")


class Server:
    """with Server(model, "--ctx", "4096") as server: ...   `ready=False`: do not wait until the model is loaded.
    No model: the one that comes with lily."""

    def __init__(self, model: Path | str | None, *options: str, ready: bool = True, env: dict[str, str] | None = None):
        self.command = [LILY, "serve", *([str(model)] if model else []), "--port", "0", *options]
        self.wait_until_ready = ready
        self.environment = {name: value for name, value in os.environ.items() if name != "LILY_API_KEY"} | (env or {})
        self.base = ""
        self.lines: list[str] = []

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, errors="replace", env=self.environment)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self.wait_until(lambda: self.base, "to listen")
            if self.wait_until_ready:
                self.wait_until(self.healthy, "to load its model", 300)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self.reader.join(5)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.base = found.group(1)

    def healthy(self) -> bool:
        return httpx.get(self.url("/health"), timeout=10).status_code == 200

    def url(self, path: str) -> str:
        return self.base + path

    def log(self) -> str:
        return "".join(self.lines)

    @functools.cached_property
    def endless(self) -> dict:
        """Fields of a request whose answer goes on for longer than any test here, whatever the sampler draws: the tokens that
        end one are forbidden. (Up to the server's --ctx.)"""
        ends = [httpx.post(self.url("/tokenize"), json={"content": text}).json()["tokens"][0] for text in ("<|im_end|>", "<|endoftext|>")]
        return {"max_tokens": 30_000, "logit_bias": {str(end): -100 for end in ends}}

    def connect(self) -> socket.socket:
        host, port = self.base.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def send(self, body: dict, path: str = "/v1/chat/completions") -> socket.socket:
        """A request whose answer nobody has read yet."""
        text = json.dumps(body).encode()
        connection = self.connect()
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        return connection

    def wait_until(self, condition, what: str, seconds: float = 60):
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(self.command)} was expected {what}; its log:\n{self.log()}")
            time.sleep(0.02)

    def wait_for_log(self, text: str):
        self.wait_until(lambda: text in self.log(), f"to log '{text}'")

    def wait_for_metric(self, sample: str):
        """Until /metrics has this line."""
        self.wait_until(lambda: sample in httpx.get(self.url("/metrics")).text.splitlines(), f"to say '{sample}' in /metrics")
