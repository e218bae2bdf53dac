"""/openapi.json against what the server does: its paths, and answers to what Schemathesis makes of its schemas."""
import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from server_process import Server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = int(os.environ.get("LILY_API_EXAMPLES", "12"))  # for each operation
OPERATIONS = 17


@pytest.fixture(scope="module")
def server(model):
    with Server(model, "--ctx", "160", "--parallel", "4", "--queue", "64") as running:
        yield running


@pytest.fixture(scope="module")
def operations(server):
    schema = schemathesis.openapi.from_dict(httpx.get(server.url("/openapi.json")).json())
    return [result.ok() for result in schema.get_all_operations()]


@pytest.mark.parametrize("index", range(OPERATIONS))
def test_answers_are_as_described(server, operations, index):
    assert len(operations) == OPERATIONS
    seen = set()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(case=operations[index].as_strategy())
    def examples(case):
        response = case.call(base_url=server.base, timeout=120)
        case.validate_response(response, checks=CHECKS)
        seen.add(response.status_code)

    examples()
    assert 200 in seen or "{id}" in operations[index].path, (operations[index].path, seen)


def test_every_path_is_described_and_is_there(server):
    document = httpx.get(server.url("/openapi.json")).json()
    assert document["openapi"].startswith("3.1") and document["info"]["version"][0].isdigit()
    for path, methods in document["paths"].items():
        allowed = httpx.options(server.url(path.replace("{id}", "x"))).headers["allow"]
        for method in ("get", "post"):
            assert (method in methods) == (method.upper() in allowed), (path, allowed)
