#!/usr/bin/env python3
"""make bench-fetch: workers that exchange KV beside workers that do not, behind one router, over HTTP.

  sim     four simulated workers (real scheduler, KV manager, host memory and transfers over loopback; a played device of 20,000
          prompt tokens a second, KV of 2 KiB a token): clients in a closed loop ask questions behind long beginnings, which are
          chosen by Zipf's law, and each of which was asked for once before. With every DRIFT-th question a new beginning becomes the
          most popular one, and the least popular one goes.
  cpu     the like before two CPU workers that compute the demonstration model, one thread each.
  join    three workers of `sim` are asked, and a fourth joins: seconds until its hit share is 90 % of the others'.
  restart a worker of `sim` with a file tier ends and comes back: seconds until its hit share is 90 % of its own before.

Each row of `sim` and `cpu` gets the same requests from the same number of clients: in a row without fetching the workers lack
--kv-peers and nothing else. A time to first token counts from when its client asked. The first fifth of a run is not counted, nor is what was asked before.
A hit share is of prompt tokens that a worker admitted within WINDOW_S: those it had or fetched.

    bench_fetch.py [--scene NAME] [--seconds S] [--clients N] [--prefixes N] [--zipf X] [--drift N]
"""
import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "scenes")]
import fleet as F  # noqa: E402
import play  # noqa: E402

MODEL = "incipit-demo"
WARM = 0.2
WINDOW_S = 2
LEAST_TOKENS = 100_000  # of a window: four prompts; below, a share is chance
BAR_THROUGHPUT, BAR_P99, BAR_JOIN_S, BAR_RESTART_S, BAR_SHARE = 1.25, 0.7, 30, 10, 0.9


