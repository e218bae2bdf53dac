"""Clients that send what no client should."""
import gzip
import json

import httpx

from server_process import Server

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def everything(connection) -> bytes:
    text = b""
    while piece := connection.recv(65536):
        text += piece
    return text


def test_a_body_in_an_unknown_coding_is_refused_and_not_read_as_the_next_request(server):
    with server.connect() as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"
                           b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"Transfer-Encoding" in answer
    assert answer.count(b"HTTP/1.1") == 1
    squeezed = httpx.post(server.url(CHAT), content=gzip.compress(json.dumps(BODY).encode()),
                          headers={"Content-Encoding": "gzip"}, timeout=60)
    assert squeezed.status_code == 415
    assert "gzip" in squeezed.json()["error"]["message"]


def test_a_byte_order_mark_is_skipped_and_invalid_utf8_is_named(server):
    text = json.dumps(BODY).encode()
    assert httpx.post(server.url(CHAT), content=b"\xef\xbb\xbf" + text, timeout=60).status_code == 200
    answer = httpx.post(server.url(CHAT), content=text.replace(b"Hi", b"\xff"), timeout=60)
    assert answer.status_code == 400
    assert "not valid UTF-8 at byte" in answer.json()["error"]["message"]


def test_an_error_does_not_send_megabytes_back(server):
    for body in (BODY | {"model": "é" * 1_000_000}, BODY | {"messages": [{"role": "é" * 1_000_000}]},
                 BODY | {"reasoning_effort": "é" * 1_000_000}, BODY | {"logit_bias": {"é" * 1_000_000: 1}}):
        answer = httpx.post(server.url(CHAT), json=body, timeout=60)
        assert answer.status_code == 400
        assert len(answer.content) < 5000
        assert "\ufffd" not in answer.text


def test_a_client_that_leaves_behind_a_backlog_is_noticed(model):
    with Server(model, "--parallel", "1", "--ctx", "32768") as server:
        connection = server.send(BODY | server.endless)
        # More than the server reads ahead, and little enough for the socket's buffer to hold with the end behind it: the end
        # of a stream that is longer than both cannot arrive before the answer is written.
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3_000)
        connection.close()
        server.wait_until(lambda: "finish=cancelled" in server.log() or "finish=left" in server.log(), "to notice that")
        assert httpx.post(server.url(CHAT), json=BODY, timeout=60).status_code == 200
