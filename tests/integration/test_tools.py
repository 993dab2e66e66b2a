"""Tool calls and reasoning in chat, whole and streamed. The simulated backend obeys masks, so that a structural tag makes it
write any text: what is read from that text is compared with the text."""
import concurrent.futures
import json
import re

import pytest

from conftest import DEMO_MODEL, Worker, events, in_front_of, started_programs

openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")

HELLO = [{"role": "user", "content": "Hello"}]
UNIT = {"type": "object", "properties": {"unit": {"enum": ["celsius", "kelvin"]}, "exact": {"type": "boolean"}},
        "required": ["unit", "exact"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "description": "...", "parameters": parameters, **more}}


TOOLS = [tool("weather", UNIT), tool("time.now", NOTHING)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "kelvin", "exact": true}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "time.now", "arguments": {}}\n</tool_call>'
KELVIN = ("weather", '{"unit": "kelvin", "exact": true}')


@pytest.fixture(scope="module")
def worker():
    with started_programs() as start:
        yield start(Worker, "--backend", "sim", "--sim-speed", 1000, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                    "--max-model-len", 8192).ready()


@pytest.fixture(scope="module")
def plain():
    """A worker that reads neither."""
    with started_programs() as start:
        yield start(Worker, "--backend", "sim", "--sim-speed", 1000, "--tool-call-parser", "none", "--reasoning-parser", "none").ready()


@pytest.fixture
def client(worker):
    with openai.OpenAI(base_url=worker.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


# The text of the simulated backend is random: reasoning that it has begun it ends by a budget.
BUDGET, UNLIMITED = {"thinking_token_budget": 9}, {"thinking_token_budget": None}


def body(**fields):
    return {"messages": HELLO, "max_tokens": 2000, "temperature": 0, "tools": TOOLS, **BUDGET, **fields}


def writing(text):
    """Fields that make the model write exactly that."""
    return {"structured_outputs": {"structural_tag": {"format": {"type": "const_string", "value": text}}}}


def whole(worker, **fields):
    answer = worker.post("/v1/chat/completions", body(**fields))
    assert answer.code == 200, answer.body
    return answer.json


def choice(worker, **fields):
    return whole(worker, **fields)["choices"][0]


def streamed(worker, **fields):
    """The choice that the deltas of a stream make, as clients join them; each rule of deltas holds."""
    message, finish, calls = {"content": None, "reasoning": None}, None, []
    for event in events(worker.url + "/v1/chat/completions", body(stream=True, **fields)):
        for part in event["choices"] if event != "[DONE]" else []:
            delta = part["delta"]
            assert finish is None
            finish = part["finish_reason"]
            for key in ("content", "reasoning"):
                if delta.get(key):
                    message[key] = (message[key] or "") + delta[key]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", []):
                kind = "custom" if "custom" in call else "function"
                text = "input" if kind == "custom" else "arguments"
                if call["index"] == len(calls):
                    assert call["type"] == kind and call["id"] and call[kind][text] == ""
                    calls.append({"id": call["id"], "type": kind, kind: dict(call[kind])})
                else:
                    assert call["index"] == len(calls) - 1 and set(call) == {"index", kind}
                    assert set(call[kind]) == {text}
                    calls[-1][kind][text] += call[kind][text]
    return message, calls, finish


def calls_of(message):
    """(name, arguments), or (name, "custom", input)."""
    return [(c["function"]["name"], c["function"]["arguments"]) if c["type"] == "function" else
            (c["custom"]["name"], "custom", c["custom"]["input"]) for c in message.get("tool_calls", [])]


def check(worker, content, calls, finish, reasoning=None, **fields):
    """Whole and streamed have that, whatever the ids are."""
    one = choice(worker, **fields)
    message = one["message"]
    assert (message["content"], calls_of(message), one["finish_reason"]) == (content, calls, finish)
    assert message["reasoning"] == message.get("reasoning_content") == reasoning
    message, deltas, streamed_finish = streamed(worker, **fields)
    assert (message["content"] or None, message["reasoning"], streamed_finish) == (content or None, reasoning, finish)
    assert calls_of({"tool_calls": deltas}) == calls


def is_valid(name, arguments):
    value = json.loads(arguments)
    return value == {} if name == "time.now" else (
        list(value) == ["unit", "exact"] and value["unit"] in ("celsius", "kelvin") and value["exact"] in (True, False))


# --- calls that are read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, content, calls, finish", [
    (CALL, None, [KELVIN], "tool_calls"),
    ("On it. " + CALL, "On it. ", [KELVIN], "tool_calls"),
    (CALL + "\n" + NOW, None, [KELVIN, ("time.now", "{}")], "tool_calls"),
    (NOW + NOW, None, [("time.now", "{}"), ("time.now", "{}")], "tool_calls"),
    ("No tool is needed.", "No tool is needed.", [], "stop"),
    ("a <tool_", "a <tool_", [], "stop"),
    ("the marker <tool_call> begins a call", "the marker <tool_call> begins a call", [], "stop"),
    ('<tool_call>\n{"name": "weather", "arguments": {"a": "}</tool_call>\\""}}\n</tool_call>', None,
     [("weather", '{"a": "}</tool_call>\\""}')], "tool_calls"),
    ('<tool_call>\n{"name": "of_nobody", "arguments": {"ü": "€𝄞"}}\n</tool_call>', None, [("of_nobody", '{"ü": "€𝄞"}')], "tool_calls"),
])
def test_calls_are_read_from_the_text(worker, text, content, calls, finish):
    check(worker, content, calls, finish, **writing(text))