class Scene:
    n_workers, prefix_bytes, question_bytes, n_output = 4, 24576, 512, 8
    clients, prefixes, zipf, seconds, drift = 48, 32, 1.5, 40, 60
    context, device_tokens, host_mib = 32768, 96_000, 1800

    def worker(self, folder):
        return [folder, "--backend", "sim", "--num-gpu-blocks-override", self.device_tokens // 16]


class CpuScene(Scene):
    n_workers, prefix_bytes, question_bytes, n_output = 2, 2048, 128, 8
    clients, prefixes, seconds = 8, 48, 40
    context, device_tokens, host_mib = 4096, 16_000, 64

    def worker(self, folder):
        return [folder, "--backend", "cpu", "--threads", 1, "--kv-cache-memory-bytes", f"{self.device_tokens * 2 // 1024}MiB"]


SCENES = {"sim": Scene, "cpu": CpuScene, "join": Scene, "restart": Scene}


# --- programs --------------------------------------------------------------------------------------------------------

def model_folder(fleet, context):
    """The demonstration model with another longest context, which simulated workers do not compute."""
    source, folder = F.ROOT / "deploy/demo/model", fleet.dir / f"model-{context}"
    folder.mkdir(exist_ok=True)
    for path in source.iterdir():
        with contextlib.suppress(FileExistsError):
            (folder / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
    return folder


class Worker:
    """One that can be ended and started again in its place."""

    def __init__(self, fleet, scene, does_fetch, *more):
        (self.port,) = F.free_ports(1)
        self.url, self.fleet = f"http://127.0.0.1:{self.port}", fleet
        self.args = [F.BUILD / "incipit-worker", *scene.worker(model_folder(fleet, scene.context)), "--served-model-name", MODEL,
                     "--max-model-len", scene.context, "--max-num-batched-tokens", 2048, "--kv-offload-bytes", f"{scene.host_mib}MiB",
                     *(["--kv-peers", "--kv-peer-plain"] if does_fetch else []), "--port", self.port, "--log-level", "warn", *more]

    def start(self):
        self.process = self.fleet.start(self.args)
        F.wait_for(lambda: self.process.is_serving(self.url + "/health"), f"the worker at {self.url}")
        return self

    def end(self):
        self.process.process.terminate()
        self.process.process.wait(60)

    def admitted(self):
        """Prompt tokens of admitted requests, and those of them that were cached or fetched."""
        code, text = F.get(self.url + "/metrics", timeout=5) or (0, "")
        return (F.metric(text, "vllm:prompt_tokens_total"), F.metric(text, "vllm:prompt_tokens_cached_total")) if code == 200 else (0, 0)


class Share:
    """Hit share of a worker over the last WINDOW_S."""

    def __init__(self, worker):
        self.worker, self.seen = worker, []

    def look(self):
        now = time.monotonic()
        self.seen.append((now, *self.worker.admitted()))
        while len(self.seen) > 2 and now - self.seen[1][0] >= WINDOW_S:
            self.seen.pop(0)
        n, cached = (self.seen[-1][i] - self.seen[0][i] for i in (1, 2))
        return cached / n if n >= LEAST_TOKENS else None


# --- requests --------------------------------------------------------------------------------------------------------

def requests(scene, is_first, seed=5):
    """A chain for each client: is_first: each beginning once, the rarest first; else more than it can ask in time."""
    chance, n_each = random.Random(seed), 40 * int(scene.seconds)
    weights = [1 / (i + 1) ** scene.zipf for i in range(scene.prefixes)]
    n_named = scene.prefix_bytes // play.BLOCK
    ranks = chance.choices(range(scene.prefixes), weights, k=scene.clients * n_each)
    n_new = [number // scene.drift if scene.drift else 0 for number in range(len(ranks))]
    chosen = range(scene.prefixes)[::-1] if is_first else [rank - new for rank, new in zip(ranks, n_new)]
    for number, prefix in enumerate(chosen):
        request = {"input_length": scene.prefix_bytes + scene.question_bytes, "output_length": scene.n_output, "tenant": 0, "gap_ms": 0,
                   "hash_ids": [prefix * n_named + i for i in range(n_named)]}
        if number < scene.clients:
            request["timestamp"] = 0
        if number + scene.clients < len(chosen):
            request["next"] = number + scene.clients
        yield request


def load(url, scene, is_first=False):
    return play.play(url, MODEL, list(requests(scene, is_first)), 1, 600 if is_first else scene.seconds)


def quantile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def summary(answers, seconds):
    good = [a for a in answers if not a.error and a.due_s >= WARM * seconds]
    ended = [a for a in answers if not a.error and WARM * seconds <= a.end_s <= seconds]
    ttft = [a.ttft_s for a in good]
    return {"throughput": len(ended) / (seconds * (1 - WARM)), "mean": sum(ttft) / max(len(ttft), 1), "p50": quantile(ttft, 0.5),
            "p99": quantile(ttft, 0.99), "failed": sum(bool(a.error) for a in answers)}


# --- scenes ----------------------------------------------------------------------------------------------------------

def start_router(fleet, workers):
    return F.start_router(fleet, [w.url for w in workers], args=["--log-level", "warn", "--queue-timeout", "1h"])


def measure(scene, does_fetch):
    with F.Fleet() as fleet:
        workers = [Worker(fleet, scene, does_fetch).start() for _ in range(scene.n_workers)]
        router = start_router(fleet, workers)
        load(router.url, scene, is_first=True)
        before = [w.admitted() for w in workers]
        result = summary(load(router.url, scene), scene.seconds)
        admitted = [[a - b for a, b in zip(w.admitted(), old)] for w, old in zip(workers, before)]
        metrics = F.get(router.admin_url + "/metrics")[1]
        return {**result, "cached": 100 * sum(c for _, c in admitted) / max(sum(n for n, _ in admitted), 1),
                "fetches": F.metric(metrics, "incipit_kv_fetches_total"), "missed": F.metric(metrics, "incipit_kv_fetches_missed_total")}


COLUMNS = [("throughput", "answers/s"), ("mean", "TTFT mean, s"), ("p50", "p50, s"), ("p99", "p99, s"), ("cached", "cached, %"),
           ("fetches", "fetches"), ("missed", "missed"), ("failed", "failed")]


def judge(what, value, bar, is_below):
    print(f"  {'ok ' if (value <= bar if is_below else value >= bar) else 'NOT'} {what}: {value:.2f} (bar: {'at most' if is_below else 'at least'} {bar})", flush=True)


def compare(name, scene):
    rows = {label: measure(scene, does_fetch) for label, does_fetch in (("fetching", True), ("affinity alone", False))}
    print(f"\n{name}: {scene.n_workers} workers, {scene.clients} clients, {scene.prefixes} beginnings of {scene.prefix_bytes} bytes, Zipf {scene.zipf:g}, drift {scene.drift}, "
          f"{scene.seconds:g} s\n  {'':<15}" + "".join(f"{label:>14}" for _, label in COLUMNS))
    for label, row in rows.items():
        print(f"  {label:<15}" + "".join(f"{row[c]:>14.3f}" for c, _ in COLUMNS), flush=True)
    fetching, alone = rows.values()
    judge("throughput by that of affinity alone", fetching["throughput"] / alone["throughput"], BAR_THROUGHPUT, False)
    judge("p99 time to first token by that of affinity alone", fetching["p99"] / alone["p99"], BAR_P99, True)


def follow(shares, is_over, patience_s):
    """Looks at the shares until is_over(their values); seconds, or inf."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        time.sleep(0.25)
        if is_over([s.look() for s in shares]):
            return time.monotonic() - began
    return float("inf")


def mean(values):
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def is_as_good(mine, others):
    return mine is not None and others is not None and mine >= BAR_SHARE * others


def settle(shares, seconds):
    """Their mean share at the end of so many seconds."""
    seen = []
    follow(shares, lambda values: seen.append(mean(values)), seconds)
    return mean(seen[-int(WINDOW_S / 0.25):])


def join(scene):
    for does_fetch in (True, False):
        with F.Fleet() as fleet, concurrent.futures.ProcessPoolExecutor(1) as pool:
            workers = [Worker(fleet, scene, does_fetch).start() for _ in range(scene.n_workers)]
            router = start_router(fleet, workers[:-1])
            asked = pool.submit(load, router.url, scene)
            others, new = [Share(w) for w in workers[:-1]], Share(workers[-1])
            settle(others, scene.seconds / 3)
            F.post(router.admin_url + "/workers", {"url": workers[-1].url})
            seconds = follow([new, *others], lambda v: is_as_good(v[0], mean(v[1:])), scene.seconds / 2)
            n_tokens, n_cached = workers[-1].admitted()
            report = summary(asked.result(), scene.seconds)
            label = "fetching" if does_fetch else "affinity alone"
            print(f"  join, {label}: {n_tokens:.0f} prompt tokens were admitted by then, {100 * n_cached / max(n_tokens, 1):.0f} % cached; failed {report['failed']}")
            judge(f"join, {label}: seconds until a new worker has 90 % of the others' hit share", seconds, BAR_JOIN_S, True)


def restart(scene):
    with F.Fleet() as fleet, concurrent.futures.ProcessPoolExecutor(1) as pool:
        workers = [Worker(fleet, scene, True, "--kv-file", fleet.dir / f"kv-{i}", "--kv-file-bytes", "2GiB").start() for i in range(scene.n_workers)]
        router = start_router(fleet, workers)
        asked = pool.submit(load, router.url, scene)
        share = Share(workers[0])
        before = settle([share], scene.seconds / 2)
        workers[0].end()
        workers[0].start()
        share = Share(workers[0])
        seconds = follow([share], lambda v: is_as_good(v[0], before), scene.seconds / 3)
        report = summary(asked.result(), scene.seconds)
        print(f"  restart: hit share before {before:.3f}; failed {report['failed']}")
        judge("restart: seconds until a worker with a file tier has 90 % of its former hit share", seconds, BAR_RESTART_S, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=list(SCENES), help="one alone; default: each in turn")
    for name, kind in ("seconds", float), ("clients", int), ("prefixes", int), ("zipf", float), ("drift", int):
        parser.add_argument(f"--{name}", type=kind, help="default: the scene's")
    o = parser.parse_args()
    for name, kind in SCENES.items():
        if o.scene not in (None, name):
            continue
        scene = kind()
        for field in ("seconds", "clients", "prefixes", "zipf", "drift"):
            if getattr(o, field) is not None:
                setattr(scene, field, getattr(o, field))
        {"join": join, "restart": restart}.get(name, lambda s, name=name: compare(name, s))(scene)
    return 0


if __name__ == "__main__":
    sys.exit(main())
