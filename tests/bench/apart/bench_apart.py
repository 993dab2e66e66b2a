#!/usr/bin/env python3
"""make bench-apart: workers of role prefill and decode beside workers of no role, over HTTP.

Two simulated workers each (incipit-worker --backend sim: real scheduler, real KV manager, real tiers and transfers, a played
device that computes 32,768 tokens in 2.5 s) behind a router of their own. Their model has the demonstration's shape, 2 KiB of KV a
token, with a longer context: two cores cannot move more beside everything else. `apart` has one worker of either role, `together` has two of role both; both exchange
blocks (--kv-peers). The rows of a load have the same requests at the same times, one row after the other: where blocks come late
because the machine is busy, a worker computes them, and the figures are the machine's. Run it on an idle one.

  mixed   streams in a closed loop, each of a short prompt and some 200 tokens, while prompts of 32,768 tokens come at a steady
          rate. Time between two tokens of the streams: apart at most half of together's, at the 99th percentile
  short   prompts of 200 to 1,500 tokens alone, in an open loop. Apart has nothing to gain: time to first token and of the whole
          answer are at most 3 % above together's

The beginning is not counted. Figures are medians over the seeds; a ratio is the median of the seeds' ratios.

    bench_apart.py [quick] [--load NAME] [--seeds N] [--seconds S]
"""
import argparse
import asyncio
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
import fleet as F  # noqa: E402

MODEL, CONTEXT = "m", 65536
WARM_S = {"mixed": 15, "short": 45}  # in which a router finds out that a worker of role prefill has little to do
SECONDS = {"mixed": 60, "short": 105}
LONG_TOKENS, LONG_EVERY_S = 32768, 5
LETTERS_A_TOKEN = 1.27  # of random letters and blanks
N_STREAMS, STREAM_TOKENS = 16, 200
SHORT_PER_S = 10
WORKER = ["--backend", "sim", "--max-num-seqs", 128, "--max-num-batched-tokens", 2048, "--num-gpu-blocks-override", 20000,
          "--kv-offload-bytes", "1GiB", "--kv-peers", "--kv-peer-plain", "--served-model-name", MODEL, "--log-level", "warn"]
ROWS = {"together": ("both", "both"), "apart": ("prefill", "decode")}


# --- requests --------------------------------------------------------------------------------------------------------

class Answer:
    """Times since the load began."""

    def __init__(self, kind, due_s):
        self.kind, self.due_s, self.at_s, self.error, self.cached = kind, due_s, [], None, 0


def text(chance, n_tokens):
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=round(n_tokens * LETTERS_A_TOKEN)))


class Load:
    def __init__(self, url, seed, seconds):
        self.host, self.port = url.removeprefix("http://").split(":")
        self.chance, self.seconds, self.answers, self.tasks = random.Random(seed), seconds, [], []

    def now_s(self):
        return time.monotonic() - self.begun

    async def ask(self, kind, prompt, n_output, due_s):
        answer = Answer(kind, due_s)
        self.answers.append(answer)
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": n_output, "stream": True, "ignore_eos": True,
                           "stream_options": {"include_usage": True}}).encode()
        try:
            reader, writer = await asyncio.open_connection(self.host, int(self.port), limit=1 << 20)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                         b"content-length: %d\r\n\r\n%s" % (len(body), body))
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split()[1] != b"200":
                raise OSError(head.split(b"\r\n")[0].decode())
            while (line := await reader.readline()):
                if line.startswith(b'data: {"') and b'"text":"' in line:
                    answer.at_s.append(self.now_s())
                elif line.startswith(b"data: {") and b'"cached_tokens":' in line:
                    answer.cached = int(line.split(b'"cached_tokens":')[1].split(b"}")[0].split(b",")[0])
                elif line.startswith(b"data: {\"error"):
                    raise OSError(line.decode())
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            answer.error = str(error) or repr(error)
        if not answer.error and not answer.at_s:
            answer.error = "no token"

    def start(self, *args):
        self.tasks.append(asyncio.create_task(self.ask(*args)))

    async def stream(self, number):
        chance = random.Random(self.chance.random() + number)
        await asyncio.sleep(chance.random() * 2)
        while self.now_s() < self.seconds:
            await self.ask("stream", text(chance, 200), STREAM_TOKENS - chance.randrange(40), self.now_s())

    async def mixed(self):
        streams = [asyncio.create_task(self.stream(i)) for i in range(N_STREAMS)]
        prompts = [text(self.chance, LONG_TOKENS) for _ in range(int(self.seconds / LONG_EVERY_S))]
        for i, prompt in enumerate(prompts):
            await asyncio.sleep(max((i + 0.5) * LONG_EVERY_S - self.now_s(), 0))
            self.start("long", prompt, 16, self.now_s())
        await asyncio.gather(*streams, *self.tasks)

    async def short(self):
        due_s = 0.0
        while due_s < self.seconds:
            due_s += self.chance.expovariate(SHORT_PER_S)
            prompt = text(self.chance, self.chance.randint(200, 1500))
            await asyncio.sleep(max(due_s - self.now_s(), 0))
            self.start("short", prompt, self.chance.randint(32, 96), due_s)
        await asyncio.gather(*self.tasks)

    async def play(self, name):
        self.begun = time.monotonic()
        await getattr(self, name)()
        return self.answers