def test_with_none_and_without_tools_calls_stay_text(worker):
    check(worker, CALL, [], "stop", tool_choice="none", **writing(CALL))
    check(worker, CALL, [], "stop", tools=None, **writing(CALL))


def test_without_a_format_calls_stay_text(plain):
    check(plain, CALL, [], "stop", **UNLIMITED, **writing(CALL))
    answer = plain.post("/v1/chat/completions", body(tool_choice="required", **UNLIMITED))
    assert answer.code == 400 and answer.json["error"]["param"] == "tool_choice" and "--tool-call-parser" in answer.body


def test_none_keeps_the_tools_in_the_prompt(worker):
    prompts = {choice: whole(worker, tool_choice=choice, max_tokens=1)["usage"]["prompt_tokens"] for choice in ("none", "auto")}
    assert prompts["none"] == prompts["auto"]


def test_a_call_that_the_limit_cuts_is_one_of_length(worker):
    for n in range(45, len(CALL) - len("\n</tool_call>")):
        answer = choice(worker, max_tokens=n, **writing(CALL))
        assert answer["finish_reason"] == "length"
        for name, arguments in calls_of(answer["message"]):
            assert name == "weather" and KELVIN[1].startswith(arguments) and arguments != "{}"


def test_a_call_that_a_stop_string_cuts_is_none_that_is_to_run(worker):
    answer = choice(worker, stop=["kelvin"], **writing(CALL))
    assert answer["finish_reason"] == "stop" and answer["stop_reason"] == "kelvin"


def test_ids_are_unique(worker):
    calls = [c["id"] for _ in range(3) for c in choice(worker, **writing(CALL + "\n" + NOW))["message"]["tool_calls"]]
    assert len(set(calls)) == 6 and all(re.fullmatch(r"call_\w{24}", c) for c in calls)


# --- calls that are forced -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_required_calls_one_at_least(worker, seed):
    answer = choice(worker, tool_choice="required", messages=[{"role": "user", "content": f"call {seed}"}], parallel_tool_calls=False)
    (name, arguments), = calls_of(answer["message"])
    assert is_valid(name, arguments) and answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["weather", "time.now"])
def test_a_named_tool_is_called(worker, name):
    named = {"type": "function", "function": {"name": name}}
    answer = choice(worker, tool_choice=named)
    (called, arguments), = calls_of(answer["message"])
    assert called == name and is_valid(name, arguments) and answer["finish_reason"] == "stop"
    message, calls, finish = streamed(worker, tool_choice=named)
    assert calls_of({"tool_calls": calls}) == [(called, arguments)] and finish == "stop"


def test_allowed_tools_are_the_only_ones(worker):
    for seed in range(8):
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "time.now"}}]}}
        answer = choice(worker, tool_choice=allowed, parallel_tool_calls=False, messages=[{"role": "user", "content": str(seed)}])
        assert calls_of(answer["message"]) == [("time.now", "{}")] and answer["finish_reason"] == "tool_calls"


