"""Constrained answers through HTTP: the fields of OpenAI, vLLM and SGLang, on the demonstration model (ref and cpu)
and on the simulated backend, whose words mean nothing but obey a mask."""
import concurrent.futures
import json
import re
import socket

import pytest

from conftest import DEMO_MODEL, SANITIZER, Worker, events, started_programs, wait_for

PERSON = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                         "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
                         "note": {"type": "string", "maxLength": 4}}}
BACKENDS = ["sim", "cpu"]
PROMPT = "Here is a table.\nJane Smith, 12 Elm Street\nQuestion: "


def arguments(backend):
    if backend == "sim":
        return ["--backend", "sim", "--sim-speed", "50"]
    return [DEMO_MODEL, "--backend", backend, "--kv-cache-memory-bytes", "64MiB"]


@pytest.fixture(scope="module", params=BACKENDS)
def worker(request):
    if request.param != "sim" and not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("deploy/demo/model has no weights")
    with started_programs() as start:
        yield start(Worker, *arguments(request.param)).ready()


@pytest.fixture(scope="module")
def sim():
    with started_programs() as start:
        yield start(Worker, *arguments("sim")).ready()


def ask(worker, **fields):
    return worker.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1500, "temperature": 0, **fields})


def choice(worker, **fields):
    answer = ask(worker, **fields)
    assert answer.code == 200, answer.body
    return answer.json["choices"][0]


def is_person(text):
    value = json.loads(text)
    return (list(value) in (["name", "age", "tags"], ["name", "age", "tags", "note"]) and len(value["name"]) <= 8
            and 0 <= value["age"] <= 120 and len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b", None})


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
AS_PERSON = [
    {"response_format": JSON_SCHEMA},
    {"structured_outputs": {"json": PERSON}},
    {"structured_outputs": {"json": json.dumps(PERSON), "disable_any_whitespace": True}},
    {"structured_outputs": {"json": PERSON, "whitespace_pattern": " ?"}},
    {"guided_json": PERSON, "guided_whitespace_pattern": ""},
    {"json_schema": json.dumps(PERSON)},
]


def test_an_answer_that_fails_behind_its_first_token_has_a_status(worker):
    """A broken connection would be the worker's failure, which routers retry elsewhere and count."""
    got = ask(worker, guided_regex="qzjxk7", bad_words=["7"])
    assert got.code == 400 and "bad_words leaves no token" in got.json["error"]["message"], got.body
    assert "output token 0" not in got.json["error"]["message"], "the first token is to be another"


@pytest.mark.parametrize("how", range(len(AS_PERSON)))
def test_an_answer_obeys_its_schema_under_every_field(worker, how):
    for more in ({}, {"temperature": 1.5, "seed": 3}, {"temperature": 1, "seed": 5, "ignore_eos": True}):
        got = choice(worker, **AS_PERSON[how], **more)
        assert got["finish_reason"] == "stop" and is_person(got["text"]), got
        if "guided_whitespace_pattern" in AS_PERSON[how]:
            assert got["text"] == json.dumps(json.loads(got["text"]), ensure_ascii=False, separators=(",", ":"))
        if "structured_outputs" in AS_PERSON[how] and AS_PERSON[how]["structured_outputs"].get("disable_any_whitespace"):
            assert got["text"] == json.dumps(json.loads(got["text"]), ensure_ascii=False)


TEXTS = [
    ({"guided_choice": ["yes", "no", "yes sir"]}, r"yes|no|yes sir"),
    ({"structured_outputs": {"choice": ["\u20ac5", "\u20ac50"]}}, "\u20ac50?"),
    ({"regex": "[ab]{3}c{2,4}"}, r"[ab]{3}c{2,4}"),
    ({"guided_regex": "(\\d{3}-){2}\\d{4}"}, r"(\d{3}-){2}\d{4}"),
    ({"structured_outputs": {"regex": "\u00e9+"}, "max_tokens": 5}, "\u00e9+"),
    ({"ebnf": 'root ::= "x" | "(" root ")"', "temperature": 1, "seed": 1}, r"\(*x\)*"),
    ({"guided_grammar": "start: N (\"+\" N)~1..2\nN: /[0-9]{1,2}/"}, r"\d{1,2}(\+\d{1,2}){1,2}"),
    ({"structured_outputs": {"grammar": 'root ::= [a-f]{4} "!"'}}, r"[a-f]{4}!"),
]


@pytest.mark.parametrize("fields, pattern", TEXTS, ids=[list(f)[0] + str(i) for i, (f, _) in enumerate(TEXTS)])
def test_an_answer_is_the_text_that_is_asked_for(worker, fields, pattern):
    got = choice(worker, **{"max_tokens": 60, **fields})
    assert re.fullmatch(pattern, got["text"]) if got["finish_reason"] == "stop" else "max_tokens" in fields, got
    assert len(got["text"]) > 0


def test_a_chat_and_generate_take_the_fields_too(worker):
    chat = worker.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1500,
                                                "temperature": 0, "response_format": JSON_SCHEMA}).json["choices"][0]
    assert chat["finish_reason"] == "stop" and is_person(chat["message"]["content"])
    sampled = worker.post("/generate", {"text": "hi", "sampling_params": {
        "json_schema": json.dumps(PERSON), "max_new_tokens": 1500, "temperature": 0}}).json
    assert is_person(sampled["text"]) and sampled["meta_info"]["finish_reason"]["type"] == "stop"
    sampled = worker.post("/generate", {"text": "hi", "sampling_params": {"regex": "[0-9]{4}", "max_new_tokens": 40}}).json
    assert re.fullmatch(r"\d{4}", sampled["text"])


