"""What lily keeps between requests: how little it reads again, and that answers do not change by it. K01 to K15 are the cases
that a server for this model is held against (docs/STATE.md).

Prompts are the tests' own (histories, tool chains), the answers those of the model that comes with lily, greedy. The sizes that
take long are set by variables; without them the tests are the same in small."""
import concurrent.futures
import json
import os
import re
import time

import httpx
import pytest

from kept import SLACK, TOOLS, Agent, ask, cached, message, metrics, reread, resident, said, system, tokens, tool_chain, user, words
from server_process import Server

CONTEXT = "16384"
LONG = int(os.environ.get("LILY_LONG_TOKENS", "6000"))  # of the cases that ask for 100,000 tokens
SOAK = int(os.environ.get("LILY_SOAK", "150"))  # requests; the case asks for 2,000


@pytest.fixture(scope="module")
def server():
    with Server(None, "--parallel", "4", "--ctx", CONTEXT) as running:
        yield running


@pytest.fixture(scope="module")
def cold():
    with Server(None, "--parallel", "4", "--ctx", CONTEXT, "--cache-ram", "0") as running:
        yield running


def test_an_exact_repeat_is_not_read_again(server):  # K01
    messages = [user(words(4000, "repeat"))]
    first, second = ask(server, messages), ask(server, messages)
    assert reread(first) == first["usage"]["prompt_tokens"] >= 4000
    assert reread(second) <= SLACK
    assert message(first) == message(second)


@pytest.mark.parametrize("preserve", [False, True])
def test_a_new_query_after_a_tool_chain(server, preserve):  # K02, K03
    options = {"chat_template_kwargs": {"preserve_thinking": preserve}}
    opening = [system(("chain", preserve)), user(f"What is the weather? {preserve}")]
    chain = tool_chain(8, with_reasoning=True)
    for end in range(0, len(chain) + 1, 2):
        answer = ask(server, opening + chain[:end], **options)
        if end > 0:  # within the loop only what is new is read
            new = tokens(server, json.dumps(chain[end - 2:end]))
            assert reread(answer) <= new + SLACK + 40, end
    final = message(answer)
    history = opening + chain + [{"role": "assistant", "content": final["content"],
                                  "reasoning_content": final.get("reasoning_content", "")}]
    nxt = ask(server, history + [user("And now the next question.")], **options)
    if preserve:
        assert reread(nxt) <= 2 * SLACK
        return
    known = tokens(server, opening[0]["content"] + opening[1]["content"])
    assert cached(nxt) >= known - SLACK, "system and first query must be kept"
    assert reread(nxt) <= nxt["usage"]["prompt_tokens"] - known + SLACK


def test_a_client_that_drops_the_reasoning(server, cold):  # K04
    opening = [system("dropped"), user("Look it up.")]
    chain = tool_chain(4, with_reasoning=False)
    for end in range(0, len(chain) + 1, 2):
        warm = ask(server, opening + chain[:end])
        assert said(warm) == said(ask(cold, opening + chain[:end]))
        if end > 2:
            assert reread(warm) <= tokens(server, json.dumps(chain[end - 2:end])) + SLACK + 40, end


def test_plain_turns_without_thinking(server):  # K05
    options = {"chat_template_kwargs": {"enable_thinking": False}}
    messages = [system("plain")]
    last_answer = 0
    for turn in range(3):
        question = words(30, ("question", turn))
        messages.append(user(question))
        answer = ask(server, messages, **options)
        if turn > 0:
            template = 20  # tokens of its own
            assert reread(answer) <= last_answer + tokens(server, question) + template + SLACK, turn
        last_answer = answer["usage"]["completion_tokens"]
        messages.append({"role": "assistant", "content": message(answer)["content"]})


