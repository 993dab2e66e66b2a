"""Messages, as the official client `anthropic` and Claude Code send them: what they ask is what chat is asked, and what they
get is what the model wrote. The simulated backend obeys masks, so that a structural tag makes it write any text."""
import json
import signal

import pytest

from conftest import ROOT, Worker, events, http, started_programs, wait_for

anthropic = pytest.importorskip("anthropic", reason="SKIPPED: the anthropic package is not installed: make deps-test")

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"name": "weather", "description": "Looks at the sky.", "input_schema": {
    "type": "object", "properties": {"unit": {"enum": ["celsius", "kelvin"]}}, "required": ["unit"],
    "additionalProperties": False}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "kelvin"}}\n</tool_call>'
TEMPLATE = (
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}")
SIM = (str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 2048,
       "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    with started_programs() as start:
        yield start(Worker, *SIM, "--chat-template", file).ready()


@pytest.fixture
def client(worker):
    with anthropic.Anthropic(base_url=worker.url, api_key="none", max_retries=0) as c:
        yield c


def asked(**fields):
    return {"model": "default", "max_tokens": 2000, "temperature": 0, "messages": HELLO, **fields}


def writing(text):
    """What makes the model write exactly that."""
    return {"structured_outputs": {"structural_tag": {"format": {"type": "const_string", "value": text}}}}


def sdk(text, **fields):
    return of_sdk(asked(**fields), **writing(text))


def of_sdk(body, **more):
    """The arguments of the client for a body: what it has no name for stands in extra_body."""
    more |= {k: body.pop(k) for k in ("temperature", "output_config") if k in body}
    return {**body, "extra_body": more}


def content_of(message):
    return [b.model_dump(exclude_none=True, exclude={"caller", "citations"}) for b in message.content]


# --- answers -------------------------------------------------------------------------------------------------------


def test_thinking_text_and_a_call_are_blocks_whole_and_streamed(client):
    request = sdk("<think>\nLook it up.\n</think>\n\nOn it.\n" + CALL, tools=[WEATHER],
                  thinking={"type": "enabled", "budget_tokens": 1024})
    message = client.messages.create(**request)
    thinking, text, call = message.content
    assert (thinking.type, thinking.thinking.strip(), text.type, text.text.strip()) == ("thinking", "Look it up.", "text", "On it.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"unit": "kelvin"}) and thinking.signature
    assert message.stop_reason == "tool_use" and message.stop_sequence is None and message.role == "assistant"
    with client.messages.stream(**request) as stream:
        again = stream.get_final_message()
    assert again.content[-1].id != call.id
    again.content[-1].id = call.id
    assert content_of(again) == content_of(message)
    assert (again.stop_reason, again.usage.output_tokens) == (message.stop_reason, message.usage.output_tokens)


def test_arguments_that_no_request_can_hold_are_kept_but_for_that(worker):
    call = '<tool_call>\n{"name": "weather", "arguments": {"unit": "a\\u0000b\\ud800"}}\n</tool_call>'
    block, = worker.post("/v1/messages", asked(tools=[WEATHER], **writing(call))).json["content"]
    assert block["input"] == {"unit": "a\ufffdb\ufffd"}
    turn = [*HELLO, {"role": "assistant", "content": [block]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "280"}]}]
    assert worker.post("/v1/messages", asked(messages=turn, max_tokens=1, tools=[WEATHER])).code == 200


def test_events_are_in_order_one_block_at_a_time(worker):
    body = asked(stream=True, tools=[WEATHER], **writing("<think>\nhm\n</think>\n\n" + CALL))
    stream = list(events(worker.url + "/v1/messages", body))
    kinds = [e["type"] for e in stream]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert stream[0]["message"]["role"] == "assistant" and stream[0]["message"]["content"] == []
    open_block, n = None, 0
    for e in stream[1:-2]:
        if e["type"] == "content_block_start":
            assert open_block is None and e["index"] == n
            open_block, n = e["index"], n + 1
        else:
            assert e["index"] == open_block
            open_block = None if e["type"] == "content_block_stop" else open_block
    blocks = [e["content_block"]["type"] for e in stream if e["type"] == "content_block_start"]
    assert open_block is None and blocks == ["thinking", "tool_use"]  # no text for what is blank between them


def test_events_have_names_and_no_done(worker):
    raw = http(worker.url + "/v1/messages", asked(stream=True, **writing("Hi."))).body
    for event in raw.strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    assert "[DONE]" not in raw