def test_arguments_have_the_white_space_of_the_template(worker):
    name, arguments = calls_of(choice(worker, tool_choice={"type": "function", "function": {"name": "weather"}})["message"])[0]
    assert arguments == json.dumps(json.loads(arguments), ensure_ascii=False)


def test_a_call_beside_a_schema_is_one_of_the_two(worker):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    outcomes = set()
    for seed in range(24):
        answer = choice(worker, messages=[{"role": "user", "content": f"either {seed}"}], parallel_tool_calls=False,
                        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}})
        calls, content = calls_of(answer["message"]), answer["message"]["content"]
        outcomes.add(bool(calls))
        if calls:
            assert all(is_valid(*c) for c in calls)
        else:
            assert json.loads(content)["ok"] in (True, False)
    assert outcomes


LARGE_TOOL = {"type": "custom", "custom": {"name": "large", "format": {"type": "grammar", "grammar": {
    "syntax": "lark", "definition": 'start: "' + "a" * 300000 + '"'}}}}


@pytest.mark.parametrize("fields, param, part", [
    ({"tools": None, "tool_choice": "required"}, "tool_choice", "When using `tool_choice`, `tools` must be set."),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "does not match any of the specified `tools`"),
    ({"tool_choice": "required", "guided_regex": "a"}, "tool_choice", "not both"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "not both"),
    ({"tool_choice": "required", "use_beam_search": True, **UNLIMITED}, "use_beam_search", "beam search"),
    ({"tools": [tool("a b", {})]}, "tools", "letters"),
    ({"tools": [tool("f", {"type": "object", "not": {}}, strict=True)]}, "tools", "f"),
    ({"tools": [tool("f", {"type": "object", "not": {}})], "tool_choice": "required"}, "tools", "f"),
    ({"tools": [LARGE_TOOL], "tool_choice": "required"}, "tools", "bytes"),
    ({"modalities": ["text", "audio"]}, "modalities", "text"),
    ({"web_search_options": {}}, "web_search_options", "not supported"),
    ({"reasoning_effort": "some"}, "reasoning_effort", "some"),
    ({"use_beam_search": True}, "thinking_token_budget", "beam search"),
    ({"thinking_token_budget": -2}, "thinking_token_budget", "-2"),
])
def test_what_cannot_be_is_refused_by_name(worker, fields, param, part):
    answer = worker.post("/v1/chat/completions", body(**fields))
    assert answer.code == 400 and answer.json["error"]["param"] == param, answer.body
    assert part in answer.json["error"]["message"]


FORMATS = ["hermes", "qwen3_coder", "llama3_json", "pythonic", "llama4_pythonic", "mistral", "mistral_v3", "deepseek_v3", "deepseek_v31", "deepseek_v32",
           "kimi_k2", "glm45", "glm47", "granite", "granite-20b-fc", "minimax_m2", "seed_oss", "gemma4", "functiongemma", "hunyuan_a13b", "phi4_mini_json",
           "openai"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_is_read_in_each_format(programs, name):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1000, "--tool-call-parser", name, "--reasoning-parser", "none").ready()
    assert worker.get("/server_info").json["tool_call_parser"] == name
    for choice_of_tool, finish in (("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")):
        fields = {"tool_choice": choice_of_tool, "parallel_tool_calls": False, **UNLIMITED}
        answer = choice(worker, **fields)
        (called, arguments), = calls_of(answer["message"])
        assert is_valid(called, arguments) and answer["finish_reason"] == finish and answer["message"]["content"] is None
        message, calls, streamed_finish = streamed(worker, **fields)
        assert calls_of({"tool_calls": calls}) == [(called, arguments)] and (streamed_finish, message["content"] or None) == (finish, None)


# --- reasoning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, reasoning, content", [
    ("<think>Look.</think>Done.", "Look.", "Done."),
    ("<think></think>Done.", None, "Done."),
    ("Done.", None, "Done."),
])
def test_reasoning_is_apart_from_the_text(worker, text, reasoning, content):
    check(worker, content, [], "stop", reasoning=reasoning, tools=None, **writing(text))


