"""Runs `lily serve` for a test: on a free port, with its log kept."""
import os
import re
import signal
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
            self._wait(lambda: self.base, 60, "to listen")
            if self.wait_until_ready:
                self._wait(self.healthy, 300, "to load its model")
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

    def _wait(self, condition, seconds: float, what: str):
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(self.command)} was expected {what}; its log:\n{self.log()}")
            time.sleep(0.02)

    def healthy(self) -> bool:
        return httpx.get(self.url("/health"), timeout=10).status_code == 200

    def url(self, path: str) -> str:
        return self.base + path

    def log(self) -> str:
        return "".join(self.lines)

    def wait_for_log(self, text: str, seconds: float = 20):
        self._wait(lambda: text in self.log(), seconds, f"to log '{text}'")
