"""/metrics against what was done to the server: every counter is checked after a known set of requests."""
import collections
import random
import re
import time

import httpx

from server_process import Server

CHAT = "/v1/chat/completions"


def read(server) -> dict[str, float]:
    text = httpx.get(server.url("/metrics")).text
    samples = dict(re.fullmatch(r"(\S+) (\S+)", line).groups() for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples.items()}


def check_form(server):
    """Every sample belongs to the family announced above it, and histograms are cumulative."""
    family, kind, last = "", "", {}
    for line in httpx.get(server.url("/metrics")).text.splitlines():
        if line.startswith("# TYPE"):
            _, _, family, kind = line.split(" ")
        elif not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert name == family or kind == "histogram" and name in {f"{family}_bucket", f"{family}_sum", f"{family}_count"}, line
            if name.endswith("_bucket"):
                assert float(line.split(" ")[-1]) >= last.get(name, 0)
                last[name] = float(line.split(" ")[-1])
            elif name.endswith("_count"):
                assert float(line.split(" ")[-1]) == last[f"{family}_bucket"], line


def test_counters_are_what_happened():
    with Server(None, "--parallel", "2", "--ctx", "32768") as server:
        question = {"messages": [{"role": "user", "content": "What is 23 plus 45?"}], "temperature": 0}
        usages = [httpx.post(server.url(CHAT), json=question, timeout=60).json()["usage"] for _ in range(3)]
        usages.append(httpx.post(server.url(CHAT), json=question | {"max_tokens": 1}, timeout=60).json()["usage"])
        httpx.post(server.url(CHAT), json=question | {"stream": True, "max_tokens": 5}, timeout=60).raise_for_status()
        said = httpx.post(server.url("/v1/messages"), json=question | {"max_tokens": 5}, timeout=60).json()["usage"]
        assert httpx.post(server.url(CHAT), json={}).status_code == 400
        assert httpx.post(server.url(CHAT), json=question | {"messages": [{"role": "user", "content": "a " * 40_000}]}).status_code == 400
        with httpx.stream("POST", server.url(CHAT), json=question | server.endless | {"stream": True}, timeout=60) as leaving:
            next(leaving.iter_lines())
        server.wait_for_log("finish=cancelled")
        server.wait_for_metric("lily_requests_running 0")
        got = read(server)
        check_form(server)

    def ended(path, status, finish):
        return got[f'lily_requests_total{{path="{path}",status="{status}",finish="{finish}"}}']
    assert (ended(CHAT, 200, "stop"), ended(CHAT, 200, "length"), ended("/v1/messages", 200, "length")) == (3, 2, 1)
    assert (ended(CHAT, 400, "error"), ended(CHAT, 400, "context_length_exceeded"), ended(CHAT, 200, "cancelled")) == (1, 1, 1)
    assert sum(value for name, value in got.items() if name.startswith("lily_requests_total")) == 9
    # The stream and the message cost what the same prompt cost before.
    prompt = usages[0]["prompt_tokens"]
    message = said["input_tokens"] + said["cache_read_input_tokens"]
    assert got["lily_prompt_tokens_total"] == 5 * prompt + message
    assert got["lily_completion_tokens_total"] == sum(usage["completion_tokens"] for usage in usages) + 5 + 5
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) + said["cache_read_input_tokens"]
    assert cached <= got["lily_cached_prompt_tokens_total"] <= cached + prompt
    assert got["lily_reasoning_tokens_total"] >= sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages)
    assert got["lily_time_to_first_token_seconds_count"] == got["lily_queue_seconds_count"] == 6
    assert got["lily_time_per_output_token_seconds_count"] == 5 and got["lily_request_seconds_count"] == 9
    # An answer that was taken is a finished job, however fast its client went away.
    assert (got['lily_jobs_total{end="finished"}'], got['lily_jobs_total{end="failed"}'], got['lily_jobs_total{end="cancelled"}']) == (6, 0, 1)
    assert got["lily_generated_tokens_total"] >= got["lily_completion_tokens_total"] + 1
    assert got["lily_requests_running"] == got["lily_requests_waiting"] == 0
    assert sum(value for name, value in got.items() if name.startswith("lily_cache_prompts_total")) == 7


def test_requests_end_as_their_jobs_do():
    """Whatever a client has read when it leaves."""
    source = random.Random("leaving")
    with Server(None, "--parallel", "2", "--ctx", "4096") as server:
        for i in range(60):
            stream = source.random() < 0.5
            leaving = server.send({"messages": [{"role": "user", "content": f"Number {i}"}], "max_tokens": 4, "stream": stream})
            time.sleep(source.uniform(0, 0.03))
            leaving.close()
        server.wait_until(lambda: server.log().count(" finish=") == 60, "to log 60 requests")
        server.wait_for_metric("lily_requests_running 0")
        got = read(server)
    ends = collections.Counter()
    for name, value in got.items():
        if name.startswith("lily_requests_total"):
            ends[re.search(r'finish="(\w+)"', name).group(1)] += value
    assert set(ends) <= {"stop", "length", "unread", "cancelled", "left"}
    assert got['lily_jobs_total{end="finished"}'] == ends["stop"] + ends["length"] + ends["unread"]
    assert got['lily_jobs_total{end="cancelled"}'] == ends["cancelled"]
    assert sum(ends.values()) == 60 and ends["cancelled"] > 0
