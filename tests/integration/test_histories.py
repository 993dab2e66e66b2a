"""Conversations as clients send them (tests/data/histories.json), at a worker and through a router: each is answered, and
the model reads what Jinja2 made of it. tests/reference/histories.py wrote the file and describes it."""
import json

import pytest

from conftest import DEMO_MODEL, ROOT, Router, Worker, events, http, started_programs

DATA = json.loads((ROOT / "tests/data/histories.json").read_text(encoding="utf-8"))
DATE = {"date_string": "14 Nov 2023"}  # of the file; templates that show today's take it


@pytest.fixture(scope="module", params=list(DATA["templates"]))
def served(request, tmp_path_factory):
    """A worker whose model has that template, alone and behind a router."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "tokenizer.json").write_bytes((DEMO_MODEL / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (folder / "chat_template.jinja").write_text(DATA["templates"][request.param], encoding="utf-8")
    with started_programs() as start:
        worker = start(Worker, "--backend", "sim", "--model", DEMO_MODEL, "--tokenizer", folder,
                       "--served-model-name", "synthetic").ready()
        yield request.param, worker.url, start(Router, "--worker-urls", worker.url).ready(1).url


def prompt_as_read(url, body):
    """The text of the tokens that the messages become."""
    asked = {k: body[k] for k in ("messages", "tools") if k in body}
    tokens = http(url + "/tokenize", {**asked, "chat_template_kwargs": DATE}).json["tokens"]
    return http(url + "/detokenize", {"tokens": tokens}).json["prompt"], len(tokens)


def usage_of(url, body):
    """Asks for one token, as a stream where the client did."""
    body = {**body, "max_tokens": 1, "max_completion_tokens": 1, "chat_template_kwargs": DATE}
    if not body.get("stream"):
        answer = http(url + "/v1/chat/completions", body)
        assert answer.code == 200, answer.body
        return answer.json["usage"]
    seen = list(events(url + "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}))
    assert seen[-1] == "[DONE]" and all("error" not in e for e in seen[:-1])
    return seen[-2]["usage"]


@pytest.mark.parametrize("history", DATA["histories"], ids=lambda h: h["client"])
def test_history_is_answered_and_read_as_its_template_has_it(served, history):
    name, worker, router = served
    body, want = history["body"], history["prompts"][name]
    if "raised" in want:  # the template's own refusal
        for url in worker, router:
            answer = http(url + "/v1/chat/completions", body)
            assert answer.code == 400 and want["raised"] in answer.json["error"]["message"]
        return
    prompt, n_tokens = prompt_as_read(worker, body)
    assert prompt == want["text"]
    for url in worker, router:
        assert usage_of(url, body)["prompt_tokens"] == n_tokens