def test_an_edit_answers_like_a_server_that_kept_nothing(server, cold):  # K06
    messages = [system("edit")]
    for turn in range(5):
        messages += [user(words(50, ("edited", turn))), {"role": "assistant", "content": words(30, ("said", turn))}]
    messages[-1] = user("Well?")
    ask(server, messages)
    messages[3] = user("Something else altogether, " + words(40, "other"))
    warm, fresh = ask(server, messages), ask(cold, messages)
    assert message(warm) == message(fresh)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_side_request_evicts_nothing_long():  # K07
    with Server(None, "--ctx", "8192", "--parallel", "1", "--cache-ram", "32") as server:
        long = [user(words(2500, "long"))]
        ask(server, long)
        for i in range(30):
            ask(server, [user(f"A title for {i}, please: " + words(20, ("title", i)))], max_tokens=8)
        assert reread(ask(server, long + [{"role": "assistant", "content": "Yes."}, user("Go on.")])) < 400


@pytest.mark.parametrize("moment", ["prefill", "decode"])
def test_a_client_that_leaves_frees_its_place_and_finds_what_was_read(server, moment):  # K09
    messages = [user(words(9000 if moment == "prefill" else 1500, ("gone", moment)))]
    before = metrics(server)
    leaving = server.send({"messages": messages, "stream": True} | server.endless)
    if moment == "decode":
        leaving.recv(10)
    else:
        read = before["lily_computed_prompt_tokens_total"]
        server.wait_until(lambda: metrics(server)["lily_computed_prompt_tokens_total"] > read + 2048, "to read a part")
    leaving.close()
    server.wait_for_metric("lily_requests_running 0")
    assert metrics(server)['lily_jobs_total{end="cancelled"}'] == before['lily_jobs_total{end="cancelled"}'] + 1
    again = ask(server, messages, max_tokens=4)
    if moment == "prefill":
        assert cached(again) >= 2048
    else:
        assert reread(again) <= SLACK


def test_a_client_that_leaves_the_queue_is_forgotten():  # K09
    with Server(None, "--parallel", "1", "--ctx", CONTEXT) as server:
        first = server.send({"messages": [user("First")]} | server.endless)
        server.wait_for_metric("lily_requests_running 1")
        second = server.send({"messages": [user("Second")]})
        server.wait_for_metric("lily_requests_waiting 1")
        second.close()
        server.wait_for_metric("lily_requests_waiting 0")
        server.wait_for_metric('lily_jobs_total{end="cancelled"} 1')
        first.close()
        ask(server, [user("Third")], max_tokens=2)
        server.wait_for_metric('lily_jobs_total{end="cancelled"} 2')