CALL = {"type": "tag", "begin": "<|im_start|>call ", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "!"}
FREE = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [CALL], "stop_after_first": True, "excludes": ["\n", "e", " "]}
TAG = {"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": "regex", "pattern": "[a-c]{2}"}, CALL]}}


@pytest.mark.parametrize("fields", [{"response_format": TAG}, {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
                                    {"structural_tag": TAG}], ids=["response_format", "structured_outputs", "structural_tag"])
def test_a_structural_tag_is_text_and_a_token_and_json(worker, fields):
    marker = worker.post("/tokenize", {"prompt": "<|im_start|>", "add_special_tokens": False}).json["tokens"]
    got = choice(worker, **fields, skip_special_tokens=False, return_token_ids=True)
    assert got["finish_reason"] == "stop", got
    text, call = got["text"].split("<|im_start|>call ")
    assert re.fullmatch("[a-c]{2}", text) and call.endswith("!") and is_person(call[:-1]), got
    assert len(marker) == 1 and got["token_ids"].count(marker[0]) == 1


def test_free_text_has_neither_what_it_excludes_nor_the_trigger_as_text(worker):
    got = choice(worker, structural_tag={"format": FREE}, temperature=1, seed=2, max_tokens=300, skip_special_tokens=False)
    text, *calls = got["text"].split("<|im_start|>")
    assert len(text) > 0 and not set("\ne ") & set(text) and len(calls) <= 1, got


def test_a_stream_joins_to_the_whole(worker):
    fields = {"prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "response_format": JSON_SCHEMA}
    whole = choice(worker, response_format=JSON_SCHEMA)["text"]
    seen = list(events(worker.url + "/v1/completions", {**fields, "stream": True}))
    assert "".join(e["choices"][0]["text"] for e in seen[:-1]) == whole
    assert seen[-2]["choices"][0]["finish_reason"] == "stop"


def test_json_object_is_an_object(worker):
    got = choice(worker, response_format={"type": "json_object"}, max_tokens=150)
    assert got["text"].startswith("{")
    if got["finish_reason"] == "stop":
        assert isinstance(json.loads(got["text"]), dict)


def test_samples_each_obey(worker):
    body = ask(worker, guided_json=PERSON, n=4, temperature=1.2, seed=9).json
    texts = [c["text"] for c in body["choices"]]
    assert len(texts) == 4 and all(is_person(t) for t in texts) and len(set(texts)) > 1


def test_max_tokens_cuts_and_a_stop_string_may_cut(worker):
    whole = choice(worker, guided_json=PERSON, return_token_ids=True)
    cut = choice(worker, guided_json=PERSON, max_tokens=3)
    assert cut["finish_reason"] == "length" and whole["text"].startswith(cut["text"]) and len(cut["text"]) > 0
    exact = choice(worker, guided_json=PERSON, max_tokens=len(whole["token_ids"]))
    assert exact["finish_reason"] == "stop" and exact["text"] == whole["text"]
    stopped = choice(worker, guided_json=PERSON, stop="age")
    assert stopped["finish_reason"] == "stop" and stopped["text"] == whole["text"].split("age")[0]


def test_the_end_is_allowed_only_where_it_may_come(worker):
    """[ab]* may end anywhere: EOS is sampled or held back; a{4} only after the fourth."""
    assert choice(worker, regex="a{4}", min_tokens=20)["text"] == "aaaa"
    assert choice(worker, regex="a{4}", ignore_eos=True)["text"] == "aaaa"
    endless = choice(worker, regex="[ab]*", ignore_eos=True, max_tokens=30)
    assert endless["finish_reason"] == "length" and re.fullmatch("[ab]+", endless["text"])
    late = choice(worker, regex="[ab]*", min_tokens=7, max_tokens=30, return_token_ids=True)
    assert len(late["token_ids"]) >= 7 and re.fullmatch("[ab]+", late["text"])


def test_other_rules_apply_within_the_grammar(sim):
    """A byte is a token of the simulated model: a is 97, b is 98."""
    assert choice(sim, regex="[ab]{3}", allowed_token_ids=[98])["text"] == "bbb"
    assert choice(sim, regex="[ab]{3}", bad_words=["a"])["text"] == "bbb"
    for fields in ({"allowed_token_ids": [99]}, {"bad_words": ["a", "b"]}):
        answer = ask(sim, regex="[ab]{3}", **fields)
        assert answer.code == 400 and answer.json["error"]["param"] == list(fields)[0], answer.body
        assert "leaves no token that the grammar allows" in answer.json["error"]["message"] or "leave" in answer.body
    stopped = choice(sim, regex="[ab]{3}c", stop_token_ids=[98], seed=1)
    assert stopped["finish_reason"] == "stop"


def test_logprobs_are_of_the_model_without_the_grammar(worker):
    got = choice(worker, regex="[a-c]{4}", logprobs=2)
    assert len(got["logprobs"]["token_logprobs"]) == len(got["logprobs"]["tokens"]) > 0
    assert all(p <= 0 for p in got["logprobs"]["token_logprobs"])
    assert "".join(got["logprobs"]["tokens"]) == got["text"]


REFUSED = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "needs a format"),
    ({"response_format": {"type": "xml"}}, "response_format", "unsupported"),
    ({"structural_tag": {"format": {"type": "sequence", "elements": [{"type": "dispatch"}]}}}, "structural_tag",
     'structural_tag: #/format/elements/0: unsupported type "dispatch"'),
    ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json",
     'guided_json: #/properties/a: the keyword "not" is not supported'),
    ({"guided_json": {"minimum": 5, "maximum": 4}}, "guided_json", "#: minimum > maximum"),
    ({"guided_json": "{"}, "guided_json", "the schema"),
    ({"guided_json": 5}, "guided_json", "must be a JSON Schema"),
    ({"regex": "a(b"}, "regex", "without its )"),
    ({"regex": "(?=a)b"}, "regex", "look-ahead"),
    ({"regex": "a\0"}, None, None),
    ({"ebnf": "root ::= x"}, "ebnf", "not defined"),
    ({"guided_choice": []}, "guided_choice", "one at least"),
    ({"guided_choice": ["a"], "regex": "b"}, "regex", "both constrain"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "both constrain"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "must be true"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "not empty"),
    ({"structured_outputs": {}}, "structured_outputs", "needs"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "needs a format"),
    ({"guided_json": {}, "use_beam_search": True}, "guided_json", "beam search"),
    ({"guided_json": {"enum": [f"v{i}" for i in range(10001)]}}, "guided_json", "more than 10000 values"),
    ({"guided_json": {"type": "string", "pattern": "^(.{1,99}){99}$"}}, "guided_json", "states"),
]


