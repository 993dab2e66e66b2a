"""worker/API.md and worker/http-api against the worker: every field on them is read, every limit holds, every refusal is one, and no field or
path of the program is missing from it."""
import json
import re

import pytest

from conftest import ROOT, Worker

PAGE = "\n".join(page.read_text() for page in (ROOT / "worker/API.md", *sorted((ROOT / "worker/http-api").glob("*.md"))))
HELLO = [{"role": "user", "content": "Hello"}]
PLAIN = {"/v1/completions": {"prompt": "Hello", "max_tokens": 2},
         "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
         "/generate": {"text": "Hello"}, "/tokenize": {"prompt": "Hello"}, "/detokenize": {"tokens": [97]}}

# What else a call must have for that field to make sense, and a value where the type does not give one.
BESIDE = {
    "max_completion_tokens": {"max_tokens": None}, "top_logprobs": {"logprobs": True}, "echo": {}, "best_of": {"n": 1},
    "stream_options": {"stream": True}, "add_generation_prompt": {"continue_final_message": None},
    "length_penalty": {"use_beam_search": True}, "early_stopping": {"use_beam_search": True},
    "text": {"input_ids": None}, "input_ids": {"text": None}, "min_tokens": {"max_tokens": 5},
    "messages": {"prompt": None}, "prompt_cache_options": {},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
}
EXAMPLE = {
    "prompt_cache_options": [{}, {"mode": "implicit", "ttl": "12h"}], "prompt_cache_options.ttl": ["30m", "12h"],
    "prompt_cache_retention": ["24h", "in_memory"],
    "prompt": ["a", ["a", "b"], [97, 98], [[97], [98, 99]]], "messages": [HELLO], "text": ["a", ["a", "b"]],
    "input_ids": [[97, 98], [[97], [98]]],
    "tools": [[{"type": "function", "function": {"name": "f", "parameters": {}}}]],
    "documents": [[{"title": "a", "text": "b"}]], "chat_template_kwargs": [{"enable_thinking": False}],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}], "reasoning_effort": ["none", "high"], "modalities": [["text"]],
    "function_call": ["auto", "none"], "truncation_side": ["left", "right"], "model": ["synthetic", "default"], "logit_bias": [{"97": -100, "98": 100}],
    "allowed_token_ids": [[97, 98]], "bad_words": [["cat", "dog"]], "stop": ["x", ["x", "y"]], "stop_token_ids": [[97]],
    "stream_options": [{"include_usage": True}], "tokens": [[97, 98]],
    "early_stopping": [True, False, "never"], "sampling_params": [{"max_new_tokens": 1}], "seed": [-5, 2 ** 40],
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {}}}],
    "structured_outputs": [{"json": {}}, {"regex": "a"}, {"choice": ["a"]}, {"grammar": "start: \"a\""}, {"json_object": True}],
    "guided_json": [{"type": "null"}, "{}"], "guided_choice": [["a", "b"]], "guided_grammar": ["root ::= \"a\"", "start: \"a\""],
    "json_schema": ["{}"], "ebnf": ["root ::= \"a\""],
    "structural_tag": [{"format": {"type": "any_text"}}, "{\"format\":{\"type\":\"any_text\"}}"],
    "sampling_seed": [7], "priority": [0, -3, 7], "truncate_prompt_tokens": [-1, 1, 100],
}
# Beyond the column of the type.
WRONG = {
    "prompt_cache_options.ttl": ["5m"], "prompt_cache_retention": ["1w"],
    "prompt": [[], [[]], [[10 ** 7]], ["a", 5]], "messages": [[], [{}], ["a"]], "tool_choice": ["any", {"type": "function", "function": {"name": "g"}}], "tools": [["f"], [{"type": "custom"}]], "modalities": [["audio"]],
    "reasoning_effort": ["much"],
    "logit_bias": [{"x": 1}, {"97": 101}, {str(10 ** 7): 1}, {str(i): 1 for i in range(97, 97 + 301)}],
    "allowed_token_ids": [[], [10 ** 7]], "bad_words": [[""], ["x" * 257], ["w"] * 65],
    "stop": [["x"] * 65, [5], "x" * 1025],
    "stop_token_ids": [[10 ** 7], [97] * 65], "response_format": [{"type": "xml"}, {"type": "json_schema"}], "structured_outputs": [{}], "guided_json": [5],
    "guided_choice": [[], [1]], "guided_regex": ["("], "guided_grammar": ["x"], "json_schema": ["{"], "regex": ["("], "ebnf": ["x"], "structural_tag": [{}], "best_of": [129],
    "cache_salt": ["", "x" * 1025], "extra_key": [""], "truncate_prompt_tokens": [0], "early_stopping": ["soon"],
    "tokens": [[10 ** 7], ["a"]], "input_ids": [[10 ** 7]], "request_id": ["x" * 129], "rid": ["x" * 160],
}
NOT_WRONG = {"model"}  # another name is 404, tested elsewhere


