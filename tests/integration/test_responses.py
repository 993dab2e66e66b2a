"""Responses, as the official client `openai` and Codex send them: what they ask is what chat is asked, and what they get is
what the model wrote. The simulated backend obeys masks, so that a structural tag makes it write any text."""
import json
import re
import signal

import pytest

from conftest import ROOT, Router, Worker, events, http, started_programs, wait_for

openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")

UNIT = {"type": "object", "properties": {"unit": {"enum": ["celsius", "kelvin"]}}, "required": ["unit"],
        "additionalProperties": False}
WEATHER = {"type": "function", "name": "weather", "description": "Looks at the sky.", "parameters": UNIT, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "kelvin"}}\n</tool_call>'
SIM = (str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 2048,
       "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
TEMPLATE = (
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    with started_programs() as start:
        yield start(Worker, *SIM, "--chat-template", file).ready()


@pytest.fixture
def client(worker):
    with openai.OpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def asked(**fields):
    return {"model": "default", "max_output_tokens": 2000, "temperature": 0, "input": "Hello", **fields}


def writing(text):
    """What makes the model write exactly that."""
    return {"structured_outputs": {"structural_tag": {"format": {"type": "const_string", "value": text}}}}


def sdk(text, **fields):
    return {**asked(**fields), "extra_body": writing(text)}


def streamed(worker, **fields):
    """The last event's response; each event has its name and the next number, each item its whole life."""
    raw = http(worker.url + "/v1/responses", asked(stream=True, **fields)).body
    items, open_item, text = [], None, ""
    for n, event in enumerate(raw.strip().split("\n\n")):
        name, data = event.split("\n")
        e = json.loads(data.removeprefix("data: "))
        assert name == "event: " + e["type"] and e["sequence_number"] == n
        if e["type"] == "response.output_item.added":
            assert open_item is None and e["output_index"] == len(items)
            open_item, text = e["item"]["id"], ""
        elif e["type"] == "response.output_item.done":
            item = e["item"]
            assert item["id"] == open_item
            whole = item.get("arguments", item.get("input")) if "call_id" in item else item["content"][0]["text"]
            assert whole == text
            items.append(item)
            open_item = None
        elif "delta" in e:
            assert e["item_id"] == open_item
            text += e["delta"]
    assert e["type"] in ("response.completed", "response.incomplete") and e["response"]["output"] == items
    return e["response"]


def shape_of(response):
    """All but what is new in each response."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, kinds", [
    ("Hi.", ["message"]),
    ("<think>\nLook it up.\n</think>\n\nOn it.\n" + CALL, ["reasoning", "message", "function_call"]),
    ("<think>\nhm\n</think>\n\n" + CALL, ["reasoning", "function_call"]),  # no message of what is blank
    (CALL + "\n" + CALL, ["function_call", "function_call"]),
])
def test_items_are_the_same_whole_and_streamed(worker, text, kinds):
    whole = worker.post("/v1/responses", asked(tools=[WEATHER], **writing(text))).json
    assert [item["type"] for item in whole["output"]] == kinds and whole["status"] == "completed"
    again = streamed(worker, tools=[WEATHER], **writing(text))
    assert shape_of(again) == shape_of(whole)
    assert again["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_official_client_reads_a_response_and_its_stream(client):
    request = sdk("<think>\nhm\n</think>\n\nOn it.\n" + CALL, tools=[WEATHER])
    response = client.responses.create(**request)
    assert response.output_text.strip() == "On it." and response.object == "response" and response.id.startswith("resp_")
    call = response.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"unit": "kelvin"}) and call.call_id
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(**request) as stream:
        final = stream.get_final_response()
    assert final.output_text == response.output_text and final.output[-1].arguments == call.arguments


def test_limit_makes_it_incomplete(worker):
    whole = worker.post("/v1/responses", asked(max_output_tokens=25, tools=[WEATHER], **writing(CALL))).json
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][-1]["status"] == "incomplete"
    assert streamed(worker, max_output_tokens=25, tools=[WEATHER], **writing(CALL))["status"] == "incomplete"


def test_text_format_is_kept(client):
    response = client.responses.create(**asked(text={"format": {"type": "json_schema", "name": "unit", "schema": UNIT, "strict": True}}))
    assert json.loads(response.output_text)["unit"] in ("celsius", "kelvin")


def test_custom_and_namespaced_tools_are_themselves_again(worker):
    mcp = {"type": "namespace", "name": "mcp", "tools": [{**WEATHER, "name": "look"}]}
    text = ('<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n+a"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "mcp__look", "arguments": {"unit": "kelvin"}}\n</tool_call>')
    for response in (worker.post("/v1/responses", asked(tools=[PATCH, mcp], **writing(text))).json,
                     streamed(worker, tools=[PATCH, mcp], **writing(text))):
        patch, look = response["output"]
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "*** Begin Patch\n+a")
        assert (look["type"], look["name"], look["namespace"]) == ("function_call", "look", "mcp")


SYNTAXES = [("lark", 'start: "*** Begin Patch" line+ END\nline: "\\n+" /[a-z"\\\\]{1,4}/\nEND: "\\n*** End Patch"  // the last',
             r'\*\*\* Begin Patch(\n\+[a-z"\\]{1,4})+\n\*\*\* End Patch'),
            ("regex", r'(\+[a-c"]{1,3}\n){1,9}', r'(\+[a-c"]{1,3}\n){1,9}')]


@pytest.mark.parametrize("syntax, definition, pattern", SYNTAXES)
@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "gemma4"])  # JSON, raw text, quotes of its own
def test_input_of_a_custom_tool_obeys_its_grammar(programs, parser, syntax, definition, pattern):
    worker = programs(Worker, *SIM[:-4], "--tool-call-parser", parser, "--reasoning-parser", "none").ready()
    tool = {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    fields = {"tools": [WEATHER, tool], "tool_choice": {"type": "custom", "name": "apply_patch"}, "temperature": 1}
    for seed in range(3):
        for response in (worker.post("/v1/responses", asked(seed=seed, **fields)).json, streamed(worker, seed=seed, **fields)):
            assert response["status"] == "completed", response
            [call] = response["output"]
            assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch") and re.fullmatch(pattern, call["input"])


def test_grammar_of_a_custom_tool_that_does_not_compile_is_refused(worker):
    tool = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: line+\nline: missing LF\n%import common.LF"}}
    answer = worker.post("/v1/responses", asked(tools=[WEATHER, tool]))
    assert answer.code == 400 and answer.json["error"]["param"] == "tools"
    for part in ('the tool "apply_patch"', "line 2 of the grammar", '"missing" is used, but not defined', "correct its definition"):
        assert part in answer.json["error"]["message"]
    answer = worker.post("/v1/responses", asked(tools=[{**PATCH, "format": {"type": "grammar", "syntax": "yacc", "definition": "a"}}]))
    assert answer.code == 400 and 'the custom tool "apply_patch"' in answer.json["error"]["message"]


# --- prompts -------------------------------------------------------------------------------------------------------


def usage_of(worker, **fields):
    return worker.post("/v1/responses", asked(**{"max_output_tokens": 1, **fields})).json["usage"]


def test_conversation_is_the_one_of_chat_and_messages(worker):
    """Its blocks are found, whichever call computed them."""
    system = "Be brief. " * 30
    chat = worker.post("/v1/chat/completions", {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hello"},
                     {"role": "assistant", "content": "On it.", "reasoning": "hm", "tool_calls": [
                         {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"unit": "kelvin"}'}}]},
                     {"role": "tool", "tool_call_id": "c1", "content": "280"}, {"role": "user", "content": "So?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "description": WEATHER["description"], "parameters": UNIT}}],
        "max_tokens": 1}).json["usage"]
    usage = usage_of(worker, instructions=system, tools=[WEATHER], input=[
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "On it.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"unit": "kelvin"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "280"},
        {"role": "user", "content": "So?"}])
    messages = worker.post("/v1/messages", {
        "model": "default", "max_tokens": 1, "system": system,
        "tools": [{"name": "weather", "description": WEATHER["description"], "input_schema": UNIT}],
        "messages": [{"role": "user", "content": "Hello"},
                     {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                       {"type": "text", "text": "On it."},
                                                       {"type": "tool_use", "id": "c1", "name": "weather", "input": {"unit": "kelvin"}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "280"},
                                                  {"type": "text", "text": "So?"}]}]}).json["usage"]
    assert usage["input_tokens"] == messages["input_tokens"] + messages["cache_read_input_tokens"] == chat["prompt_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == messages["cache_read_input_tokens"] >= usage["input_tokens"] - 16


def test_sent_back_items_find_the_cached_answer(worker):
    """The next turn's prompt begins with the last turn's prompt and answer, reasoning that the client never read included.
    One token is sampled: what a grammar forces behind the last of those is computed by the turn that has it in its prompt."""
    tag = {"type": "sequence", "elements": [{"type": "const_string", "value": "<think>\n" + "hm " * 40 + "\n</think>\n\nOn it"},
                                            {"type": "regex", "pattern": "[.!]"}, {"type": "const_string", "value": " " + CALL}]}
    turn = [{"role": "user", "content": "Look at the sky."}]
    first = worker.post("/v1/responses", asked(input=turn, tools=[WEATHER], include=["reasoning.encrypted_content"],
                                                     structured_outputs={"structural_tag": {"format": tag}})).json
    for item in first["output"]:
        if item["type"] == "reasoning":
            item.pop("content")
        turn.append(item)
    turn.append({"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "280"})
    usage = usage_of(worker, input=turn, tools=[WEATHER])
    before = first["usage"]["input_tokens"]
    assert usage["input_tokens"] > before + 40 and usage["input_tokens_details"]["cached_tokens"] > before


# --- truncation ----------------------------------------------------------------------------------------------------

LENGTH = 2048


@pytest.fixture(scope="module")
def short():
    with started_programs() as start:
        yield start(Worker, *SIM, "--max-model-len", LENGTH).ready()


def turns(n):
    """n turns, and the user's next message."""
    items = []
    for i in range(n):
        items += [{"role": "user", "content": f"Question {i}. " * 12}, {"role": "assistant", "content": f"Answer {i}. " * 12}]
    return [*items, {"role": "user", "content": "So?"}]


def turns_left_out(n, fits):
    """Multiples of a power of two, of which there are 8 to 15, and all; of a smaller power in the last of them. Up to the next
    multiple of a power of which two fit."""
    base = 0
    while True:
        step = 1
        while 2 * step * 8 <= n - base:
            step *= 2
        places = [base, *range(base + step, n - step + 1, step)][:(n - base) // step] + [n]
        at = next(at for at, place in enumerate(places) if at > 0 and fits(place))
        if step == 1 or at < len(places) - 1:
            break
        base = places[at - 1]
    while 4 * step <= n - places[at - 1]:
        step *= 2
    return -(-places[at] // step) * step


def test_conversation_that_does_not_fit_is_refused_unless_it_may_be_truncated(short):
    for fields in ({}, {"truncation": "disabled"}, {"truncation": None}):
        answer = short.post("/v1/responses", asked(input=turns(60), max_output_tokens=None, **fields))
        assert answer.code == 400 and answer.json["error"]["param"] == "input" and "maximum context length" in answer.body
    answer = short.post("/v1/responses", asked(input=turns(60), max_output_tokens=None, truncation="auto", **writing("Hi.")))
    assert answer.code == 200 and answer.json["truncation"] == "auto" and answer.json["output"][0]["content"][0]["text"] == "Hi."
    assert short.post("/v1/responses", asked(truncation="middle")).code == 400


@pytest.mark.parametrize("n", [9, 21, 40, 60, 150, 331])
def test_oldest_turns_are_left_out_until_the_rest_fits(short, n):
    fields = {"instructions": "Be brief.", "max_output_tokens": None, **writing("Hi.")}
    whole = turns(n)
    answer = short.post("/v1/responses", asked(input=whole, truncation="auto", **fields)).json["usage"]["input_tokens"]

    def size(k):
        return short.post("/tokenize", {"messages": [{"role": "system", "content": "Be brief."}, *whole[2 * k:]]}).json["count"]

    room = LENGTH - LENGTH // 8
    assert answer == size(0 if size(0) < LENGTH else turns_left_out(n, lambda k: size(k) <= room))
    assert n < 150 or answer > room // 2 # however long it is, the context is used


def test_what_is_left_has_room_for_the_answer(short):
    for wanted in (1, 700, 2000):
        answer = short.post("/v1/responses", asked(input=turns(60), truncation="auto", max_output_tokens=wanted, ignore_eos=True)).json
        assert answer["status"] == "incomplete" and answer["usage"]["output_tokens"] == wanted
        assert answer["usage"]["total_tokens"] <= LENGTH
    assert streamed(short, input=turns(60), truncation="auto", **writing("Hi."))["usage"]["input_tokens"] < LENGTH
    assert short.post("/v1/responses", asked(input=turns(60), truncation="auto", max_output_tokens=LENGTH)).code == 400
    answer = short.post("/v1/responses", asked(input=[*turns(3), {"role": "user", "content": "long " * LENGTH}], truncation="auto"))
    assert answer.code == 400 and "shorten the prompt" in answer.json["error"]["message"]
    assert short.post("/v1/responses", asked(input="long " * LENGTH, truncation="auto")).code == 400


def test_items_before_the_input_are_left_out_too(short):
    first = short.post("/v1/responses", asked(input=turns(20), max_output_tokens=None, truncation="auto", **writing("Hi."))).json
    second = short.post("/v1/responses", asked(previous_response_id=first["id"], input=turns(20)[:-1] + [{"role": "user", "content": "And?"}],
                                               max_output_tokens=None, truncation="auto", **writing("Yes.")))
    assert second.code == 200 and second.json["usage"]["input_tokens"] <= LENGTH - LENGTH // 8
    assert len(short.get("/v1/responses/" + second.json["id"] + "/input_items").json["data"]) == 41


def test_beginning_of_a_truncated_conversation_stays_cached(short):
    """From the first turn that does not fit on, most leave the same out as the one before."""
    items, n_truncated, n_hits, cached_before = [], 0, 0, 0
    for n in range(64):
        items += [{"role": "user", "content": f"Question {n} of the user."}]
        usage = short.post("/v1/responses", asked(input=items, max_output_tokens=None, truncation="auto", **writing("Hi."))).json["usage"]
        items += [{"role": "assistant", "content": f"Answer {n}. " * 12}]
        n_truncated += cached_before > LENGTH // 2
        n_hits += cached_before > LENGTH // 2 and usage["input_tokens_details"]["cached_tokens"] > LENGTH // 4
        cached_before = usage["input_tokens"]
    assert n_truncated > 30 and n_hits >= 0.8 * n_truncated, (n_hits, n_truncated)


# --- stored responses ----------------------------------------------------------------------------------------------


def test_stored_response_is_the_streamed_one(worker, client):
    last = streamed(worker, tools=[WEATHER], **writing("On it.\n" + CALL))
    assert last["store"] is True and worker.get("/v1/responses/" + last["id"]).json == last
    assert client.responses.retrieve(last["id"]).output_text.strip() == "On it."
    items = client.responses.input_items.list(last["id"]).data
    assert [(i.role, i.content[0].text) for i in items] == [("user", "Hello")] and items[0].id
    assert http(worker.url + "/v1/responses/" + last["id"] + "/input_items", method="DELETE").code == 405
    client.responses.delete(last["id"])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last["id"])
    assert http(worker.url + "/v1/responses/" + last["id"], method="DELETE").code == 404


def test_chain_is_the_conversation_without_its_instructions(worker):
    text = "<think>\nhm\n</think>\n\nOn it. " + CALL
    first = worker.post("/v1/responses", asked(instructions="Be brief.", input="Look at the sky.", tools=[WEATHER], **writing(text))).json
    output = [{"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "280"}]
    second = worker.post("/v1/responses", asked(previous_response_id=first["id"], input=output, tools=[WEATHER], **writing("280 K."))).json
    chained = worker.post("/v1/responses", asked(previous_response_id=second["id"], input="Thanks.", tools=[WEATHER], **writing("Yes."))).json
    items = [{"role": "user", "content": "Look at the sky."}, *first["output"], *output, *second["output"], {"role": "user", "content": "Thanks."}]
    sent = usage_of(worker, input=items, tools=[WEATHER])
    assert chained["usage"]["input_tokens"] == sent["input_tokens"]
    assert sent["input_tokens_details"]["cached_tokens"] >= sent["input_tokens"] - 16


def test_what_is_not_stored_is_not_found(worker, programs):
    answer = worker.post("/v1/responses", asked(store=False, **writing("Hi."))).json
    assert answer["store"] is False and worker.get("/v1/responses/" + answer["id"]).code == 404
    missing = worker.post("/v1/responses", asked(previous_response_id=answer["id"]))
    assert missing.code == 404 and "send the whole input" in missing.json["error"]["message"]
    assert missing.json["error"]["param"] == "previous_response_id"
    none = programs(Worker, *SIM, "--responses-store-bytes", 0).ready()
    answer = none.post("/v1/responses", asked(max_output_tokens=1)).json
    assert answer["store"] is False and none.get("/v1/responses/" + answer["id"]).code == 404
    assert "response_mark" not in none.get("/server_info").json
    assert none.post("/v1/responses", asked(previous_response_id=answer["id"])).code == 404


def test_store_is_bounded_and_counted(programs):
    worker = programs(Worker, *SIM, "--responses-store-bytes", "16KiB").ready()
    mark = worker.get("/server_info").json["response_mark"]
    ids = [worker.post("/v1/responses", asked(max_output_tokens=2)).json["id"] for _ in range(40)]
    assert all(i.startswith("resp_" + mark) for i in ids) and len(set(ids)) == 40
    assert worker.get("/v1/responses/" + ids[0]).code == 404 and worker.get("/v1/responses/" + ids[-1]).code == 200
    stored = worker.metric("incipit_responses_stored")
    assert 1 <= stored < 40 and worker.metric("incipit_responses_evicted_total") == 40 - stored
    assert 0 < worker.metric("incipit_responses_stored_bytes") <= 16 << 10


def test_each_key_has_responses_of_its_own(programs):
    worker = programs(Worker, *SIM, "--api-key", "one", "--api-key", "two").ready()
    of = lambda key: {"headers": {"Authorization": "Bearer " + key}}
    response = worker.post("/v1/responses", asked(max_output_tokens=1), **of("one")).json["id"]
    get = lambda key: http(worker.url + "/v1/responses/" + response, **of(key)).code
    assert get("two") == 404 and get("one") == 200
    assert worker.post("/v1/responses", asked(previous_response_id=response), **of("two")).code == 404


def test_salt_keeps_responses_apart(worker):
    first = worker.post("/v1/responses", asked(cache_salt="a", max_output_tokens=1)).json["id"]
    go_on = lambda **salt: worker.post("/v1/responses", asked(previous_response_id=first, max_output_tokens=1, **salt)).code
    assert (go_on(cache_salt="b"), go_on(), go_on(cache_salt="a")) == (404, 404, 200)
    assert worker.get("/v1/responses/" + first).code == 404


def test_router_continues_a_response_at_its_worker(programs):
    workers = [programs(Worker, *SIM).ready() for _ in range(2)]
    router = programs(Router, "--worker-urls", *(w.url for w in workers)).ready(2)
    model = workers[0].get("/v1/models").json["data"][0]["id"]
    marks = {w.get("/server_info").json["response_mark"] for w in workers}
    for i in range(8):
        first = streamed(router, model=model, input=f"Conversation {i}", **writing("Hi."))
        assert first["id"][5:17] in marks
        second = router.post("/v1/responses", asked(model=model, previous_response_id=first["id"], input="Go on.", **writing("Yes.")))
        assert second.code == 200 and second.json["id"][:17] == first["id"][:17]
        assert sorted(w.get("/v1/responses/" + second.json["id"]).code for w in workers) == [200, 404]
    missing = router.post("/v1/responses", asked(model=model, previous_response_id="resp_" + "0" * 12 + "ff", input="Go on."))
    assert missing.code == 404 and "send the whole input" in missing.json["error"]["message"]


# --- Codex ---------------------------------------------------------------------------------------------------------

CODEX = {
    "model": "default", "stream": True, "store": False, "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAAABn"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"},
        {"type": "function_call", "call_id": "c2", "namespace": "mcp", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "blue"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "additional_tools", "role": "developer", "tools": [{**WEATHER, "name": "more"}]}],
    "tools": [{**WEATHER, "name": "shell"}, PATCH, {"type": "namespace", "name": "mcp", "description": "d", "tools": [{**WEATHER, "name": "look"}]},
              {"type": "web_search", "external_web_access": False}, {"type": "image_generation", "output_format": "png"}],
    "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"},
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "01990000", "client_metadata": {"x-codex-installation-id": "1"},
    "text": {"verbosity": "low"}, "service_tier": "auto",
}
HEADERS = {"session-id": "01990000", "thread-id": "01990000", "x-openai-subagent": "review", "originator": "codex_cli_rs"}


def test_codex_is_answered(worker):
    text = "<think>\nhm\n</think>\n\n" + '<tool_call>\n{"name": "more", "arguments": {"unit": "kelvin"}}\n</tool_call>'
    stream = list(events(worker.url + "/v1/responses", {**CODEX, "max_output_tokens": 500, **writing(text)}, headers=HEADERS))
    assert stream[-1]["type"] == "response.completed"
    reasoning, call = stream[-1]["response"]["output"]
    assert reasoning["encrypted_content"] and (call["type"], call["name"]) == ("function_call", "more")


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields, param", [
    ({"input": None}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
    ({"background": True}, "background"),
    ({"store": "false"}, "store"),
    ({"input": "word " * 6000}, "input"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
])
def test_errors_before_the_head_name_the_field(worker, fields, param):
    answer = worker.post("/v1/responses", asked(**fields))
    assert answer.code == 400 and answer.json["error"]["param"] == param


def test_a_later_error_is_response_failed(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.1).ready()
    stream = events(worker.url + "/v1/responses", asked(stream=True, ignore_eos=True))
    first = next(stream)
    assert first["type"] == "response.created"
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: worker.get("/readyz").code == 503, "the drain")
    worker.process.send_signal(signal.SIGTERM)
    rest = list(stream)
    assert rest[-1]["type"] == "response.failed" and rest[-1]["response"]["id"] == first["response"]["id"]
    assert [e["sequence_number"] for e in rest] == list(range(1, len(rest) + 1))
