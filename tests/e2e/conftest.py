"""A model for the tests of this folder: LILY_E2E_MODEL, or random weights of the small shape."""
import os
import subprocess
from pathlib import Path

import pytest

from server_process import LILY, Server


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    if chosen := os.environ.get("LILY_E2E_MODEL"):
        return Path(chosen)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([LILY, "synth", str(folder), "--shape", "tiny"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--ctx", "4096", "--parallel", "4", "--queue", "8") as running:
        yield running


@pytest.fixture(scope="module")
def tiny():
    """The model that comes with lily."""
    with Server(None, "--parallel", "4", "--ctx", "2048") as running:
        yield running
