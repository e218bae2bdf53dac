"""Every malformed checkpoint, configuration and tokenizer of a list gets its own clear error and exit status 1.

Each case starts from a valid small checkpoint, spoils one thing, and runs the command that a user would. The error must name
the thing; nothing may crash (a signal gives a negative exit status) or take long.
"""
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

LILY = os.environ.get("LILY", "build/apps/lily/lily")
LAYER0 = "language_model.model.layers.0"


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("valid") / "tiny"
    subprocess.run([LILY, "synth", str(folder), "--shape", "tiny", "--layers", "4", "--seed", "3"], check=True,
                   capture_output=True)
    return folder


@pytest.fixture
def folder(valid, tmp_path) -> Path:
    """A copy whose files are links: a case replaces what it spoils."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in valid.iterdir():
        os.link(file, copy / file.name)
    return copy


def read_weights(folder: Path):
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + length]), raw[8 + length:]


def write_file(path: Path, content: bytes):
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def write_weights(folder: Path, header, data: bytes):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    write_file(folder / "model.safetensors", struct.pack("<Q", len(text)) + text + data)


def edit_json(folder: Path, name: str, edit):
    document = json.loads((folder / name).read_text())
    edit(document)
    write_file(folder / name, json.dumps(document).encode())


def fails(*command: str, timeout=60) -> str:
    done = subprocess.run([LILY, *command], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, (done.returncode, done.stderr[-2000:])
    assert done.stdout == "" or command[0] == "inspect", done.stdout[:500]
    return done.stderr + (done.stdout if command[0] == "inspect" else "")


def expect(text: str, *parts: str):
    for part in parts:
        assert part in text, f"expected {part!r} in:\n{text[:3000]}"


# --- the container: cases edit (header, data) and return what to write -------------------------------------------------

def drop(name):
    """Without the tensor, and without the gap that it would leave."""
    def spoil(header, data):
        begin, end = header.pop(name)["data_offsets"]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
        return header, data[:begin] + data[end:]
    return spoil


def gap(name):
    def spoil(header, data):
        del header[name]
        return header, data
    return spoil


def change(name, **fields):
    def spoil(header, data):
        header[name].update(fields)
        return header, data
    return spoil


def rename(old, new):
    def spoil(header, data):
        header[new] = header.pop(old)
        return header, data
    return spoil


def extra(name):
    def spoil(header, data):
        header[name] = {"dtype": "BF16", "shape": [2], "data_offsets": [len(data), len(data) + 4]}
        return header, data + b"\0\0\0\0"
    return spoil


def shift_offsets(name, delta):
    def spoil(header, data):
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [begin + delta, end + delta]
        return header, data
    return spoil


def cut_data(count):
    return lambda header, data: (header, data[:-count])


NORM = f"{LAYER0}.input_layernorm.weight"
ROUTER = f"{LAYER0}.mlp.gate"
QKV = f"{LAYER0}.linear_attn.in_proj_qkv"
CONTAINER = {
    "a norm is absent": (drop(NORM), [NORM]),
    "codes are absent": (drop(f"{QKV}.weight"), [f"{QKV}.weight"]),
    "scales are absent": (drop(f"{QKV}.scales"), [f"{QKV}.scales"]),
    "biases are absent": (drop(f"{QKV}.biases"), [f"{QKV}.biases"]),
    "the head is absent": (drop("language_model.lm_head.weight"), ["lm_head.weight"]),
    "an expert stack is absent": (drop(f"{LAYER0}.mlp.switch_mlp.up_proj.weight"), ["switch_mlp.up_proj.weight"]),
    "A_log is absent": (drop(f"{LAYER0}.linear_attn.A_log"), ["A_log"]),
    "a tensor nobody knows": (extra("language_model.model.layers.0.mlp.surprise.weight"), ["surprise"]),
    "a layer too many": (extra("language_model.model.layers.4.input_layernorm.weight"), ["layers.4"]),
    "a tensor under another name": (rename(NORM, f"{LAYER0}.input_norm.weight"), [NORM, "input_norm.weight"]),
    "a norm of another length": (change(NORM, shape=[128], data_offsets=[0, 256]), [NORM]),
    "a norm with integers": (change(NORM, dtype="I16"), [NORM, "I16"]),
    "codes as signed integers": (change(f"{QKV}.weight", dtype="I32"), [f"{QKV}.weight", "I32"]),
    "scales as bytes": (change(f"{QKV}.scales", dtype="I16"), [f"{QKV}.scales", "I16"]),
    "a type nobody knows": (change(NORM, dtype="Q3"), [NORM, "Q3"]),
    "a shape that is no list": (change(NORM, shape="256"), [NORM, "shape"]),
    "a negative dimension": (change(NORM, shape=[-256]), [NORM, "shape"]),
    "a dimension that overflows": (change(NORM, shape=[2**63, 4]), [NORM]),
    "offsets reversed": (change(NORM, data_offsets=[512, 0]), [NORM, "data_offsets"]),
    "offsets of three numbers": (change(NORM, data_offsets=[0, 1, 2]), [NORM, "data_offsets"]),
    "bytes that belong to no tensor": (gap(f"{QKV}.weight"), [f"{QKV}.scales", "belong to no tensor"]),
    "offsets overlap another tensor": (shift_offsets(NORM, 64), [NORM]),
    "offsets beyond the file": (shift_offsets(NORM, 1 << 40), [NORM]),
    "the file ends early": (cut_data(1000), ["model.safetensors"]),
}


@pytest.mark.parametrize("name", CONTAINER)
def test_container(folder, name):
    spoil, parts = CONTAINER[name]
    write_weights(folder, *spoil(*read_weights(folder)))
    expect(fails("inspect", str(folder)), *parts)


RAW = {
    "an empty file": (b"", ["model.safetensors"]),
    "seven bytes": (b"1234567", ["model.safetensors"]),
    "a header longer than the file": (struct.pack("<Q", 1 << 50) + b"{}", ["header"]),
    "a header of no length": (struct.pack("<Q", 0), ["header"]),
    "a header that is not JSON": (struct.pack("<Q", 4) + b"{]}}", ["JSON"]),
    "a header that is a list": (struct.pack("<Q", 2) + b"[]", ["header"]),
    "a name twice": (struct.pack("<Q", 110) + (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
    ).ljust(110) + b"xx", ["a", "twice"]),
    "brackets nested beyond reason": (struct.pack("<Q", 20005) + b'{"a":' + b"[" * 20000, ["JSON"]),
    "a pickle": (b"\x80\x02}q\x00(X\x06\x00\x00\x00weightq" + b"\0" * 100, ["header"]),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_file(folder, name):
    content, parts = RAW[name]
    write_file(folder / "model.safetensors", content)
    expect(fails("inspect", str(folder)), *parts)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    expect(fails("inspect", str(folder)), "model.safetensors")


def test_missing_shard(folder):
    header, _ = read_weights(folder)
    (folder / "model.safetensors").unlink()
    names = [name for name in header if name != "__metadata__"]
    write_file(folder / "model.safetensors.index.json",
               json.dumps({"weight_map": {name: "model-00001-of-00002.safetensors" for name in names}}).encode())
    expect(fails("inspect", str(folder)), "model-00001-of-00002.safetensors")


def test_index_names_a_path(folder):
    (folder / "model.safetensors").unlink()
    write_file(folder / "model.safetensors.index.json", b'{"weight_map": {"a": "../../etc/passwd"}}')
    expect(fails("inspect", str(folder)), "../../etc/passwd")


def test_index_is_not_json(folder):
    (folder / "model.safetensors").unlink()
    write_file(folder / "model.safetensors.index.json", b'{"weight_map": ')
    expect(fails("inspect", str(folder)), "index.json", "JSON")


# --- config.json ------------------------------------------------------------------------------------------------------

def text(document):
    return document.get("text_config", document)


def set_text(key, value):
    return lambda document: text(document).__setitem__(key, value)


def set_quantization(edit):
    def spoil(document):
        for key in ("quantization", "quantization_config"):
            if key in document:
                edit(document[key])
    return spoil


CONFIG = {
    "another model": (lambda d: (d.__setitem__("model_type", "llama"), text(d).__setitem__("model_type", "llama")),
                      ["model_type", "llama"]),
    "another width": (set_text("hidden_size", 512), ["hidden_size", "512"]),
    "another number of experts": (set_text("num_experts", 64), ["num_experts", "64"]),
    "another number of heads": (set_text("num_attention_heads", 4), ["num_attention_heads", "4"]),
    "five layers": (set_text("num_hidden_layers", 5), ["5"]),
    "eighty layers": (set_text("num_hidden_layers", 80), ["80"]),
    "more layers than the file has": (
        lambda d: text(d).update(num_hidden_layers=8, layer_types=2 * text(d)["layer_types"]), ["layers.4"]),
    "layer types for another number of layers": (set_text("num_hidden_layers", 8), ["layer_types", "8", "4"]),
    "a width that is text": (set_text("hidden_size", "256"), ["hidden_size"]),
    "another vocabulary": (set_text("vocab_size", 32000), ["vocab_size", "32000"]),
    "another rope": (lambda d: text(d)["rope_parameters"].__setitem__("rope_theta", 10000.0), ["rope_theta"]),
    "three bits": (set_quantization(lambda q: q.__setitem__("bits", 3)), ["bits", "3"]),
    "a group of 48": (set_quantization(lambda q: q.__setitem__("group_size", 48)), ["group_size", "48"]),
    "another mode": (set_quantization(lambda q: q.__setitem__("mode", "mxfp4")), ["mode", "mxfp4"]),
    "an override that contradicts the file": (
        set_quantization(lambda q: q.__setitem__(QKV, {"group_size": 64, "bits": 8})), [QKV]),
}


@pytest.mark.parametrize("name", CONFIG)
def test_config(folder, name):
    edit, parts = CONFIG[name]
    edit_json(folder, "config.json", edit)
    expect(fails("inspect", str(folder)), *parts)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"model_type": 7}', b"\xff\xfe{}"])
def test_config_is_not_a_config(folder, content):
    write_file(folder / "config.json", content)
    expect(fails("inspect", str(folder)), "config.json")


def test_no_config(folder):
    (folder / "config.json").unlink()
    expect(fails("inspect", str(folder)), "config.json")


@pytest.mark.parametrize("content, parts", [
    (b"{", ["generation_config.json"]),
    (b'{"eos_token_id": "stop"}', ["eos_token_id"]),
    (b'{"eos_token_id": [1, -2]}', ["eos_token_id"]),
    (b'{"eos_token_id": [1], "temperature": "hot"}', ["temperature"]),
    (b'{"eos_token_id": [1], "top_p": 1.5}', ["top_p"]),
])
def test_generation_config(folder, content, parts):
    write_file(folder / "generation_config.json", content)
    expect(fails("run", str(folder), "-p", "hi", "--max-tokens", "1"), *parts)


# --- tokenizer.json ---------------------------------------------------------------------------------------------------

TOKENIZER = {
    "another kind of model": (lambda d: d["model"].__setitem__("type", "WordPiece"), ["WordPiece"]),
    "byte fallback": (lambda d: d["model"].__setitem__("byte_fallback", True), ["byte_fallback"]),
    "no normaliser": (lambda d: d.__setitem__("normalizer", {"type": "Lowercase"}), ["normalizer"]),
    "another pattern": (lambda d: d["pre_tokenizer"]["pretokenizers"][0].__setitem__("pattern", {"Regex": "\\w+"}),
                        ["pattern"]),
    "a merge of an unknown part": (lambda d: d["model"]["merges"].append("zzzz yyyy"), ["zzzz"]),
    "a merge of one part": (lambda d: d["model"]["merges"].append("abc"), ["merges"]),
    "an id twice": (lambda d: d["model"]["vocab"].__setitem__("qqqqqq", 0), ["0"]),
    "a negative id": (lambda d: d["model"]["vocab"].__setitem__("qqqqqq", -1), ["-1"]),
    "an id beyond the embedding": (lambda d: d["model"]["vocab"].__setitem__("qqqqqq", 10_000_000), ["10000000"]),
    "an id that the model lacks": (lambda d: d["model"]["vocab"].__setitem__("qqqqqq", 8192), ["8192", "8191"]),
}


@pytest.mark.parametrize("name", TOKENIZER)
def test_tokenizer(folder, name):
    edit, parts = TOKENIZER[name]
    edit_json(folder, "tokenizer.json", edit)
    expect(fails("run", str(folder), "-p", "hi", "--max-tokens", "1"), *parts)
    expect(fails("inspect", str(folder)), *parts)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 5}'])
def test_tokenizer_is_not_a_tokenizer(folder, content):
    write_file(folder / "tokenizer.json", content)
    expect(fails("run", str(folder), "-p", "hi", "--max-tokens", "1"), "tokenizer.json")
    expect(fails("inspect", str(folder)), "tokenizer.json")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    expect(fails("run", str(folder), "-p", "hi", "--max-tokens", "1"), "tokenizer.json")
    done = subprocess.run([LILY, "inspect", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and "token ids" in done.stdout, (done.stdout, done.stderr)  # eval logits runs it


# --- the command line -------------------------------------------------------------------------------------------------

def test_no_such_folder():
    expect(fails("inspect", "./no-such-folder"), "no-such-folder")


def test_repository_that_is_not_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    expect(fails("inspect", "mlx-community/Qwen3.6-35B-A3B-4bit"), "hf download mlx-community/Qwen3.6-35B-A3B-4bit")


def test_repository_in_the_cache(valid, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    repository = tmp_path / "hub" / "models--someone--tiny-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    shutil.copytree(valid, repository / "snapshots" / "abc123")
    done = subprocess.run([LILY, "inspect", "someone/tiny-model"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_instead_of_a_folder(folder):
    expect(fails("inspect", str(folder / "config.json")), "config.json", "folder")


@pytest.mark.parametrize("command", [
    [], ["frobnicate"], ["run", "--no-such-option"], ["run", "--max-tokens", "many"], ["serve", "--port", "99999"],
    ["serve", "--ctx", "3"], ["synth", "--shape", "huge", "x"], ["eval"],
])
def test_usage(command):
    done = subprocess.run([LILY, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stderr


def test_an_unknown_device(folder):
    expect(fails("run", str(folder), "-p", "hi", "--device", "abacus"), "abacus", "cpu")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_unknown_instruction_set(folder, device):
    expect(fails("run", str(folder), "-p", "hi", "--device", device, "--isa", "sse9"), "sse9")


def test_output_that_exists(folder):
    expect(fails("synth", str(folder), "--shape", "tiny"), str(folder))