def section(title):
    return re.split(r"\n##? ", PAGE.split(f"\n## {title}\n")[1])[0]


def table(text, first):
    """The rows below the header whose first cell is that: lists of cells."""
    rows, is_inside = [], False
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else None
        if cells and cells[0] == first:
            is_inside = True
        elif not cells:
            is_inside = False
        elif is_inside and not cells[0].startswith("---"):
            rows.append(cells)
    return rows


def fields(title, part=slice(None)):
    text = "\n".join(section(title).split("Members of `sampling_params`:")[part])
    return [(row[0].strip("`"), row[1]) for row in table(text, "field")]


def names(title, first):
    """The first column of a table, without its ticks."""
    return [row[0].strip("`") for row in table(section(title), first)]


COMMON = fields("Fields of both calls")
CALLS = {
    "/v1/completions": fields("POST /v1/completions") + COMMON,
    "/v1/chat/completions": fields("POST /v1/chat/completions") + COMMON,
    "/generate": fields("POST /generate", slice(0, 1)),
    "/generate sampling_params": fields("POST /generate", slice(1, 2)),
    "/tokenize": fields("POST /tokenize"),
    "/detokenize": fields("POST /detokenize"),
}
EVERY = [(call, name, kind) for call, rows in CALLS.items() for name, kind in rows]


def limits(kind):
    """(least, most, is the least excluded) of "integer 0..20", "number >0..1"; None where there is none."""
    match = re.match(r"(?:integer|number) (>?)(-?\d+)\.\.(-?\d+)?$", kind)
    return (int(match[2]), int(match[3]) if match[3] else None, match[1] == ">") if match else (None, None, False)


def good_values(call, name, kind):
    if name in EXAMPLE:
        return [v for v in EXAMPLE[name] if kind != "string" or isinstance(v, str)]
    least, most, is_open = limits(kind)
    if kind == "boolean":
        return [True, False]
    if kind.startswith(("integer", "number")):
        beside = [least + (0.01 if is_open else 0)] if least is not None else []
        return beside + ([most] if most is not None else [least + 1 if not is_open else 1.5])
    assert kind.startswith("string"), (name, kind)
    size = re.search(r"(\d+) bytes", kind)
    return ["a", "x" * int(size[1])] if size else ["a"]


def wrong_values(name, kind):
    values = list(WRONG.get(name, []))
    least, most, is_open = limits(kind)
    if kind.startswith(("integer", "number")):
        values += ["x", [], {}]
        values += [least if is_open else least - 1] if least is not None else []
        values += [most + 1] if most is not None else []
        values += [0.5] if kind.startswith("integer") else []
    elif kind == "boolean":
        values += ["yes", 1]
    elif kind.startswith("string") or kind.startswith("boolean or"):
        values += [5]
    else:
        values += ["x"] if not kind.startswith("`") else [5]
    return values


def ask(worker, call, name, value):
    path, inner = (call.split() + [None])[:2]
    body = {**PLAIN[path], **BESIDE.get(name, {})}
    if "." in name:
        outer, name = name.split(".")
        body |= BESIDE[outer] | {outer: {name: value}}
    elif inner:
        body[inner] = {"max_new_tokens": 3, name: value}
    else:
        body[name] = value
    return worker.post(path, body)