def test_usage_sums_to_the_prompt(client):
    request = of_sdk(asked(messages=[{"role": "user", "content": "An opening of no other test. " * 40}], max_tokens=4))
    first, again = client.messages.create(**request).usage, client.messages.create(**request).usage
    assert first.cache_read_input_tokens == 0 and first.cache_creation_input_tokens == 0 and first.output_tokens == 4
    assert again.cache_read_input_tokens > 0 and again.input_tokens + again.cache_read_input_tokens == first.input_tokens


@pytest.mark.parametrize("fields, text, reason, sequence", [
    ({}, "Hi.", "end_turn", None),
    ({"max_tokens": 1}, "Hello there, you", "max_tokens", None),
    ({"stop_sequences": ["END"]}, "a END b", "stop_sequence", "END"),
    ({"tools": [WEATHER]}, CALL, "tool_use", None),
    ({"tools": [WEATHER], "stop_sequences": ["kelvin"]}, CALL, "stop_sequence", "kelvin"),
    ({"tools": [WEATHER], "max_tokens": 25}, CALL, "max_tokens", None),
])
def test_reasons_to_stop(client, fields, text, reason, sequence):
    message = client.messages.create(**sdk(text, **fields))
    with client.messages.stream(**sdk(text, **fields)) as stream:
        again = stream.get_final_message()
    for m in (message, again):
        assert (m.stop_reason, m.stop_sequence) == (reason, sequence)
    if reason != "tool_use":
        assert not [b for b in message.content if b.type == "tool_use"]  # what is cut must not run


def test_empty_answer_is_one_empty_text(client):
    message = client.messages.create(**sdk("END", stop_sequences=["END"]))
    assert [(b.type, b.text) for b in message.content] == [("text", "")]


def test_forced_tool_is_called(programs):
    worker = programs(Worker, *SIM, "--reasoning-parser", "none").ready()
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        message = worker.post("/v1/messages", asked(tools=[WEATHER], tool_choice=choice)).json
        assert message["stop_reason"] == "tool_use"
        assert [b["input"]["unit"] in ("celsius", "kelvin") for b in message["content"] if b["type"] == "tool_use"] == [True]


def test_output_has_the_format(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    message = client.messages.create(**of_sdk(asked(output_config={"format": {"type": "json_schema", "schema": schema}})))
    assert json.loads(message.content[-1].text)["ok"] in (True, False)


# --- prompts -------------------------------------------------------------------------------------------------------


def n_tokens(worker, **fields):
    """As counted, and as computed: the same."""
    body = asked(**{"max_tokens": 1, **fields})
    count = worker.post("/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"}).json["input_tokens"]
    usage = worker.post("/v1/messages", body).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    return count


CALLED = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "On it."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"unit": "kelvin"}}]}
RESULT = {"role": "user", "content": [{"type": "text", "text": "Here."},
                                      {"type": "tool_result", "tool_use_id": "toolu_1", "content": "280"}]}


def test_count_is_the_number_of_prompt_tokens(worker, client):
    n = n_tokens(worker)
    assert n_tokens(worker, system="Be brief.") > n
    assert n_tokens(worker, tools=[WEATHER], messages=[*HELLO, CALLED, RESULT]) > n
    assert client.messages.count_tokens(model="default", messages=HELLO).input_tokens == n


def test_conversation_is_the_one_of_chat(worker):
    """Its blocks are found, whichever call computed them."""
    system = "Be brief. " * 30
    chat = worker.post("/v1/chat/completions", {
        "messages": [{"role": "system", "content": system}, *HELLO,
                     {"role": "assistant", "content": "On it.", "reasoning": "hm", "tool_calls": [
                         {"id": "toolu_1", "type": "function",
                          "function": {"name": "weather", "arguments": '{"unit":"kelvin"}'}}]},
                     {"role": "tool", "tool_call_id": "toolu_1", "content": "280"}, {"role": "user", "content": "Here."}],
        "tools": [{"type": "function", "function": {"name": "weather", "description": WEATHER["description"],
                                                    "parameters": WEATHER["input_schema"]}}],
        "max_tokens": 1}).json["usage"]
    usage = worker.post("/v1/messages", asked(system=system, tools=[WEATHER], messages=[*HELLO, CALLED, RESULT], max_tokens=1)).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["prompt_tokens"]
    assert usage["input_tokens"] <= 16


def test_billing_header_is_no_part_of_the_prompt(worker):
    text = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    nonces = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={i:05};"} for i in range(2)]
    counts = {n_tokens(worker, system=[nonce, text]) for nonce in nonces}
    assert counts == {n_tokens(worker, system="Be brief.")}


