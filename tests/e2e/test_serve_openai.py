"""The openai client for Python against the real server: what a user's first program does."""
import concurrent.futures

import openai
import pytest

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
HELLO = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0, timeout=120)


def test_an_answer(client):
    answer = client.chat.completions.create(model="my-model", messages=HELLO, max_tokens=12, seed=1, extra_body=OFF)
    assert answer.model == "my-model"
    assert answer.object == "chat.completion"
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    assert getattr(choice.message, "reasoning_content", None) is None
    usage = answer.usage
    assert 1 <= usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream(client):
    chunks = list(client.chat.completions.create(model="m", messages=HELLO, max_tokens=16, seed=3, stream=True,
                                                 stream_options={"include_usage": True}))
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert len(finishes) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens <= 16
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for chunk in chunks[:-1]:
        delta = chunk.choices[0].delta
        assert not (delta.content and getattr(delta, "reasoning_content", None))


def test_stream_and_whole_answer_are_the_same_text(client):
    fields = dict(model="m", messages=HELLO, max_tokens=24, seed=4, temperature=0.8, extra_body=OFF)
    whole = client.chat.completions.create(**fields)
    streamed = "".join(chunk.choices[0].delta.content or ""
                       for chunk in client.chat.completions.create(**fields, stream=True))
    assert streamed == whole.choices[0].message.content


def test_two_clients_at_once_do_not_mix(client):
    def ask(seed):
        return client.chat.completions.create(model="m", messages=HELLO, max_tokens=24, seed=seed, extra_body=OFF
                                              ).choices[0].message.content
    alone = [ask(seed) for seed in (10, 11)]
    assert alone[0] != alone[1]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, (10, 11))) == alone


def test_a_seed_repeats_and_its_absence_does_not(client):
    def ask(**fields):
        return client.chat.completions.create(model="m", messages=HELLO, max_tokens=16, temperature=1, extra_body=OFF,
                                              **fields).choices[0].message.content
    assert ask(seed=7) == ask(seed=7) != ask(seed=8)
    assert len({ask() for _ in range(3)}) > 1


def test_turns_of_a_conversation(client):
    messages = [{"role": "system", "content": "Be brief."}]
    sizes = []
    for question in ("Hello!", "Und auf Deutsch? 🌷", "再见"):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="m", messages=messages, max_tokens=8, seed=1)
        message = answer.choices[0].message
        sizes.append(answer.usage.prompt_tokens)
        messages.append({"role": "assistant", "content": message.content,
                         "reasoning_content": getattr(message, "reasoning_content", None)})
    assert sizes == sorted(sizes)


def test_a_tool_conversation_is_accepted(client):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]
    messages = [{"role": "user", "content": "Weather in Oslo?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Os'}}]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4 C, rain"}]}]
    answer = client.chat.completions.create(model="m", messages=messages, tools=tools, max_tokens=4)
    assert answer.usage.prompt_tokens > 100


def test_stop_strings_are_never_seen(client):
    fields = dict(model="m", messages=HELLO, max_tokens=64, seed=4, temperature=0.8, extra_body=OFF)
    text = client.chat.completions.create(**fields).choices[0].message.content
    stop = text[len(text) // 2:len(text) // 2 + 2]
    assert stop
    stopped = client.chat.completions.create(**fields, stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[:text.index(stop)]


def test_logprobs(client):
    answer = client.chat.completions.create(model="m", messages=HELLO, max_tokens=6, temperature=0, logprobs=True,
                                            top_logprobs=3, extra_body=OFF)
    tokens = answer.choices[0].logprobs.content
    assert tokens
    assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace").startswith(
        answer.choices[0].message.content.rstrip("\ufffd")[:4])
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
        assert token.logprob == token.top_logprobs[0].logprob  # greedy


def test_a_trailing_answer_is_continued(client):
    answer = client.chat.completions.create(model="m", max_tokens=4, messages=HELLO + [
        {"role": "assistant", "content": "The Rhine, the"}])
    assert getattr(answer.choices[0].message, "reasoning_content", None) is None


def test_models(client, server):
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(model.id).id
    assert model.context_length == model.max_model_len == 4096
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


BAD = [
    (dict(messages=[]), "messages"),
    (dict(messages=[{"role": "critic", "content": "x"}]), "messages[0].role"),
    (dict(messages=[{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {
        "url": "data:image/png;base64,iVBORw0KGgo="}}]}]), "messages[0].content[1]"),
    (dict(messages=HELLO, temperature=3), "temperature"),
    (dict(messages=HELLO, n=2), "n"),
    (dict(messages=HELLO, max_tokens=0), "max_tokens"),
    (dict(messages=HELLO, top_logprobs=3), "top_logprobs"),
    (dict(messages=HELLO, stop=["x"] * 17), "stop"),
    (dict(messages=HELLO, logit_bias={"9999999": 1}), "logit_bias.9999999"),
    (dict(messages=HELLO, response_format={"type": "json_object"}), "response_format"),
    (dict(messages=HELLO, tool_choice="required"), "tool_choice"),
]


@pytest.mark.parametrize("fields, param", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_their_field(client, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="m", stream=stream, **fields)
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow_is_recognised(client, stream):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 5000}], stream=stream)
    assert raised.value.code == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in raised.value.message
    assert "exceeds the available context size" in raised.value.message


def test_a_limit_beyond_the_context_is_cut(client):
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 500}],
                                            max_tokens=10**9, stop=["e", "a", "o", " "], extra_body=OFF)
    assert answer.choices[0].finish_reason in ("stop", "length")