@pytest.fixture(scope="module")
def worker():
    worker = Worker("--backend", "sim", "--sim-speed", 1000, "--cache-explain", "position", "--max-model-len", 512, "--scheduling-policy",
                    "priority", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3").ready()
    yield worker
    assert worker.stop() == 0


@pytest.mark.parametrize("call, name, kind", EVERY)
def test_a_field_is_handled_as_the_page_states(worker, call, name, kind):
    for value in [*good_values(call, name, kind), *([] if name in ("prompt", "messages", "text", "input_ids", "tokens")
                                                      else [None])]:
        answer = ask(worker, call, name, value)
        assert answer.code == 200, (value, answer.body)


@pytest.mark.parametrize("call, name, kind", [e for e in EVERY if e[1] not in NOT_WRONG])
def test_a_wrong_value_is_refused_by_name(worker, call, name, kind):
    for value in wrong_values(name, kind):
        answer = ask(worker, call, name, value)
        assert answer.code == 400, (value, answer.body[:300])
        assert answer.json["error"]["param"] == name, (value, answer.body)


@pytest.mark.parametrize("name", names("Refused", "field"))
def test_fields_refused_by_the_page_are_refused(worker, name):
    calls = ["/v1/chat/completions"]
    calls += [] if name == "chat_template" else ["/v1/completions", "/generate"]
    calls += [] if name in ("chat_template", "lora_path", "lora_name") else ["/generate sampling_params"]
    for call in calls:
        for value in ("x", {"a": 1}, ["x"], 1, True):
            answer = ask(worker, call, name, value)
            assert answer.code == 400 and answer.json["error"]["param"] == name, (call, answer.body)
        assert ask(worker, call, name, None).code == 200


def test_fields_that_the_page_lists_as_ignored_are_ignored():
    text = section("Refused").split("Ignored: ")[1]
    assert set(re.findall(r"`(\w+)`", text)) & {name for _, name, _ in EVERY} == set()


@pytest.mark.parametrize("name", re.findall(r"`(\w+)`", section("Refused").split("Ignored: ")[1]))
def test_an_ignored_field_may_be_anything(worker, name):
    for value in ("x", {"a": 1}, [1], 1, True):
        assert worker.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, name: value}).code == 200


def sources():
    return {p.name: p.read_text() for p in (ROOT / "worker/api").rglob("*.c")
            if p.parent.name != "wires" and p.name not in ("messages.c", "responses.c")}


