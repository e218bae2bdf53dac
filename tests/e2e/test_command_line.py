"""Odd options, streams that are closed or full, files that are not there."""
import os
import shutil
import signal
import subprocess

import httpx
import pytest

from server_process import LILY, Server


def lily(*arguments, **options):
    return subprocess.run([LILY, *map(str, arguments)], capture_output=True, timeout=120, **options)


def said(result) -> str:
    return result.stderr.decode(errors="replace")


@pytest.mark.parametrize("arguments, word", [(["bogus"], "bogus"), (["--bogus"], "--bogus"), ([""], "''")])
def test_an_unknown_command_is_named(arguments, word):
    result = lily(*arguments)
    assert result.returncode == 2
    assert word in said(result)


@pytest.mark.parametrize("option", ["--temperature", "--top-p", "--min-p", "--presence-penalty",
                                    "--frequency-penalty", "--repetition-penalty"])
def test_not_a_number_is_no_number(model, option):
    result = lily("run", model, "-p", "x", option, "nan")
    assert result.returncode == 2
    assert option in said(result)


@pytest.mark.parametrize("command", [["run", "MODEL", "-p", "x"], ["synth", "DST", "--shape", "tiny"]])
def test_too_many_threads_are_refused_at_once(model, tmp_path, command):
    command = [{"MODEL": model, "DST": tmp_path / "new"}.get(word, word) for word in command]
    result = lily(*command, "--threads", "100000")
    assert result.returncode == 2
    assert "--threads" in said(result)


def test_an_unknown_instruction_set_is_not_ignored(model):
    result = lily("run", model, "-p", "x", "--max-tokens", "1", "--isa", "mmx")
    assert result.returncode == 1
    assert "unknown instruction set 'mmx'" in said(result)


def test_packed_weights_are_kept_used_and_made_again(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    packed = folder / "packed-cpu.lily"
    command = ["run", folder, "-p", "x", "--max-tokens", "8", "--device", "cpu", "--temperature", "0"]
    plain = lily(*command)
    assert plain.returncode == 0 and not packed.exists()
    first = lily(*command, "--repack-cache")
    made = packed.stat()
    again = lily(*command, "--repack-cache")
    assert packed.stat().st_mtime_ns == made.st_mtime_ns, "it is mapped, not made again"
    packed.write_bytes(packed.read_bytes()[:-1])
    damaged = lily(*command, "--repack-cache")
    assert "ignored and made again" in said(damaged)
    assert packed.stat().st_size == made.st_size
    assert plain.stdout == first.stdout == again.stdout == damaged.stdout


def test_a_model_name_that_is_too_long(model):
    result = lily("run", "a" * 5000, "-p", "x")
    assert result.returncode == 1
    assert "no folder" in said(result) and "internal" not in said(result)


def test_a_folder_where_a_file_is_expected(model, tmp_path):
    for command in (["run", model, "-f", tmp_path], ["eval", "perplexity", model, "--text", tmp_path]):
        result = lily(*command)
        assert result.returncode == 1
        assert "is a folder" in said(result) and "internal" not in said(result)


def test_an_empty_text_is_said_to_be_one(model, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    result = lily("eval", "perplexity", model, "--text", empty)
    assert result.returncode == 1
    assert "expected at least two tokens" in said(result)


def test_logits_that_cannot_be_written_leave_what_was_there(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2]")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["head", "-c", "10", pipe], stdout=subprocess.DEVNULL)
    result = lily("eval", "logits", model, "--tokens", ids, "--out", pipe)
    reader.wait(30)
    assert result.returncode == 1
    assert pipe.exists()


def test_logits_are_those_of_the_reference_unless_a_device_is_named(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[5, 6, 7, 8, 300]")
    for name, *device in (("default",), ("reference", "--device", "reference"), ("cpu", "--device", "cpu")):
        result = lily("eval", "logits", model, "--tokens", ids, "--out", tmp_path / f"{name}.npy", *device)
        assert result.returncode == 0, result.stderr
    default, reference, cpu = ((tmp_path / f"{name}.npy").read_bytes() for name in ("default", "reference", "cpu"))
    assert default == reference != cpu


def test_closed_streams(model):
    command = f"exec {LILY} run {model} -p x --no-think --max-tokens 3 --seed 1"
    alone = subprocess.run(["sh", "-c", f"{command} 2>&-"], stdout=subprocess.PIPE, timeout=60)
    assert alone.returncode == 0
    assert alone.stdout
    mute = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, timeout=60)
    assert mute.returncode == 1
    assert b"standard output" in mute.stderr
    assert subprocess.run(["sh", "-c", f"{command} >&- 2>&- <&-"], timeout=60).returncode == 1


def test_an_answer_that_nobody_reads_is_not_finished(model):
    process = subprocess.Popen([LILY, "run", model, "-p", "x", "--no-think", "--max-tokens", "30000", "--temperature", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    assert b"standard output" in process.stderr.read()
    assert process.wait(60) == 1


def test_a_server_outlives_the_reader_of_its_log(model):
    process = subprocess.Popen([LILY, "serve", model, "--port", "0"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    while b"is ready on" not in process.stderr.readline():
        assert process.poll() is None
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_model_that_is_cut_while_it_is_served(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    with Server(copy) as server:
        os.truncate(copy / "model.safetensors", 4096)
        with pytest.raises(httpx.HTTPError):
            httpx.post(server.url("/v1/chat/completions"), json={"messages": [{"role": "user", "content": "x"}]}, timeout=60)
        assert server.process.wait(30) == 1
        server.reader.join(5)
        assert "was shortened" in server.log()
