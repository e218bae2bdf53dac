"""The process: options, keys, clients that leave, signals."""
import json
import os
import signal
import socket
import subprocess
import threading

import httpx
import pytest

from server_process import LILY, Server

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Count."}], "ignore": 1}


def stream(server, fields: dict, started: threading.Event, lines: list[str]):
    body = QUESTION | server.endless | {"stream": True} | fields
    try:
        with httpx.stream("POST", server.url("/v1/chat/completions"), json=body, timeout=120) as response:
            for line in response.iter_lines():
                lines.append(line)
                if line.startswith("data: "):
                    started.set()
    except httpx.HTTPError as error:
        lines.append(f"error: {error}")
    started.set()


def start_stream(server, **fields):
    started, lines = threading.Event(), []
    thread = threading.Thread(target=stream, args=(server, fields, started, lines))
    thread.start()
    assert started.wait(60)
    return thread, lines


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_generation(model, stream):
    with Server(model, "--parallel", "1", "--queue", "4") as server:
        running = server.send(QUESTION | server.endless | {"stream": True})
        running.recv(10)  # its answer has begun
        waiting = server.send(QUESTION | server.endless | {"stream": stream})
        server.wait_for_metric("lily_requests_waiting 1")
        waiting.close()
        running.close()
        # Not behind the tokens of nobody: those would take longer than this waits.
        answer = httpx.post(server.url("/v1/chat/completions"), json=QUESTION | {"max_tokens": 1}, timeout=60)
        assert answer.status_code == 200
        server.wait_for_metric('lily_jobs_total{end="cancelled"} 2')
        server.wait_for_metric('lily_jobs_total{end="finished"} 1')
        assert server.log().count("finish=cancelled") == 2


def test_a_full_queue(model):
    with Server(model, "--parallel", "1", "--queue", "1") as server:
        running = server.send(QUESTION | server.endless | {"stream": True})
        running.recv(10)
        waiting = server.send(QUESTION | server.endless | {"stream": True})
        server.wait_for_metric("lily_requests_waiting 1")
        answer = httpx.post(server.url("/v1/chat/completions"), json=QUESTION, timeout=60)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        running.close()
        waiting.close()


def test_sigterm_lets_an_answer_finish(model):
    with Server(model, "--drain", "600") as server:
        thread, lines = start_stream(server, max_tokens=1000)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("finishing what runs")
        thread.join(300)
        assert "data: [DONE]" in lines
        assert server.process.wait(30) == 0


def test_sigterm_cancels_what_takes_too_long(model):
    with Server(model, "--drain", "0.3") as server:
        thread, lines = start_stream(server)
        server.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert server.process.wait(30) == 0
        last = [line for line in lines if line.startswith("data: ")][-1]
        assert json.loads(last[6:])["error"]["code"] == "shutting_down"


def test_a_second_interrupt_ends_at_once(model):
    with Server(model, "--drain", "600") as server:
        thread, _ = start_stream(server)
        server.process.send_signal(signal.SIGINT)
        server.wait_for_log("finishing what runs")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        thread.join(30)


def test_keys(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the house\nfrom-file\n\n")
    with Server(model, "--api-key", "from-option", "--api-key-file", str(keys), env={"LILY_API_KEY": "from-env"}) as server:
        assert httpx.get(server.url("/v1/models")).status_code == 401
        for key, status in (("from-option", 200), ("from-file", 200), ("from-env", 200), ("other", 401), ("# of the house", 401)):
            answer = httpx.get(server.url("/v1/models"), headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status, key
        assert "from-option" not in server.log() and "from-env" not in server.log()


def test_the_log_has_a_line_per_request_and_no_text(model):
    with Server(model) as server:
        body = QUESTION | {"max_tokens": 3, "messages": [{"role": "user", "content": "tell-nobody"}]}
        answer = httpx.post(server.url("/v1/chat/completions"), json=body, timeout=60).json()
        server.wait_for_log(answer["id"])
        (line,) = [line for line in server.lines if answer["id"] in line]
        for part in ("finish=", "prompt=", "completion=3", "prefill=", "decode=", "total="):
            assert part in line
        assert "tell-nobody" not in server.log()


def fails(*options: str, **environment: str) -> str:
    done = subprocess.run([LILY, "serve", *options], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                          env={k: v for k, v in os.environ.items() if k != "LILY_API_KEY"} | environment)
    assert done.returncode == 1, (done.returncode, done.stderr)
    return done.stderr


def test_options_that_fail(model, tmp_path):
    assert "--allow-anonymous" in fails(str(model), "--host", "0.0.0.0", "--port", "0")
    assert "nowhere.invalid" in fails(str(model), "--host", "nowhere.invalid", "--port", "0")
    assert "no-such-model" in fails("./no-such-model", "--port", "0")
    assert "keys" in fails(str(model), "--api-key-file", str(tmp_path / "keys"), "--port", "0")
    (tmp_path / "empty").write_text("\n# nothing\n")
    assert "no API key" in fails(str(model), "--api-key-file", str(tmp_path / "empty"), "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in fails(str(model), "--port", str(port))


def test_every_sample_of_the_house(server):
    """Bodies that clients really send, and their statuses."""
    hi = [{"role": "user", "content": "ok?"}]
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    bodies = [
        (200, {"messages": [{"role": "system", "content": "One word."}, {"role": "system", "content": "Lower case."}, *hi]}),
        (200, {"messages": [*hi, {"role": "assistant", "content": "Heron."}, {"role": "system", "content": "In French."}, *hi]}),
        (200, {"messages": [{"role": "system", "content": "Name one fruit."}]}),
        (200, {"messages": hi, "store": False, "metadata": {"a": "b"}, "user": "u", "cache_prompt": True, "zzz": 1,
               "parallel_tool_calls": True, "service_tier": "auto", "verbosity": "low"}),
        (200, {"messages": hi, "max_completion_tokens": 2}),
        (200, {"messages": hi} | off), (200, {"messages": hi, "enable_thinking": False}),
        (200, {"messages": hi, "reasoning_effort": "none"}), (200, {"messages": hi, "tool_choice": "none", "tools": []}),
        (400, {"messages": "hi"}), (400, {}), (400, [1]),
    ]
    for status, body in bodies:
        sent = body | {"model": "m", "max_tokens": 2} if isinstance(body, dict) else body
        answer = httpx.post(server.url("/v1/chat/completions"), json=sent, timeout=60)
        assert answer.status_code == status, (body, answer.text)
    prompts = {httpx.post(server.url("/apply-template"), json={"messages": hi} | fields).json()["prompt"]
               for fields in (off, {"enable_thinking": False}, {"reasoning_effort": "none"}, {"think": False})}
    assert len(prompts) == 1


def test_a_body_over_the_limit(server):
    answer = httpx.post(server.url("/v1/chat/completions"), content=b"x" * ((64 << 20) + 1), timeout=60)
    assert answer.status_code == 413
