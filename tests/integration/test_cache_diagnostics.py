"""Why an earlier request's prefix was not reused, in the fields of Messages and Responses: at a worker and through a router,
of conversations as clients hold them."""
import pytest

from conftest import ROOT, Router, Worker, events, started_programs

TEMPLATE = (
    "{% if reasoning_effort is defined %}{{ reasoning_effort }} effort. {% endif %}{% if more is defined %}{{ more }}{% endif %}"
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
OPENING = "You are a careful assistant that reads long texts before it answers. " * 6
LONG = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 6
LOOK = {"name": "look", "description": "Looks at the sky for a while.", "input_schema": {"type": "object", "properties": {}}}


class Fleet:
    def __init__(self, start, template, *args):
        self.worker = start(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 1000, "--chat-template",
                            template, *args).ready()
        self.router = start(Router, "--worker-urls", self.worker.url).ready(1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    with started_programs() as start:
        yield Fleet(start, file, "--num-gpu-blocks-override", 2048)


@pytest.fixture
def small(tmp_path, programs):
    """Whose cache one other prompt replaces."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    return Fleet(programs, tmp_path / "template.jinja", "--num-gpu-blocks-override", 130, "--max-model-len", 2048)


@pytest.fixture(params=["worker", "router"])
def at(request, fleet):
    return getattr(fleet, request.param)


def said(name, *turns):
    """A conversation that no other test has: user, assistant, user, ..."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate([f"{name}: {LONG}", *turns])]


def message(program, previous=None, **fields):
    body = {"max_tokens": 4, "temperature": 0, "system": OPENING, "tools": [LOOK], "diagnostics": {"previous_message_id": previous}, **fields}
    answer = program.post("/v1/messages", body)
    assert answer.code == 200, answer.body
    return answer.json


def response(program, compared=None, **fields):
    options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
    answer = program.post("/v1/responses", {"max_output_tokens": 4, "temperature": 0, "instructions": OPENING, **options, **fields})
    assert answer.code == 200, answer.body
    return answer.json


def reason(answer):
    return (answer["diagnostics"] or {}).get("cache_miss_reason")


# --- Messages ------------------------------------------------------------------------------------------------------


def test_continued_conversation_has_no_reason(at, request):
    talk = said(request.node.name)
    first = message(at, messages=talk)
    assert first["diagnostics"] is None
    for _ in range(3):
        talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on with " + LONG}]
        first = message(at, first["id"], messages=talk)
        assert first["diagnostics"] is None and first["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize("change, kind, cause", [
    ({"system": "Be brief. " + OPENING}, "system_changed", "system"),
    ({"system": None}, "system_changed", "system"),
    ({"tools": [{**LOOK, "description": "Looks at the sea."}]}, "tools_changed", "tools"),
    ({"tools": [LOOK, {**LOOK, "name": "hear"}]}, "tools_changed", "tools"),
    ({"edit": "An earlier turn that was edited."}, "messages_changed", "messages"),
    ({"output_config": {"effort": "low"}}, "unavailable", "effort"),
    ({"chat_template_kwargs": {"more": "Slowly. "}}, "unavailable", "settings"),
])
def test_change_is_named(at, request, change, kind, cause):
    change, talk = dict(change), said(request.node.name, "Yes.", LONG)
    before = message(at, messages=talk)
    if edit := change.pop("edit", None):
        talk[0] = {"role": "user", "content": f"{edit} {request.node.name}"}
    talk += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Then?"}]
    after = message(at, before["id"], messages=talk, **change)
    found = reason(after)
    assert (found["type"], found["cause"]) == (kind, cause)
    # What the earlier prompt had, but for the end of its last block, and what is cached still.
    whole = sum(before["usage"][k] for k in ("input_tokens", "cache_read_input_tokens")) // 16 * 16
    whole = min(whole, (sum(after["usage"][k] for k in ("input_tokens", "cache_read_input_tokens")) - 1) // 16 * 16)
    assert found["cache_missed_input_tokens"] == whole - after["usage"]["cache_read_input_tokens"] > 0


def test_stream_has_the_same_reason(at, request):
    talk = said(request.node.name)
    before = message(at, messages=talk)
    body = {"max_tokens": 4, "temperature": 0, "messages": talk, "stream": True, "diagnostics": {"previous_message_id": before["id"]}}
    start = next(iter(events(at.url + "/v1/messages", body)))
    assert start["type"] == "message_start" and reason(start["message"])["type"] == "system_changed"
    again = message(at, start["message"]["id"], messages=talk, system=request.node.name + OPENING)
    assert reason(again)["type"] == "system_changed"


def test_unknown_message_and_one_of_another_salt_are_not_found(at, request):
    talk = said(request.node.name)
    before = message(at, messages=talk, cache_salt="mine")
    assert reason(message(at, "msg_of_nobody", messages=talk)) == {"type": "previous_message_not_found"}
    for salt in (None, "theirs"):
        assert reason(message(at, before["id"], messages=talk, cache_salt=salt)) == {"type": "previous_message_not_found"}
    assert message(at, before["id"], messages=talk, cache_salt="mine")["diagnostics"] is None


def test_a_nonce_and_sampling_are_no_change(at, request):
    talk = said(request.node.name)
    nonce = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": OPENING}]
    before = message(at, messages=talk, system=nonce)
    nonce = [{"type": "text", "text": "x-anthropic-billing-header: cch=2;"}, {"type": "text", "text": OPENING}]
    assert message(at, before["id"], messages=talk, system=nonce, temperature=1, max_tokens=2)["diagnostics"] is None


def test_answer_without_the_field_has_none(fleet):
    body = {"max_tokens": 4, "messages": said("none")}
    assert "diagnostics" not in fleet.worker.post("/v1/messages", body).json


@pytest.mark.parametrize("path, field, wrong", [
    ("/v1/messages", "diagnostics", {"diagnostics": "yes"}),
    ("/v1/messages", "diagnostics.previous_message_id must be", {"diagnostics": {"previous_message_id": 5}}),
    ("/v1/responses", "prompt_cache_options", {"prompt_cache_options": []}),
    ("/v1/responses", "prompt_cache_options.comparison_response_id must be", {"prompt_cache_options": {"comparison_response_id": 5}}),
])
def test_wrong_types_are_refused(at, path, field, wrong):
    answer = at.post(path, {"max_tokens": 4, "messages": said("x"), "input": "x", **wrong})
    assert answer.code == 400 and field in answer.json["error"]["message"]


def fill(program, n):
    """Prompts of no conversation, until little else is cached."""
    for i in range(8):
        assert program.post("/v1/completions", {"prompt": [n, i] + [5] * 500, "max_tokens": 1}).code == 200


@pytest.mark.parametrize("where", ["worker", "router"])
def test_evicted_prefix_is_named(small, where):
    at, talk = getattr(small, where), said("evicted")
    before = message(at, messages=talk)
    fill(at, 1)
    found = reason(message(at, before["id"], messages=talk))
    assert (found["type"], found["cause"]) == ("unavailable", "evicted") and found["cache_missed_input_tokens"] > 0
    compared = response(at, input=talk)
    fill(at, 2)
    found = response(at, compared["id"], input=talk)["prompt_cache_diagnostics"]
    assert (found["type"], found["cause"]) == ("unavailable", "evicted") and found["comparison_reusable_tokens"] > 0


# --- Responses -----------------------------------------------------------------------------------------------------


def test_continued_response_is_a_cache_hit(at, request):
    first = response(at, input=request.node.name + LONG)
    assert first["prompt_cache_diagnostics"] is None
    chained = response(at, first["id"], input="Go on.", previous_response_id=first["id"])
    assert chained["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    talk = said(request.node.name, "Yes.", "Go on.")
    first = response(at, input=talk[:1], store=False)
    assert response(at, first["id"], input=talk, store=False)["prompt_cache_diagnostics"] == {"type": "cache_hit"}


@pytest.mark.parametrize("change, why", [
    ({"instructions": "Be brief. " + OPENING}, "input_changed"),
    ({"tools": [{"type": "function", "name": "look", "parameters": {}}]}, "tools_changed"),
    ({"edit": "An earlier turn that was edited."}, "input_changed"),
    ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
])
def test_change_of_a_response_is_named(at, request, change, why):
    change, talk = dict(change), said(request.node.name, "Yes.", LONG)
    before = response(at, input=talk)
    if edit := change.pop("edit", None):
        talk[0] = {"role": "user", "content": f"{edit} {request.node.name}"}
    after = response(at, before["id"], input=[*talk, {"role": "assistant", "content": "No."}, {"role": "user", "content": "So?"}], **change)
    found = after["prompt_cache_diagnostics"]
    assert (found["type"], found["reason"]) == ("cache_miss", why)
    assert found["cache_missed_tokens"] > 0 and found["comparison_reusable_tokens"] % 16 == 0


def test_last_event_and_the_stored_response_have_the_diagnosis(at, request):
    before = response(at, input=request.node.name + LONG)
    body = {"max_output_tokens": 4, "input": "Not that: " + request.node.name + LONG, "stream": True, "instructions": OPENING,
            "prompt_cache_options": {"comparison_response_id": before["id"]}}
    last = list(events(at.url + "/v1/responses", body))[-1]["response"]
    assert last["prompt_cache_diagnostics"]["reason"] == "input_changed"
    assert at.get("/v1/responses/" + last["id"]).json["prompt_cache_diagnostics"] == last["prompt_cache_diagnostics"]
    missing = response(at, "resp_of_nobody", input="x")
    assert missing["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


# --- official clients ----------------------------------------------------------------------------------------------


def test_client_of_messages_reads_the_reason(at, request):
    anthropic = pytest.importorskip("anthropic", reason="SKIPPED: the anthropic package is not installed: make deps-test")
    asked = {"model": "model", "max_tokens": 4, "messages": said(request.node.name)}
    with anthropic.Anthropic(base_url=at.url, api_key="none", max_retries=0) as client:
        first = client.messages.create(**asked, system=OPENING, diagnostics={"previous_message_id": None})
        again = client.messages.create(**asked, system=OPENING, diagnostics={"previous_message_id": first.id})
        other = client.messages.create(**asked, system="Be brief.", diagnostics={"previous_message_id": first.id})
    assert first.diagnostics is None and again.diagnostics is None
    found = other.diagnostics.cache_miss_reason
    assert type(found).__name__ == "CacheMissSystemChanged" and found.cache_missed_input_tokens > 0


def test_client_of_responses_reads_the_reason(at, request):
    openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")
    asked = {"model": "model", "max_output_tokens": 4, "input": said(request.node.name)}
    with openai.OpenAI(base_url=at.url + "/v1", api_key="none", max_retries=0) as client:
        first = client.responses.create(**asked, instructions=OPENING)
        compared = {"comparison_response_id": first.id}
        again = client.responses.create(**asked, instructions=OPENING, prompt_cache_options=compared)
        other = client.responses.create(**asked, instructions="Be brief.", prompt_cache_options=compared)
    assert first.prompt_cache_diagnostics is None and again.prompt_cache_diagnostics.type == "cache_hit"
    found = other.prompt_cache_diagnostics
    assert (found.type, found.reason) == ("cache_miss", "input_changed") and found.cache_missed_tokens > 0
