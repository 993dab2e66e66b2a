"""Same answer, always: on the CPU backend tokens and logprobs of a request are bit-identical cold or warm, alone or
batched, whatever the step's token budget and the number of threads, and after a preemption. On each instruction path.

Logprobs are compared as the worker prints them: the shortest decimal that reads back to the same float."""
import concurrent.futures
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, ROOT, SANITIZER, Worker

pytestmark = pytest.mark.skipif(not (DEMO_MODEL / "model.safetensors").exists(),
                                reason="deploy/demo/model has no weights")

TABLE = (ROOT / "deploy/demo/classic_table.txt").read_text()
LONG = "Here is a table.\n" + TABLE + "Question: what is the address of Zack Blue? Your answer: The address of Zack Blue is"
SHORT = "".join(TABLE.splitlines(True)[:5]) + "Question: what is the email of Jane Smith? Your answer: The email of Jane Smith is"
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.3, "top_p": 0.95, "top_k": 50, "seed": 11}


def paths():
    """The instruction paths of this machine, as its worker names them."""
    refusal = subprocess.run([str(BUILD / "incipit-worker"), str(DEMO_MODEL), "--port", "0", "--path", "none-such"],
                             capture_output=True, text=True, timeout=60, check=False).stderr
    return [p for p in ("avx512bf16", "avx512", "avx2", "neon", "plain") if p in refusal.replace("none-such", "")]


def skip_unless_useful(path):
    if path not in paths():
        pytest.skip(f"this machine has no {path}")
    if SANITIZER and path != "avx2":
        pytest.skip("a sanitizer looks at one path: the others differ in arithmetic alone")


def ask(worker, prompt, how, n=24, **more):
    body = worker.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "logprobs": 4, "ignore_eos": True,
                                           "return_token_ids": True, **how, **more}).json
    choice = body["choices"][0]
    return (choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]), body["usage"]


def start(programs, path, *args, **options):
    flags = [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), v)]
    return programs(Worker, DEMO_MODEL, "--path", path, "--kv-cache-memory-bytes", "64MiB", *flags, *args).ready()


@pytest.mark.parametrize("path", ["avx512bf16", "avx512", "avx2", "neon", "plain"])
def test_an_answer_is_the_same_under_any_load(programs, path):
    skip_unless_useful(path)
    long_ = LONG if path != "plain" and not SANITIZER else SHORT * 2
    prompts = [(p, how) for p in (long_, SHORT) for how in (GREEDY, SEEDED)]
    worker = start(programs, path, threads=2)
    cold = []
    for i, (prompt, how) in enumerate(prompts):
        answer, usage = ask(worker, prompt, how, cache_salt=f"cold {i}")
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        cold.append(answer)
        again, usage = ask(worker, prompt, how, cache_salt=f"cold {i}")
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0 and again == answer, "warm differs from cold"
    assert cold[0] != cold[1], "the seeded answer is not sampled at all"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: ask(worker, *job[1], cache_salt=f"batch {job[0] % 3}")[0],
                                 enumerate(prompts * 2)))
    assert together == cold * 2, "batched with seven others differs from alone"
    assert worker.stop() == 0
    for budget, threads, block in ((16, 1, 16), (64, 2, 1), (512, 1, 128)):
        worker = start(programs, path, max_num_batched_tokens=budget, threads=threads, max_num_seqs=8, block_size=block)
        got = [ask(worker, prompt, how)[0] for prompt, how in prompts]
        assert got == cold, f"budget {budget}, {threads} threads, block size {block} differs"
        worker.stop()


@pytest.mark.parametrize("path", ["avx512bf16", "avx512", "avx2", "neon", "plain"])
def test_after_a_preemption(programs, path):
    skip_unless_useful(path)
    prompts = [f"{SHORT} {i}" for i in range(6)]
    jobs = [(p, how) for p in prompts for how in (GREEDY, SEEDED)]
    ample = start(programs, path)
    alone = [ask(ample, p, how, 80)[0] for p, how in jobs]
    ample.stop()
    scarce = programs(Worker, DEMO_MODEL, "--path", path, "--max-model-len", 640, "--num-gpu-blocks-override", 48,
                      "--no-enable-prefix-caching").ready()
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        got = list(pool.map(lambda job: ask(scarce, *job, 80)[0], jobs))
    assert scarce.metric("vllm:num_preemptions_total") > 0, "nothing was preempted: the test proves nothing"
    assert got == alone