def test_late_system_message_keeps_the_prefix(worker):
    """Each turn of an agent finds all blocks of the turn before."""
    turns, seen = list(HELLO), 0
    for i in range(4):
        turns.append({**CALLED, "content": [{**b, "id": f"toolu_{i}"} if "id" in b else b for b in CALLED["content"]]})
        turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": "280 " * 30}]})
        turns.append({"role": "system", "content": f"<total_tokens>{9000 - i} tokens left</total_tokens>"})
        usage = worker.post("/v1/messages", asked(messages=turns, max_tokens=1, tools=[WEATHER])).json["usage"]
        assert usage["cache_read_input_tokens"] >= seen // 16 * 16 - 16
        seen = usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_last_message_of_the_assistant_is_continued(worker):
    shown = worker.post("/tokenize", {"messages": [*HELLO, {"role": "assistant", "content": "We"}], "continue_final_message": True}).json
    assert n_tokens(worker, messages=[*HELLO, {"role": "assistant", "content": "We"}]) == shown["count"]


def test_thinking_disabled_reaches_the_template(worker):
    assert n_tokens(worker, thinking={"type": "disabled"}) > n_tokens(worker, thinking={"type": "adaptive"}) == n_tokens(worker)


# --- Claude Code ---------------------------------------------------------------------------------------------------

CLAUDE_CODE = {
    "model": "default", "max_tokens": 2000, "stream": True,
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.240; cc_entrypoint=cli; cch=9f3a1;"},
               {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"},
                                     {"type": "text", "text": "Look at the sky.", "cache_control": {"type": "ephemeral"}}]},
        CALLED,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, "content": [
            {"type": "text", "text": "280"}, {"type": "tool_reference", "tool_name": "weather"}],
            "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "<total_tokens>180000 tokens left</total_tokens>"}],
    "tools": [{**WEATHER, "eager_input_streaming": True}, {**WEATHER, "name": "mcp__sky__look", "defer_loading": True},
              {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "user_1_session_2"}, "diagnostics": {"previous_message_id": None},
}
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
           "x-claude-code-session-id": "2", "x-api-key": "none"}


def test_claude_code_is_answered(worker):
    url = worker.url + "/v1/messages?beta=true"
    stream = list(events(url, {**CLAUDE_CODE, **writing("<think>\nhm\n</think>\n\n" + CALL)}, headers=HEADERS))
    assert [e for e in stream if e["type"] == "message_delta"][0]["delta"]["stop_reason"] == "tool_use"
    assert stream[0]["message"]["diagnostics"] is None  # it names no earlier message
    count = http(worker.url + "/v1/messages/count_tokens?beta=true", {k: v for k, v in CLAUDE_CODE.items() if k not in ("max_tokens", "stream")},
                 headers=HEADERS)
    usage = stream[0]["message"]["usage"]
    assert count.json["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields, text", [
    ({"max_tokens": None}, "max_tokens is required"),
    ({"messages": []}, "messages is required"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "below max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "no images"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "not in tools"),
])
def test_errors_before_the_head_have_the_shape_of_messages(worker, fields, text):
    answer = worker.post("/v1/messages", asked(**fields))
    assert answer.code == 400 and set(answer.json) == {"type", "error"}
    assert answer.json["type"] == "error" and answer.json["error"]["type"] == "invalid_request_error"
    assert text in answer.json["error"]["message"]


def test_unknown_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**of_sdk(asked(model="claude-of-nobody")))
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_a_later_error_is_an_event(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.1).ready()
    stream = events(worker.url + "/v1/messages", asked(stream=True, ignore_eos=True))
    assert next(stream)["type"] == "message_start"
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: worker.get("/readyz").code == 503, "the drain")
    worker.process.send_signal(signal.SIGTERM)
    last = list(stream)[-1]
    assert last["type"] == "error" and last["error"]["type"] == "overloaded_error"


def test_either_header_has_the_key(programs):
    worker = programs(Worker, *SIM, "--api-key", "secret").ready()
    ask = lambda **headers: http(worker.url + "/v1/messages", asked(max_tokens=1), headers=headers)
    denied = ask()
    assert denied.code == 401 and denied.json["error"]["type"] == "authentication_error"
    assert ask(**{"x-api-key": "wrong"}).code == 401
    assert ask(**{"x-api-key": "secret"}).code == ask(Authorization="Bearer secret").code == 200
