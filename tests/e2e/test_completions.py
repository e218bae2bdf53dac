"""Text completions, the description of the API and what the server says about itself."""

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from server_process import Server

PROMPT = "<|im_start|>user\nWhat is 17 plus 25?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def server():
    with Server(None, "--parallel", "4", "--ctx", "2048", "--queue", "8") as running:
        yield running


@pytest.fixture
def client(server):
    return OpenAI(base_url=server.url("/v1"), api_key="any", max_retries=0)


def post(server, body, path="/v1/completions"):
    return httpx.post(server.url(path), json=body, timeout=120)


def test_text_goes_on(client):
    answer = client.completions.create(model="m", prompt=PROMPT, max_tokens=50, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    [choice] = answer.choices
    assert "42" in choice.text and choice.finish_reason == "stop" and choice.logprobs is None
    assert answer.usage.prompt_tokens > 10
    streamed = list(client.completions.create(model="m", prompt=PROMPT, max_tokens=50, temperature=0, stream=True,
                                              stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == choice.text
    assert [chunk.choices[0].finish_reason for chunk in streamed if chunk.choices][-1] == "stop"
    assert streamed[-1].choices == [] and streamed[-1].usage.total_tokens == answer.usage.total_tokens
    assert len({chunk.id for chunk in streamed}) == 1


def test_nothing_is_taken_out_of_the_text(server, client):
    prompt = "<|im_start|>user\nWhat is 8 plus 9?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    answer = client.completions.create(model="m", prompt=prompt, max_tokens=300, temperature=0)
    assert "</think>" in answer.choices[0].text and "17" in answer.choices[0].text


def test_ids_are_a_prompt_too(server, client):
    ids = post(server, {"content": PROMPT}, "/tokenize").json()["tokens"]
    texts = [client.completions.create(model="m", prompt=p, max_tokens=20, temperature=0).choices[0].text for p in (PROMPT, ids, [PROMPT], [ids])]
    assert len(set(texts)) == 1
    echoed = client.completions.create(model="m", prompt=PROMPT, max_tokens=20, temperature=0, echo=True)
    assert echoed.choices[0].text == PROMPT + texts[0]
    assert client.completions.create(model="m", prompt="Hello", extra_body={"temperature": 0}).usage.completion_tokens <= 16


def test_logprobs_have_their_first_form(client):
    choice = client.completions.create(model="m", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text and all(value <= 0 for value in logprobs.token_logprobs)
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
    assert all(len(top) <= 3 for top in logprobs.top_logprobs)


def test_a_stop_string_ends_it(client):
    choice = client.completions.create(model="m", prompt=PROMPT, max_tokens=50, temperature=0, stop=["2"]).choices[0]
    assert "2" not in choice.text and choice.finish_reason == "stop"


@pytest.mark.parametrize("body, param", [
    ({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt[1]"), ({"prompt": [10**6]}, "prompt[0]"), ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "n": 2}, "n"),
    ({"prompt": "a", "best_of": 2}, "best_of"), ({"prompt": "a", "logprobs": 21}, "logprobs"), ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"), ({"prompt": "word " * 3000}, "prompt"),
])
def test_errors_name_the_field(server, body, param):
    answer = post(server, body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_props_and_slots_are_as_llama_cpps(server):
    props = httpx.get(server.url("/props")).json()
    assert props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] == 4
    assert props["modalities"] == {"vision": False, "audio": False} and props["eos_token"] == "<|im_end|>"
    assert 0 <= props["default_generation_settings"]["params"]["temperature"] <= 2
    slots = httpx.get(server.url("/slots")).json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3] and not any(slot["is_processing"] for slot in slots)


def test_models_say_the_context(server, client):
    [model] = client.models.list().data
    assert model.context_length == model.max_model_len == model.meta["n_ctx"] == 2048
    assert httpx.get(server.url("/v1/models")).json()["models"][0]["name"] == model.id


def metrics(server) -> dict[str, float]:
    answer = httpx.get(server.url("/metrics"))
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    out = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
        for sample in family.samples:
            out[sample.name + "".join(f"[{v}]" for v in sample.labels.values())] = sample.value
    return out


def test_metrics_count(server):
    before = metrics(server)
    body = {"messages": [{"role": "system", "content": "Answer with care. " * 60}, {"role": "user", "content": "What is 17 plus 25?"}], "temperature": 0}
    usages = [post(server, body, "/v1/chat/completions").json()["usage"] for _ in range(2)]
    post(server, {"messages": []}, "/v1/chat/completions")
    after = metrics(server)

    def gained(name):
        return after[name] - before.get(name, 0)

    assert gained("lily_requests_total[/v1/chat/completions][200][stop]") == 2
    assert gained("lily_requests_total[/v1/chat/completions][400][error]") == 1
    assert gained("lily_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert gained("lily_completion_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert gained("lily_cached_prompt_tokens_total") == sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) > 0
    for name in ("lily_time_to_first_token_seconds", "lily_time_per_output_token_seconds", "lily_queue_seconds"):
        assert gained(name + "_count") == gained(name + "_bucket[+Inf]") == 2 and after[name + "_sum"] >= 0
    assert gained("lily_request_seconds_count") == 3
    assert gained("lily_cache_prompts_total[hit]") >= 1
    assert after["lily_cache_bytes"] > 0 and after["lily_requests_running"] == 0 == after["lily_requests_waiting"]
    assert after["process_resident_memory_bytes"] > 1e6 and after["lily_ready"] == 1
    assert after["lily_context_tokens"] == 2048 and after["lily_sequences"] == 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
                                  "/metrics", "/props", "/slots", "/v1/models", "/openapi.json", "/nothing"])
def test_pages_of_other_origins_may_call(server, path):
    preflight = httpx.options(server.url(path), headers={
        "Origin": "https://example.org", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key, anthropic-version"})
    assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == "*"
    assert "anthropic-version" in preflight.headers["access-control-allow-headers"]
    assert httpx.get(server.url(path)).headers["access-control-allow-origin"] == "*"


def test_keys_guard_all_but_a_few(model):
    with Server(model, "--ctx", "512", "--api-key", "sesame") as server:
        for path in ("/health", "/", "/openapi.json"):
            assert httpx.get(server.url(path)).status_code == 200
        for path in ("/metrics", "/props", "/slots", "/v1/models"):
            assert httpx.get(server.url(path)).status_code == 401
            assert httpx.get(server.url(path), headers={"Authorization": "Bearer sesame"}).status_code == 200