@pytest.mark.parametrize("fields, param, message", REFUSED)
def test_what_cannot_be_kept_is_refused_with_its_place(sim, fields, param, message):
    answer = ask(sim, **fields)
    assert answer.code == 400, answer.body
    if param:
        assert answer.json["error"]["param"] == param and message in answer.json["error"]["message"], answer.body


def test_a_schema_of_64_levels_is_compiled_and_one_of_65_is_not(sim):
    nested = lambda n: {"type": "object", "properties": {"a": nested(n - 1)}} if n else {}
    assert ask(sim, guided_json=nested(64), max_tokens=2).code == 200
    answer = ask(sim, guided_json=nested(65), max_tokens=2)
    assert answer.code == 400 and "at most 64 levels" in answer.json["error"]["message"]


def test_equal_grammars_are_compiled_once_and_counted(programs):
    worker = programs(Worker, *arguments("sim")).ready()
    count = lambda name, **labels: worker.metric(f"incipit_grammar_{name}", **labels)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: choice(worker, guided_json=PERSON)["text"], range(16)))
    assert len(set(texts)) == 1
    assert count("compilations_total", outcome="ok") == 1 and count("cache_hits_total") == 15
    assert count("cache_grammars") == 1 and count("cache_bytes") > 0 and count("compile_seconds_total") > 0
    assert count("masks_total", source="computed") == count("mask_seconds_count") > 0
    assert count("masks_total", source="cached") > 0
    ask(worker, regex="(")
    assert count("compilations_total", outcome="refused") == 1
    assert worker.stop() == 0


