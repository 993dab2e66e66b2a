"""Clients that leave, at any moment and from any kind of call, leave nothing behind: all blocks are free."""
import asyncio
import concurrent.futures
import json
import random

import pytest

from conftest import PATIENCE_S, SANITIZER, Worker, wait_for

OPENINGS = ["A long opening that many of these requests share. " * n for n in (1, 4, 12)]

# What a call may be beside plain; a few that make it hold more than one sequence, or read differently.
KINDS = [
    ("/v1/completions", {}),
    ("/v1/completions", {"stream": True}),
    ("/v1/completions", {"n": 4}),
    ("/v1/completions", {"n": 3, "stream": True, "logprobs": 2}),
    ("/v1/completions", {"n": 2, "best_of": 5}),
    ("/v1/completions", {"use_beam_search": True, "best_of": 4, "max_tokens": 300}),
    ("/v1/completions", {"prompt_logprobs": 1, "echo": True}),
    ("/v1/completions", {"prompts": 3, "stream": True}),
    ("/v1/chat/completions", {"stream": True}),
    ("/v1/chat/completions", {"n": 2}),
    ("/generate", {"stream": True}),
]

N_STAY = 24  # clients that wait for their answer among those that leave: four times the blocks of the scarce memories

# Where the blocks may be when a client leaves: plenty, taken from one another, in host memory.
MEMORIES = {
    "plenty": [],
    "scarce": ["--num-gpu-blocks-override", 160, "--max-num-seqs", 32],
    "swapped": ["--num-gpu-blocks-override", 160, "--max-num-seqs", 32, "--preemption-mode", "swap",
                "--swap-space", "64MiB"],
    "offloaded": ["--num-gpu-blocks-override", 160, "--kv-offload-bytes", "64MiB", "--block-dedup"],
}


def a_call(rng, i):
    """(path, body) of a call that would not end for a long time."""
    path, more = rng.choice(KINDS)
    more = dict(more)
    text = rng.choice(OPENINGS) + f"Request {i if rng.random() < 0.5 else 0}."
    n_prompts = more.pop("prompts", 1)
    body = {"max_tokens": 1500, "ignore_eos": True, "seed": i, **more}
    if path == "/generate":
        sampling = {"max_new_tokens": 1500, "ignore_eos": True}
        return path, {"text": text, "sampling_params": sampling, **more}
    if path == "/v1/chat/completions":
        return path, {"messages": [{"role": "user", "content": text}], **body}
    return path, {"prompt": text if n_prompts == 1 else [text + str(k) for k in range(n_prompts)], **body}


async def connect(worker, path, body):
    host, port = worker.url[len("http://"):].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" %
                 (path.encode(), len(data)) + data)
    return reader, writer


async def ask_and_leave(worker, rng, i, codes):
    path, body = a_call(rng, i)
    reader, writer = await connect(worker, path, body)
    moment = rng.random()
    if moment < 0.1:
        pass  # before the request has left this process, perhaps
    elif moment < 0.6:
        await writer.drain()
        await asyncio.sleep(rng.random() * 0.05)
    else:  # in the middle of the answer
        head = await asyncio.wait_for(reader.read(rng.randrange(12, 4000)), PATIENCE_S)
        codes.append(head[9:12])
    if rng.random() < 0.5:
        writer.transport.abort()  # a reset, where the others close
    writer.close()


async def crowd(n, at_once, one):
    gate = asyncio.Semaphore(at_once)

    async def guarded(i):
        async with gate:
            return await one(i)

    return await asyncio.gather(*(guarded(i) for i in range(n)))


def assert_nothing_is_held(worker):
    wait_for(lambda: worker.metric("vllm:num_requests_running") + worker.metric("vllm:num_requests_waiting") == 0,
             "the engine to be idle")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0
    assert worker.metric("incipit_kv_waste_ratio") == 0
    assert worker.metric("vllm:num_requests_swapped") == 0
    page = worker.metrics()
    for line in page.splitlines():
        assert not line.startswith("incipit_kv_host_blocks{") or 'state="held"' not in line or line.endswith(" 0"), line
    # Nor is there a reference left that a reset would stumble over.
    assert worker.post("/reset_prefix_cache", {}).code == 200
    assert worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).code == 200


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_thousand_clients_that_leave_hold_no_block(programs, memory):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 100, "--max-model-len", 2400,
                      *MEMORIES[memory]).ready()
    rng, answers = random.Random(7), []
    n = 250 if SANITIZER else 1000

    def ask(k):
        more = {"max_tokens": 400, "seed": k, "ignore_eos": True}
        return worker.post("/v1/completions", {"prompt": OPENINGS[k % 3] + str(k), **more}).json["choices"][0]["text"]

    async def leave_and_stay():
        with concurrent.futures.ThreadPoolExecutor(N_STAY) as pool:
            stay = [asyncio.get_running_loop().run_in_executor(pool, ask, k) for k in range(N_STAY)]
            await crowd(n, 40, lambda i: ask_and_leave(worker, rng, i, answers))
            return await asyncio.gather(*stay)

    stayed = asyncio.run(leave_and_stay())
    assert stayed[::6] == [ask(k) for k in range(0, N_STAY, 6)], "who stays has the answer of who is alone"
    assert set(answers) == {b"200"}, "none of these calls is wrong"
    assert_nothing_is_held(worker)
    assert worker.metric("vllm:request_success_total", finished_reason="abort") > n, "most had begun, some with several"
    assert worker.metric("vllm:request_success_total", finished_reason="error") == 0
    if memory == "scarce":
        assert worker.metric("vllm:num_preemptions_total") > 0
    if memory == "swapped":
        assert worker.metric("incipit_swap_outs_total") > 0
    if memory == "offloaded":
        assert worker.metric("incipit_kv_moved_blocks_total", direction="out") > 0
    assert worker.stop() == 0


async def ask_to_the_end(worker, path, body):
    reader, writer = await connect(worker, path, body)
    answer = await reader.read()
    writer.close()
    return answer


def test_calls_that_end_by_themselves_hold_no_block(programs):
    """200 calls that a stop string, a stop token or their length ends, streamed or not, some of several samples."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 200, "--num-gpu-blocks-override", 400,
                      "--max-model-len", 2400).ready()

    def body(i):
        ends = [{"max_tokens": 1 + i % 60}, {"max_tokens": 400, "stop": ["e", "a"]},
                {"max_tokens": 400, "stop_token_ids": [97, 101, 105]},
                {"max_tokens": 400, "stop": "i", "min_tokens": 9}]
        shapes = [{}, {"stream": True}, {"n": 3}, {"n": 2, "stream": True}, {"best_of": 3}]
        return {"prompt": OPENINGS[i % 3] + str(i), "seed": i, "ignore_eos": True, **ends[i % 4], **shapes[i % 5]}

    answers = asyncio.run(crowd(200, 40, lambda i: ask_to_the_end(worker, "/v1/completions", body(i))))
    for i, answer in enumerate(answers):
        assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
        assert not body(i).get("stream") or answer.rstrip(b"\r\n0").endswith(b"data: [DONE]"), answer[-200:]
    assert_nothing_is_held(worker)
    reasons = {r: worker.metric("vllm:request_success_total", finished_reason=r)
               for r in ("stop", "length", "abort", "error")}
    n_samples = sum(body(i).get("best_of", body(i).get("n", 1)) for i in range(200)) + 1  # and one to see that it lives
    assert reasons["abort"] == reasons["error"] == 0 and sum(reasons.values()) == n_samples
    assert reasons["stop"] > 100 and reasons["length"] > 50
    assert worker.stop() == 0
