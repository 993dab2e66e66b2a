"""What a request may ask of tokens and prompts: allowed and banned ones, logprobs of the prompt, truncation, a message to
go on with, an end from outside. On the demonstration model, where a token's number matters."""
import threading

from conftest import Worker, events, wait_for

TEXT = "Question: how old is"


def complete(api, **fields):
    answer = api.post("/v1/completions", {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                                          "return_token_ids": True, **fields})
    assert answer.code == 200, answer.body
    return answer.json["choices"][0]


def test_only_allowed_tokens_come(demo_api):
    allowed = [5, 70, 71]
    assert set(complete(demo_api, allowed_token_ids=allowed)["token_ids"]) <= set(allowed)
    hot = complete(demo_api, allowed_token_ids=allowed, temperature=5.0, seed=1, max_tokens=64)["token_ids"]
    assert set(hot) == set(allowed)
    raw, seen = complete(demo_api, logprobs=0), complete(demo_api, allowed_token_ids=allowed, logprobs=0)
    assert raw["token_ids"] != seen["token_ids"]  # and logprobs are of the model, not of the mask
    assert max(seen["logprobs"]["token_logprobs"][:1]) < raw["logprobs"]["token_logprobs"][0]


def test_a_bad_word_does_not_come_in_either_spelling(demo_api):
    text = complete(demo_api, max_tokens=24)["text"]
    word = max((w for w in text.split() if w.isalpha()), key=len)
    answer = complete(demo_api, max_tokens=24, bad_words=[word])
    assert word in text and word not in answer["text"].split()


def test_a_bad_word_of_several_tokens_bans_only_its_end(demo_api):
    free = complete(demo_api)["token_ids"]
    pair = demo_api.post("/detokenize", {"tokens": free[:2]}).json["prompt"]
    ids = demo_api.post("/tokenize", {"prompt": pair, "add_special_tokens": False}).json["tokens"]
    assert ids == free[:2] or pair.startswith(" ")
    banned = complete(demo_api, bad_words=[pair])["token_ids"]
    assert banned[0] == free[0] and banned[1] != free[1]


def test_logprobs_of_the_prompt_are_those_of_an_echo(demo_api):
    n_tokens = demo_api.post("/tokenize", {"prompt": TEXT}).json["count"]
    choice = complete(demo_api, prompt_logprobs=2)
    echo = complete(demo_api, echo=True, logprobs=2)["logprobs"]
    assert len(choice["prompt_logprobs"]) == n_tokens and choice["prompt_logprobs"][0] is None
    ids = demo_api.post("/tokenize", {"prompt": TEXT}).json["tokens"]
    for i, entry in enumerate(choice["prompt_logprobs"][1:], 1):
        own = entry[str(ids[i])]
        assert own["logprob"] == echo["token_logprobs"][i] and own["decoded_token"] == echo["tokens"][i]
        assert sorted(e["rank"] for e in entry.values())[:2] == [1, 2] and len(entry) == 2 + (own["rank"] > 2)
    chat = demo_api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
                                                  "prompt_logprobs": 0}).json
    assert chat["prompt_logprobs"][0] is None and all(len(e) == 1 for e in chat["prompt_logprobs"][1:])
    assert complete(demo_api)["prompt_logprobs"] is None