def test_a_client_that_leaves_while_its_grammar_compiles_leaves_nothing(programs):
    worker = programs(Worker, *arguments("sim")).ready()
    host, port = worker.url.removeprefix("http://").split(":")
    for i in range(20):
        schema = {"type": "object", "properties": {f"property_{i}_{k}": {"type": "integer"} for k in range(600)}}
        body = json.dumps({"prompt": "a", "max_tokens": 1500, "guided_json": schema}).encode()
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert choice(worker, guided_choice=["only"])["text"] == "only"
    wait_for(lambda: worker.metric("vllm:num_requests_running") + worker.metric("vllm:num_requests_waiting") == 0,
             "the abandoned requests to be gone")
    assert worker.stop() == 0


def answers(worker, jobs, n_threads):
    def one(job):
        got = choice(worker, return_token_ids=True, logprobs=1, **job)
        return got["token_ids"], got["logprobs"]["token_logprobs"], got["finish_reason"]

    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(one, jobs))


needs_model = pytest.mark.skipif(not (DEMO_MODEL / "model.safetensors").exists(), reason="deploy/demo/model has no weights")


@needs_model
def test_the_same_answer_cold_warm_batched_and_preempted(programs):
    prompt = PROMPT * 4
    jobs = [{"prompt": f"{prompt}{i}", "temperature": t, "seed": 4, "max_tokens": 60, **fields}
            for i in range(3) for t in (0, 1.2)
            for fields in ({"guided_json": PERSON}, {"regex": "([a-z]{2,9} ){2,20}\\."}, {"ignore_eos": True})]
    ample = programs(Worker, DEMO_MODEL, "--kv-cache-memory-bytes", "64MiB").ready()
    alone = answers(ample, jobs, 1)
    assert answers(ample, jobs, 1) == alone, "warm differs from cold"
    assert answers(ample, jobs, len(jobs)) == alone, "batched differs from alone"
    ample.stop()
    scarce = programs(Worker, DEMO_MODEL, "--max-model-len", 448, "--num-gpu-blocks-override", 30, "--no-enable-prefix-caching").ready()
    assert answers(scarce, jobs, len(jobs)) == alone, "preempted differs from alone"
    assert scarce.metric("vllm:num_preemptions_total") > 0, "nothing was preempted: the test proves nothing"