def test_parallel_requests_keep_to_themselves(server):  # K10
    def one(i):
        return message(ask(server, [system("shared"), user(f"Repeat the word w{i}x five times.")]))

    alone = [one(i) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == alone


# K08 without drafts: lily has none yet (MTP). With them the other half of the case is these same prompts with drafts on.
def test_twenty_prompts_with_tools_answer_alike_cold_and_warm(server, cold):
    prompts = []
    for i in range(5):
        opening = [system(("twenty", i), 100), user(f"What is the weather in city {i}?")]
        chain = tool_chain(3, with_reasoning=i % 2 == 0)
        prompts += [opening + chain[:end] for end in range(0, 7, 2)]
    fresh, first, second = ([said(ask(one, messages, tools=TOOLS, max_tokens=24)) for messages in prompts]
                            for one in (cold, server, server))
    assert len(prompts) == 20
    assert fresh == first == second


def test_seeds(server):  # K11
    def answer(**fields):
        return said(ask(server, [user("Tell me a story.")], temperature=2, top_p=1, top_k=0, **fields))

    assert answer(seed=7) == answer(seed=7) == answer(seed=7)
    assert answer(seed=7) != answer(seed=8)
    assert len({str(answer()) for _ in range(3)}) > 1


@pytest.fixture(scope="module")
def long_server(tmp_path_factory):
    with Server(None, "--parallel", "1", "--ctx", str(LONG + 4096)) as running:
        yield running


def test_a_long_prompt_is_not_silent_and_errors_come_before_the_header(long_server):  # K12
    url = long_server.url("/v1/chat/completions")
    bad = {"messages": [user(words(LONG, "bad"))], "stream": True, "temperature": "hot"}
    assert httpx.post(url, json=bad, timeout=60).status_code == 400
    too_long = {"messages": [user(words(LONG + 8192, "bad"))], "stream": True}
    assert httpx.post(url, json=too_long, timeout=60).json()["error"]["code"] == "context_length_exceeded"
    body = {"messages": [user(words(LONG, "silent"))], "stream": True, "max_tokens": 4}
    last = time.monotonic()
    longest = 0.0
    with httpx.stream("POST", url, json=body, timeout=3600) as stream:
        assert stream.status_code == 200
        for _ in stream.iter_raw():
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
    assert longest < 10


def test_a_needle_is_found_alike_cold_warm_and_from_disk(tmp_path):  # K15
    options = ["--parallel", "1", "--ctx", str(LONG + 4096), "--cache-dir", str(tmp_path)]

    def needle(server, place: float):
        hay = words(LONG, "hay").split()
        hay.insert(int(LONG * place), "The secret word is violet.")
        return ask(server, [user(" ".join(hay) + " What is the secret word?")], max_tokens=24)

    places = (0.1, 0.5, 0.9)
    with Server(None, *options) as server:
        fresh = [needle(server, place) for place in places]
        warm = [needle(server, place) for place in places]
    with Server(None, *options) as server:
        restored = [needle(server, place) for place in places]
        assert metrics(server)["lily_disk_operations_total{what=\"read\"}"] > 0
    for first, second, third in zip(fresh, warm, restored):
        assert said(first) == said(second) == said(third)
        assert reread(second) <= SLACK and reread(third) <= SLACK


def test_memory_stays_flat(tmp_path):  # K13: tools, clients that leave, prompts that are too long; memory and disk are both full
    disk = ["--cache-dir", str(tmp_path), "--cache-disk", "24"]
    with Server(None, "--ctx", "4096", "--parallel", "4", "--cache-ram", "64", *disk) as server:
        def one(i):
            kind = i % 10
            if kind == 3:
                leaving = server.send({"messages": [user(words(2000, ("leaves", i)))]} | server.endless)
                time.sleep(0.05)
                leaving.close()
            elif kind == 7:
                refused = httpx.post(server.url("/v1/chat/completions"), timeout=60, json={"messages": [user(words(5000, i))]})
                assert refused.status_code == 400
            elif kind == 5:
                agent = Agent(server, ("soak", i), with_reasoning=i % 20 == 5)
                agent.turn()
                agent.turn()
            else:
                ask(server, [user(words(200 + i % 300, ("flat", i)))], max_tokens=2)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            warm_up = SOAK // 3
            list(pool.map(one, range(warm_up)))
            server.wait_for_metric("lily_requests_running 0")
            warmed_up = resident(server)
            list(pool.map(one, range(warm_up, SOAK)))
        server.wait_for_metric("lily_requests_running 0")
        assert resident(server) < warmed_up + (24 << 20)
        found = metrics(server)
        assert found["lily_cache_bytes"] <= 64 << 20 and found["lily_disk_bytes"] <= 24 << 20
        assert found['lily_disk_operations_total{what="failed"}'] == 0 < found['lily_disk_operations_total{what="written"}']
        assert "500" not in {line.split()[3] for line in server.lines if " finish=" in line}


def test_the_log_says_where_a_prompt_parts_from_what_is_kept(server):
    history = [user("Count the " + words(200, "parting")), {"role": "assistant", "content": "Many."}]
    ask(server, [*history, user("Which one is green?")])
    changed = ask(server, [*history, user("Whose is the lamp?")])
    server.wait_for_log(changed["id"])
    [line] = [line for line in server.lines if changed["id"] in line]
    position, kept, own = (int(n) for n in re.search(r" parted=(\d+):(\d+)/(\d+)", line).groups())
    prompt = httpx.post(server.url("/apply-template"), json={"messages": [*history, user("Whose is the lamp?")], "tokenize": True}).json()["tokens"]
    assert prompt[position] == own != kept and position < len(prompt)
    text = httpx.post(server.url("/detokenize"), json={"tokens": prompt[position:position + 1]}).json()["content"]
    assert text == "Whose"[:len(text)], (text, line)