# --- one run ---------------------------------------------------------------------------------------------------------

def make_model(folder):
    """The demonstration's, with a context that it was not trained for."""
    demo = F.ROOT / "deploy/demo/model"
    folder.mkdir()
    for file in demo.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((demo / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


def start_workers(fleet, model, roles):
    urls = []
    for role in roles:
        (port,) = F.free_ports(1)
        worker = fleet.start([F.BUILD / "incipit-worker", model, *WORKER, "--role", role, "--port", port])
        urls.append(f"http://127.0.0.1:{port}")
        F.wait_for(lambda: worker.is_serving(urls[-1] + "/health"), f"the worker at {urls[-1]}")
    return urls


def quantile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def summary(answers, page, warm_s, seconds):
    counted = [a for a in answers if a.due_s >= warm_s]
    good = [a for a in counted if not a.error]
    main = [a for a in good if a.kind != "long"]
    long = [a for a in good if a.kind == "long"]
    gaps = [b - a for answer in main for a, b in zip(answer.at_s, answer.at_s[1:])]
    return {"itl p50": 1e3 * quantile(gaps, 0.5), "itl p99": 1e3 * quantile(gaps, 0.99), "itl max": 1e3 * max(gaps, default=float("nan")),
            "ttft": 1e3 * mean([a.at_s[0] - a.due_s for a in main]), "ttft p99": 1e3 * quantile([a.at_s[0] - a.due_s for a in main], 0.99),
            "e2e": 1e3 * mean([a.at_s[-1] - a.due_s for a in main]), "long ttft": 1e3 * mean([a.at_s[0] - a.due_s for a in long]),
            "tokens/s": sum(len(a.at_s) for a in good) / (seconds - warm_s), "hits": sum(a.cached for a in counted),
            "legs": F.metric(page, "incipit_prefill_legs_total"), "fetched": F.metric(page, "incipit_kv_fetched_tokens_total"),
            "failed": sum(bool(a.error) for a in counted), "n": len(counted)}


def measure(load, seed, seconds):
    out = {}
    for name, roles in sorted(ROWS.items(), reverse=seed % 2):  # each is first in turn
        with F.Fleet() as fleet:
            urls = start_workers(fleet, make_model(fleet.dir / "model"), roles)
            proxy = F.start_router(fleet, urls, threads=1, args=["--log-level", "warn"])
            F.wait_until_serving(proxy, MODEL)
            answers = asyncio.run(Load(proxy.url, seed, seconds).play(load))
            for error in sorted({a.error for a in answers if a.error})[:2]:
                print(f"    {name}: {error}", file=sys.stderr)
            out[name] = summary(answers, F.get(proxy.admin_url + "/metrics")[1], WARM_S[load], seconds)
    return out


# --- the table -------------------------------------------------------------------------------------------------------

BARS = {"mixed": [("itl p99", 0.5)], "short": [("ttft", 1.03), ("e2e", 1.03)]}


def show(load, runs):
    columns = list(runs[0]["apart"])
    print(f"\n{load}: {len(runs)} seeds; times in ms\n  {'':<10}" + "".join(f"{c:>11}" for c in columns))
    for row in ROWS:
        print(f"  {row:<10}" + "".join(f"{F.median([run[row][c] for run in runs]):>11.1f}" for c in columns))
    for column, bar in BARS[load]:
        ratio = F.median([run["apart"][column] / run["together"][column] for run in runs])
        print(f"  {column}: apart {ratio:.3f} of together (bar {bar})  {'met' if ratio <= bar else 'MISSED'}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quick", nargs="?", choices=["quick"], help="one seed")
    parser.add_argument("--load", choices=list(BARS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of each load; more than its beginning")
    o = parser.parse_args()
    for load in [o.load] if o.load else BARS:
        show(load, [measure(load, seed, o.seconds or SECONDS[load]) for seed in range(1, (1 if o.quick else o.seeds) + 1)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