def test_reasoning_stands_before_calls(worker):
    check(worker, None, [KELVIN], "tool_calls", reasoning="Look.", **writing("<think>Look.</think>" + CALL))


def test_reasoning_is_counted_and_may_be_hidden(worker):
    text = writing("<think>12345</think>Done.")
    assert whole(worker, **text)["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 5
    hidden = whole(worker, include_reasoning=False, **text)
    assert hidden["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 5
    check(worker, "Done.", [], "stop", include_reasoning=False, **text)
    check(worker, "<think>12345</think>Done.", [], "stop", separate_reasoning=False, **text)


OPENED = [*HELLO, {"role": "assistant", "content": "<think>\n"}]
GOES_ON = {"messages": OPENED, "continue_final_message": True, "tools": None}


@pytest.mark.parametrize("budget", [0, 1, 7, 40])
def test_a_budget_ends_reasoning_at_its_token(worker, budget):
    message = choice(worker, thinking_token_budget=budget, max_tokens=60, ignore_eos=True, **GOES_ON)["message"]
    assert len((message["reasoning"] or "").encode()) == budget
    assert len(message["content"].encode()) == 60 - budget - len("\n</think>\n\n")
    assert choice(worker, thinking_token_budget=budget, max_tokens=60, ignore_eos=True, **GOES_ON)["message"] == message


def test_an_open_reasoning_without_a_budget_takes_the_whole_answer(worker):
    message = choice(worker, max_tokens=30, **{**GOES_ON, **UNLIMITED})["message"]
    assert message["content"] is None and len(message["reasoning"]) > 0


def test_a_budget_holds_however_the_marker_is_spelt(programs):
    """Without the tokens of its usual spelling, and that of a call, the model has to begin by others."""
    worker = programs(Worker, DEMO_MODEL, "--backend", "sim", "--sim-speed", 1000, "--reasoning-parser", "qwen3").ready()
    usual = {token for text in ("<think>", "<tool_call>") for token in worker.post("/tokenize", {"prompt": text}).json["tokens"][1:-1]}
    for seed in range(4):
        answer = whole(worker, tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1, max_tokens=200,
                       logit_bias={str(token): -100 for token in usual})
        message = answer["choices"][0]["message"]
        assert message["reasoning"] and answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20, message


def test_a_schema_holds_behind_reasoning(worker):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    for budget in (0, 9):
        answer = choice(worker, thinking_token_budget=budget, guided_json=schema, **GOES_ON)
        assert len(answer["message"]["reasoning"] or "") == budget
        assert json.loads(answer["message"]["content"])["ok"] in (True, False)
        assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("fields", [{"tool_choice": "required", "parallel_tool_calls": False}, {"guided_regex": "yes|no"}])
def test_behind_reasoning_that_the_prompt_has_closed_there_is_none(worker, fields):
    closed = [*HELLO, {"role": "assistant", "content": "<think>\n\n</think>\n\n"}]
    for seed in range(6):
        history = [{"role": "user", "content": f"{seed}"}, *closed]
        answer = choice(worker, messages=history, continue_final_message=True, **{**UNLIMITED, **fields})
        assert answer["message"]["reasoning"] is None and answer["finish_reason"] in ("tool_calls", "stop")


def test_a_budget_needs_a_format(plain):
    answer = plain.post("/v1/chat/completions", body(thinking_token_budget=3))
    assert answer.code == 400 and answer.json["error"]["param"] == "thinking_token_budget" and "--reasoning-parser" in answer.body


@pytest.mark.parametrize("fields", [GOES_ON, {"tool_choice": "required", "parallel_tool_calls": False}])
def test_an_answer_with_a_budget_is_the_same_alone_and_among_others(worker, fields):
    bodies = [{**body(**fields), "seed": seed, "temperature": 1, "thinking_token_budget": seed, "max_tokens": 200} for seed in range(24)]
    ask = lambda b: worker.post("/v1/chat/completions", b).json["choices"][0]["message"]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(ask, bodies))
    alone = [ask(b) for b in bodies]
    for one in (*together, *alone):
        for call in one.get("tool_calls", []):
            del call["id"]
    assert together == alone


SWITCHED = "{% for m in messages %}{{ m.content }}{% if preserve_thinking and m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}{% endfor %}"


def test_reasoning_of_earlier_turns_is_kept_on_demand(programs):
    history = [*HELLO, {"role": "assistant", "content": "Done.", "reasoning": "Because."}, *HELLO]
    counts = []
    for options in ([], ["--keep-reasoning"], ["--keep-reasoning", "--default-chat-template-kwargs", '{"preserve_thinking": false}']):
        worker = programs(Worker, DEMO_MODEL, "--backend", "sim", "--chat-template", SWITCHED, *options).ready()
        counts.append(worker.post("/tokenize", {"messages": history}).json["count"])
    assert counts[1] > counts[0] == counts[2]


def test_a_template_without_a_switch_and_unknown_formats_are_reported(programs):
    worker = programs(Worker, "--backend", "sim", "--keep-reasoning", "--tool-call-parser", "of_tomorrow", "--reasoning-parser", "deepseek-r1").ready()
    assert " format_unknown option=tool-call-parser " in worker.log and "reasoning-parser" not in worker.log
    assert " reasoning_not_kept" in worker.log  # all of it stands before worker_ready
    assert worker.get("/server_info").json["reasoning_parser"] == "deepseek_r1"


# --- markers that are tokens -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """The demonstration model with a vocabulary that has the markers, recognised from it."""
    folder = tmp_path_factory.mktemp("marked")
    for file in DEMO_MODEL.iterdir():
        (folder / file.name).symlink_to(file)
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    model, ids = tokenizer["model"], {i: token for token, i in tokenizer["model"]["vocab"].items()}
    for n, marker in enumerate(("<tool_call>", "</tool_call>", "<think>", "</think>")):
        token = len(ids) - 1 - n
        assert "".join(model["merges"].pop().split(" ")) == ids[token]
        del model["vocab"][ids[token]]
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": token, "content": marker, "special": False})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with started_programs() as start:
        yield start(Worker, folder, "--backend", "sim", "--sim-speed", 1000, "--served-model-name", "synthetic").ready()


def test_formats_are_recognised_from_the_vocabulary(marked):
    info = marked.get("/server_info").json
    assert (info["tool_call_parser"], info["reasoning_parser"]) == ("hermes", "deepseek_r1")


@pytest.mark.parametrize("text, reasoning, content, calls, finish", [
    ("Both. " + CALL + "\n" + NOW, None, "Both. ", [KELVIN, ("time.now", "{}")], "tool_calls"),
    ("<think>Look</think>" + CALL, "Look", None, [KELVIN], "tool_calls"),
    ("<think>Look</think>Done.", "Look", "Done.", [], "stop"),
    ("<think>Look" + CALL, "Look", None, [KELVIN], "tool_calls"),
])
def test_markers_that_are_tokens_are_read(marked, text, reasoning, content, calls, finish):
    check(marked, content, calls, finish, reasoning=reasoning, **writing(text))


def test_a_stop_string_is_not_found_in_a_marker_and_text_before_it_is_kept(marked):
    check(marked, "Be th", [KELVIN], "tool_calls", stop=["think", "th<"], **writing("Be th" + CALL))
    check(marked, "Done", [], "stop", reasoning="a th", stop=["think", "th<", "."], **writing("<think>a th</think>Done."))


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_counts_tokens_between_markers(marked, budget):
    fields = {"thinking_token_budget": budget, "max_tokens": 20, "ignore_eos": True}
    answer = whole(marked, **GOES_ON, **fields)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget + 1  # and the newline that is forced
    assert answer["choices"][0]["message"]["content"]
    ids = whole(marked, return_token_ids=True, **GOES_ON, **fields)["choices"][0]["token_ids"]
    end, = marked.post("/tokenize", {"prompt": "</think>"}).json["tokens"]
    assert [i for i, token in enumerate(ids) if token == end] == [budget + 1]


def test_a_forced_call_is_spelt_with_the_tokens(marked):
    answer = choice(marked, tool_choice="required", parallel_tool_calls=False, return_token_ids=True)
    (name, arguments), = calls_of(answer["message"])
    begin, = marked.post("/tokenize", {"prompt": "<tool_call>"}).json["tokens"]
    assert is_valid(name, arguments) and answer["token_ids"].count(begin) == 1


# --- through a router ------------------------------------------------------------------------------------------


def test_a_router_passes_calls_and_reasoning(programs, worker):
    router = in_front_of(worker, programs, "router")
    check(router, "On it.", [KELVIN], "tool_calls", reasoning="Look.", **writing("<think>Look.</think>On it." + CALL))


# --- the official client ---------------------------------------------------------------------------------------


def request(text=None, **fields):
    return {"model": "synthetic", "messages": HELLO, "max_tokens": 500, "temperature": 0, "tools": TOOLS,
            "extra_body": {**BUDGET, **(writing(text) if text else {})}, **fields}


def test_the_client_reads_calls(client):
    answer = client.chat.completions.create(**request(tool_choice="required", parallel_tool_calls=False)).choices[0]
    call, = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and is_valid(call.function.name, call.function.arguments)
    assert answer.message.content is None


def test_the_client_joins_a_stream_to_the_whole(client):
    fields = request("Both. " + CALL + NOW)
    expected = client.chat.completions.create(**fields).choices[0].message
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert message.content == expected.content == "Both. "
    assert [c.function.arguments for c in message.tool_calls] == [c.function.arguments for c in expected.tool_calls] == [KELVIN[1], "{}"]


def test_the_client_parses_arguments(client):
    strict = [tool("weather", UNIT, strict=True)]
    answer = client.chat.completions.parse(**request(tools=strict, tool_choice="required", parallel_tool_calls=False)).choices[0]
    assert set(answer.message.tool_calls[0].function.parsed_arguments) == {"unit", "exact"}


def test_an_answer_is_sent_back_unchanged(client):
    answer = client.chat.completions.create(**request("<think>So.</think>" + CALL)).choices[0].message
    history = [*HELLO, answer.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "280"}]
    assert client.chat.completions.create(**request(messages=history)).choices