def test_samples_of_one_prompt_show_the_same_prompt_logprobs(demo_api):
    choices = demo_api.post("/v1/completions", {"prompt": TEXT, "max_tokens": 2, "n": 3, "seed": 4,
                                                "prompt_logprobs": 1}).json["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] == choices[2]["prompt_logprobs"]


def test_sglang_shows_logprobs_of_the_prompt_from_a_position(demo_api):
    meta = demo_api.post("/generate", {"text": TEXT, "return_logprob": True, "logprob_start_len": 0,
                                       "top_logprobs_num": 1, "sampling_params": {"max_new_tokens": 1}}).json["meta_info"]
    whole = meta["input_token_logprobs"]
    assert len(whole) == meta["prompt_tokens"] and whole[0][0] is None and all(p[0] <= 0 for p in whole[1:])
    assert len(meta["input_top_logprobs"]) == len(whole)
    meta = demo_api.post("/generate", {"text": TEXT, "return_logprob": True, "logprob_start_len": 3,
                                       "sampling_params": {"max_new_tokens": 1}}).json["meta_info"]
    assert meta["input_token_logprobs"] == whole[3:]
    plain = demo_api.post("/generate", {"text": TEXT, "return_logprob": True, "sampling_params": {"max_new_tokens": 1}})
    assert "input_token_logprobs" not in plain.json["meta_info"]


def test_tokens_may_be_named_by_their_ids(demo_api):
    choice = complete(demo_api, logprobs=1, return_tokens_as_token_ids=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]


def test_a_long_prompt_keeps_its_end_if_asked(demo_api):
    ids = demo_api.post("/tokenize", {"prompt": TEXT}).json["tokens"]
    whole = demo_api.post("/v1/completions", {"prompt": ids[-3:], "max_tokens": 4, "temperature": 0}).json
    cut = demo_api.post("/v1/completions", {"prompt": TEXT, "truncate_prompt_tokens": 3, "max_tokens": 4,
                                            "temperature": 0, "echo": True}).json
    assert cut["usage"]["prompt_tokens"] == 3
    assert cut["choices"][0]["text"].endswith(whole["choices"][0]["text"])
    assert not cut["choices"][0]["text"].startswith("Question")


def test_a_last_message_is_continued(demo_api):
    user = {"role": "user", "content": "Say it."}
    count = lambda **body: demo_api.post("/tokenize", body)
    rendered = lambda tokens: demo_api.post("/detokenize", {"tokens": tokens}).json["prompt"]
    going_on = count(messages=[user, {"role": "assistant", "content": "The age of"}], continue_final_message=True,
                     add_generation_prompt=False).json["tokens"]
    assert rendered(going_on).endswith("The age of")
    parts = [{"type": "text", "text": "The age of"}]
    assert count(messages=[user, {"role": "assistant", "content": parts}],
                 continue_final_message=True).json["tokens"] == going_on
    closed = count(messages=[user, {"role": "assistant", "content": "The age of"}], add_generation_prompt=False).json
    assert len(closed["tokens"]) > len(going_on)


def test_a_request_is_aborted_by_its_id(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.2).ready()
    answers = []
    ask = threading.Thread(target=lambda: answers.append(worker.post(
        "/generate", {"text": "x", "rid": "mine", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}})))
    ask.start()
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 1, "1 running requests")
    error = worker.post("/abort_request", {}).json["error"]
    assert error["param"] == "rid" and "abort_all" in error["message"]
    assert worker.post("/abort_request", {"rid": "other"}).json == {"aborted": 0}
    assert worker.post("/abort_request", {"rid": "mine"}).json == {"aborted": 1}
    ask.join()
    assert answers[0].code == 200 and answers[0].json["meta_info"]["finish_reason"] == {"type": "abort"}
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "0 running requests")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0


def test_aborting_all_ends_every_open_call(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.2).ready()
    reasons = []

    def stream(i):
        body = {"prompt": "x", "request_id": f"r{i}", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        seen = list(events(worker.url + "/v1/completions", body))
        reasons.append((seen[-2]["choices"][0]["finish_reason"], seen[-2]["id"]))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 3, "3 running requests")
    assert worker.post("/abort_request", {"abort_all": True}).json == {"aborted": 3}
    for t in threads:
        t.join()
    assert sorted(reasons) == [("abort", f"cmpl-r{i}") for i in range(3)]


def test_sglangs_small_endpoints_answer(demo_api):
    worker = demo_api.worker
    assert worker.get("/health_generate").code == 200
    info = worker.get("/get_model_info").json
    assert info["is_generation"] is True and info["model_path"]
    server = worker.get("/get_server_info").json
    assert server["page_size"] == 16 and server["max_total_num_tokens"] % 16 == 0 and server["context_length"] > 0
    assert worker.post("/flush_cache", {}).code == 200
