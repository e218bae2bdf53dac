from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--build", default="build", help="folder that lily was built in")
    parser.addoption("--text-scale", type=float, default=1.0, help="share of the random and exhaustive cases to run")


@pytest.fixture(scope="session")
def build(request) -> Path:
    return Path(request.config.getoption("--build")).resolve()


@pytest.fixture(scope="session")
def scale(request) -> float:
    return request.config.getoption("--text-scale")