def test_every_field_that_the_program_reads_is_on_the_page():
    read = {name for text in sources().values() for name in
            re.findall(r'(?:json_get(?:_\w+)?|get_(?:float|salt|seed))\(\s*\w+(?:, \w+)?,\s*"(\w+)"', text)}
    refused = re.search(r"fields\[\] = \{(.*?)\};", sources()["params.c"], re.S)[1]
    read |= set(re.findall(r'"(\w+)"', refused))
    on_page = {name.split(".")[-1] for _, name, _ in EVERY} | set(names("Refused", "field"))
    elsewhere = {"rid", "abort_all",  # of /abort_request, in the table of small endpoints
                 "id",  # of /cache/release
                 "message",  # of prefix_pos
                 "type", "role", "content", "text", "function", "name", "parameters", "tool_calls", "allowed_tools", "mode",  # inside of others
                 "custom", "format", "grammar", "input",
                 "system", "cache_control",  # of Messages
                 "web_search_options",  # refused by chat alone
                 "schema", "strict", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
    assert len(read) > 60 and read - on_page - elsewhere == set()
    assert "abort_all" in section("The others")


@pytest.mark.parametrize("page, files", [
    ("messages", ["wires/messages_request.c", "shapes/messages.c", "fields/cache_control.c"]),
    ("responses", ["wires/responses_request.c", "wires/responses_tools.c", "wires/responses_items.c", "shapes/responses.c",
                   "fields/cache_control.c"])])
def test_fields_of_the_other_apis_are_those_of_their_page(page, files):
    text = "\n".join((ROOT / "worker/api" / f).read_text() for f in [*files, "wires/members.c"])
    read = set(re.findall(r'(?:json_get(?:_\w+)?|member_text)\(\s*(?:body|root|c->asked|asked|item->of->asked)\s*,\s*"(\w+)"', text))
    read |= set(re.findall(r'"(\w+)"', "".join(re.findall(r"(?:names|refused)\[\] = \{(.*?)\}", text, re.S))))
    shown = section(f"POST /v1/{page}")
    in_table = {n for row in table(shown, "field") for n in re.findall(r"`(\w+)`", row[0])}
    assert len(read) > 15 and {n for n in read if f"`{n}`" not in shown} == set()
    assert {n for n in in_table if f'"{n}"' not in text} == set()


def test_every_path_is_on_the_page_and_none_is_invented():
    routes = re.search(r"routes\[\] = \{(.*?)\n\};", sources()["server.c"], re.S)[1]
    for macro, path in re.findall(r'#define (API_\w+_PATH)\s+("[^"]+")', (ROOT / "common/protocol/api.h").read_text()):
        routes = routes.replace(macro, path).replace('" "', "")
    known = {f"{method} {path}" for method, path in re.findall(r'\{HTTP_(\w+), "([^"]+)"', routes)}
    known |= {"GET /server_info"} if "WIRE_INFO_PATH" in routes else set()
    known |= {"GET /request_events"} if "REQUEST_EVENTS_PATH" in routes else set()
    known |= {"GET /kv/blocks"} if "PEER_PATH" in routes else set()
    titles = set(re.findall(r"(?m)^## ((?:GET|POST|DELETE) \S+)$", PAGE))
    rows = set(names("The others", "path"))
    assert titles | rows == known and not titles & rows


def test_the_small_endpoints_answer(worker):
    for row in names("The others", "path"):
        method, path = row.split()
        if path.startswith("/kv_events"):
            assert worker.get(path).code == 404 and "--kv-events" in worker.get(path).body
        elif path == "/kv/blocks":
            assert worker.get(path).code == 404 and "--kv-peers" in worker.get(path).body
        elif method == "GET":
            assert worker.get(path.replace("*", "synthetic")).code == 200, path
        else:
            assert worker.post(path, {"abort_all": True}).code == 200, path


def test_errors_have_the_types_of_the_table():
    text = (ROOT / "common/base/status.c").read_text()
    types = {(int(code), kind) for code, kind in re.findall(r'", (\d{3}), "(\w+)"', text)}
    for code, kind, *_ in table(section("Errors"), "code"):
        # 408 is the HTTP server's own, which has no status of its own.
        assert (int(code), kind.strip("`")) in types | {(408, "BadRequestError")}


def test_causes_of_misses_are_those_of_the_program():
    causes = re.search(r"names\[\w*\] = \{(.*?)\};", (ROOT / "worker/kv/kv_explain.c").read_text(), re.S)[1]
    assert names("POST /cache/explain", "cause") == re.findall(r'"(\w+)"', causes)


def keys(value, path=""):
    if isinstance(value, dict):
        return {k for name, inner in value.items() for k in {f"{path}.{name}"} | keys(inner, f"{path}.{name}")}
    if isinstance(value, list):
        return {k for inner in value for k in keys(inner, path + "[]")}
    return set()


@pytest.mark.parametrize("call", ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"])
def test_the_answers_on_the_page_have_the_shape_of_answers(worker, call):
    block = re.findall(r"(?s)```json\n(.*?)```", section(f"POST {call}"))[0]
    shown = json.loads(block.replace("{...}", "{}"))
    answer = worker.post(call, PLAIN[call]).json
    assert keys(shown) <= keys(answer), keys(shown) - keys(answer)
    assert keys(answer) - keys(shown) <= {k for k in keys(answer) if k.startswith(".usage.")}