# --- custom tools --------------------------------------------------------------------------------------------------

EDIT = {"type": "custom", "custom": {"name": "edit", "description": "Edits.", "format": {"type": "grammar", "grammar": {
    "syntax": "lark", "definition": 'start: ("+" /[a-z"]{1,3}/ LF){1,4}\n%import common.LF'}}}}
EDITED = '<tool_call>\n{"name": "edit", "arguments": {"input": "+\\"a\\n"}}\n</tool_call>'


def test_calls_of_custom_tools_are_custom(worker):
    check(worker, None, [("edit", "custom", '+"a\n')], "tool_calls", tools=[*TOOLS, EDIT], **writing(EDITED))
    check(worker, None, [KELVIN, ("edit", "custom", '+"a\n')], "tool_calls", tools=[*TOOLS, EDIT], **writing(CALL + "\n" + EDITED))


def test_official_client_gets_the_input_of_a_custom_tool(client):
    answer = client.chat.completions.create(model="default", messages=HELLO, tools=[TOOLS[0], EDIT], max_tokens=2000, temperature=0,
                                            tool_choice={"type": "custom", "custom": {"name": "edit"}}, extra_body=BUDGET)
    [call] = answer.choices[0].message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "edit") and re.fullmatch(r'(\+[a-z"]{1,3}\n){1,4}', call.custom.input)


def test_history_with_a_custom_call_is_a_continuation(worker):
    """The call as the client sends it back is printed as the model wrote it."""
    asked = [{"role": "user", "content": "Edit. " * 40}]
    first = whole(worker, messages=asked, tools=[EDIT], **writing(EDITED))
    message = first["choices"][0]["message"]
    turn = [*asked, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}]
    as_function = {**message, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "edit", "arguments": '{"input": "+\\"a\\n"}'}}]}
    count = lambda messages: worker.post("/tokenize", {"messages": messages, "tools": [EDIT]}).json["count"]
    assert count(turn) == count([*asked, as_function, turn[-1]])
    answer = worker.post("/v1/chat/completions", body(messages=[{"role": "user", "content": "a"}], tools=[{"type": "custom", "custom": {}}]))
    assert answer.code == 400 and "tools[0] must be" in answer.json["error"]["message"]