@needs_model
def test_a_chat_has_the_same_answer_cold_warm_batched_and_preempted(programs):
    """A schema and a forced call, told apart by their prompts: sixteen at once."""
    function = {"type": "function", "function": {"name": "lookup", "parameters": PERSON}}
    how = [{"response_format": JSON_SCHEMA}, {"tools": [function], "tool_choice": "required"}]
    jobs = [{"messages": [{"role": "user", "content": f"{PROMPT * 4}{i}"}], **how[i % 2]} for i in range(16)]

    def ask_all(worker, n_threads):
        def one(job):
            answer = worker.post("/v1/chat/completions", {"max_tokens": 100, "temperature": 0, **job})
            assert answer.code == 200, answer.body
            got = answer.json["choices"][0]
            calls = [(c["function"]["name"], c["function"]["arguments"]) for c in got["message"].get("tool_calls") or []]
            return got["message"]["content"], calls, got["finish_reason"]

        with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
            return list(pool.map(one, jobs))

    ample = programs(Worker, DEMO_MODEL, "--kv-cache-memory-bytes", "64MiB").ready()
    alone = ask_all(ample, 1)
    assert all(calls[0][0] == "lookup" if i % 2 else content.startswith("{") for i, (content, calls, _) in enumerate(alone))
    assert ask_all(ample, 1) == alone, "warm differs from cold"
    assert ask_all(ample, 16) == alone, "batched differs from alone"
    ample.stop()
    scarce = programs(Worker, DEMO_MODEL, "--max-model-len", 768, "--num-gpu-blocks-override", 80, "--no-enable-prefix-caching").ready()
    assert ask_all(scarce, 16) == alone, "preempted differs from alone"
    assert scarce.metric("vllm:num_preemptions_total") > 0, "nothing was preempted: the test proves nothing"


@needs_model
@pytest.mark.skipif(bool(SANITIZER), reason="the reference backend is too slow under a sanitizer")
def test_the_reference_backend_obeys_too(programs):
    worker = programs(Worker, DEMO_MODEL, "--backend", "ref", "--kv-cache-memory-bytes", "64MiB").ready()
    jobs = [{"prompt": "Q", **fields} for fields in ({"guided_choice": ["yes", "no"]}, {"regex": "[ab]{3}c"},
                                                     {"structured_outputs": {"json": {"enum": ["a", 1]}}})]
    alone = answers(worker, jobs, 1)
    assert answers(worker, jobs, 3) == alone
    assert choice(worker, prompt="Q", guided_choice=["yes", "no"])["text"] in ("yes", "no")


def test_what_is_not_sampled_changes_no_answer(worker):
    """With logprobs each token has a step of its own; without them those that a grammar forces have none."""
    forced = lambda: worker.metric("incipit_grammar_forced_tokens_total")
    jobs = [{"seed": 3, "max_tokens": n, "temperature": t, **fields}
            for n, t in ((1500, 0), (1500, 1.2), (17, 0))
            for fields in ({"guided_json": PERSON}, {"guided_json": PERSON, "stop": "age"}, {"guided_choice": ["a long choice, without another"]},
                           {"guided_json": PERSON, "repetition_penalty": 1.3, "stop_token_ids": [97], "min_tokens": 4})]
    for job in jobs:
        before = forced()
        sampled = ask(worker, **job, logprobs=0, return_token_ids=True)
        assert sampled.code == 200 and forced() == before
        whole = ask(worker, **job, return_token_ids=True)
        streamed = list(events(worker.url + "/v1/completions", {"prompt": PROMPT, **job, "stream": True,
                                                                "stream_options": {"include_usage": True}}))[:-1]
        assert forced() > before or job["max_tokens"] < 20, job
        one, other = sampled.json["choices"][0], whole.json["choices"][0]
        for key in ("text", "token_ids", "finish_reason", "stop_reason"):
            assert one.get(key) == other.get(key), (job, key)
        usage = sampled.json["usage"]["completion_tokens"]
        assert whole.json["usage"]["completion_tokens"] == usage
        assert "".join(e["choices"][0]["text"] for e in streamed[:-1]) == one["text"]
        assert streamed[-1]["usage"]["completion_tokens"] == usage


def test_a_grammar_that_never_bites_changes_nothing(worker):
    table = "Name, address\nJane Smith, 12 Elm Street\nQuestion: what is the address of Jane Smith? Your answer:"
    free = choice(worker, prompt=table, max_tokens=12, return_token_ids=True)
    kept = choice(worker, prompt=table, max_tokens=12, return_token_ids=True, regex="(.|\\n)*")
    assert kept["token_ids"] == free["token_ids"] and kept["finish_reason"] == free["finish_reason"]
