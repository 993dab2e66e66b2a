"""worker/http-api/agents.md: what its configuration of Claude Code and Codex leads to, and what it lists as unsupported.
`test_frameworks.py` runs the programs on it."""
import json
import re

import pytest

from conftest import ROOT, events, http
from test_messages import CLAUDE_CODE, HEADERS as CLAUDE_CODE_HEADERS
from test_responses import CODEX, HEADERS as CODEX_HEADERS

PAGE = (ROOT / "worker/http-api/agents.md").read_text()
ON_THE_PAGE = "http://127.0.0.1:31000"
MODEL = "model"  # by the name of its folder


def block(language):
    found, = re.findall(rf"(?ms)^```{language}\n(.*?)^```", PAGE)
    assert ON_THE_PAGE in found
    return found


def test_claude_code_as_configured_is_answered(demo_api):
    env = json.loads(block("json").replace(ON_THE_PAGE, demo_api.url))["env"]
    assert {env[f"ANTHROPIC_{name}MODEL"] for name in ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_")} == {"coder"}
    headers = {k: v for k, v in CLAUDE_CODE_HEADERS.items() if k != "x-api-key"} | {"authorization": f"Bearer {env['ANTHROPIC_AUTH_TOKEN']}"}
    body = {**CLAUDE_CODE, "model": MODEL, "max_tokens": 20}
    stream = list(events(env["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true", body, headers=headers))
    assert stream[0]["type"] == "message_start" and stream[-1]["type"] == "message_stop"
    count = http(env["ANTHROPIC_BASE_URL"] + "/v1/messages/count_tokens?beta=true", body, headers=headers)
    assert count.json["input_tokens"] == sum(stream[0]["message"]["usage"][f"{kind}input_tokens"] for kind in ("", "cache_read_", "cache_creation_"))


def test_codex_as_configured_is_answered(demo_api):
    tomllib = pytest.importorskip("tomllib", reason="SKIPPED: Python 3.11 has the first tomllib")
    config = tomllib.loads(block("toml").replace(ON_THE_PAGE, demo_api.url))
    assert config["model"] == "coder" and config["model_context_window"] == 128000
    provider = config["model_providers"][config["model_provider"]]
    assert provider["wire_api"] == "responses" and provider["name"]
    stream = list(events(provider["base_url"] + "/responses", {**CODEX, "model": MODEL, "max_output_tokens": 20}, headers=CODEX_HEADERS))
    assert stream[0]["type"] == "response.created" and stream[-1]["type"] in ("response.completed", "response.incomplete")


def unsupported():
    """The paths of the last table, each with the statuses in its row."""
    for line in PAGE.split("\n## What is not supported\n")[1].splitlines():
        for path in re.findall(r"`(/v1/[\w/]+)`", line):
            yield pytest.param(path, {int(code) for code in re.findall(r"\b40\d\b", line)}, id=path)


@pytest.mark.parametrize("path, codes", list(unsupported()))
def test_an_unsupported_call_is_answered_as_listed(demo_api, path, codes):
    assert http(demo_api.url + path, {"model": MODEL, "input": "Hello"}).code in codes
