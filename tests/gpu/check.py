#!/usr/bin/env python3
"""make gpu-check: everything that is asked of the CUDA backend on a GPU, in less than eight minutes.

Needs nvcc, gcc and python3. Each phase is printed as it ends; one table comes last, and the same as JSON
(build/gpu/check.json). What cannot run is SKIPPED, with the reason; a phase that hangs is ended by its own limit.
Without a GPU everything is built and each program rehearses on the shim (the kernels as fibers, tiny shapes),
so that what is carried to a GPU machine is known to run. Exit code 1: something is wrong; a missed bar is not.

  check.py [--phases a,b] [--budget SECONDS] [--worker FILE] [--json FILE] [--soak SECONDS]
"""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/gpu"
PROGRAMS = BUILD / "gpu"
BIG, SMALL = "llama-3.1-8b", "qwen2.5-1.5b"


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


class Check:
    def __init__(self, options):
        self.options = options
        self.began = time.monotonic()
        self.rows = []  # what the programs measured
        self.phases = []  # [name, status, seconds, why]
        self.gpu = None  # the row of the device, once it is known
        self.why_no_gpu = "the phase 'device' did not run"
        self.env = dict(os.environ, INCIPIT_GPU_CHECK="1")

    def left(self):
        return self.options.budget - (time.monotonic() - self.began)

    def run(self, args, limit, env=None, reads_rows=True):
        """The program's output, line by line; its rows are kept. Ended, with all its children, at the limit."""
        limit = min(limit, max(self.left(), 5))
        try:
            process = subprocess.Popen([str(a) for a in args], cwd=ROOT, env=env or self.env, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except OSError as e:
            raise Failed(f"{pathlib.Path(str(args[0])).name} cannot be started: {e.strerror}") from None
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self.keep_rows(out, reads_rows)
            raise Failed(f"{pathlib.Path(str(args[0])).name}: ended after {limit:.0f} s") from None
        rows = self.keep_rows(out, reads_rows)
        if process.returncode != 0:
            lines = (err.strip() or out.strip() or "no word").splitlines()
            own = [line for line in lines if not line.startswith("make: *** [") and "not remade" not in line] or lines
            telling = [line for line in own if "rror" in line or "***" in line] or own[-1:]
            raise Failed(f"{pathlib.Path(str(args[0])).name}: {telling[0][:300]} (exit {process.returncode})")
        return rows if reads_rows else out

    def keep_rows(self, out, reads_rows):
        rows = []
        if reads_rows:
            for line in out.splitlines():
                if line.startswith("{"):
                    try:
                        rows.append(json.loads(line))
                    except ValueError:
                        pass
            self.rows += rows
        return rows

    def needs_gpu(self, rehearsed=""):
        if not self.gpu:
            raise Skipped("no GPU" + (f" ({rehearsed})" if rehearsed else ""))

    def phase(self, name, fn):
        if self.options.phases and name not in self.options.phases:
            return
        start = time.monotonic()
        status, why = "ok", ""
        if self.left() < 8 and name not in ("table",):
            status, why = "SKIPPED", "out of time"
        else:
            try:
                why = fn() or ""
            except Skipped as e:
                status, why = "SKIPPED", str(e)
            except Failed as e:
                status, why = "FAILED", str(e)
        seconds = time.monotonic() - start
        self.phases.append([name, status, round(seconds, 1), why])
        print(f"{status:8} {name:14} {seconds:6.1f} s  {why}", flush=True)

    def find(self, **want):
        """The last row that has these values, or None."""
        for row in reversed(self.rows):
            if all(row.get(k) == v for k, v in want.items()) and "skipped" not in row:
                return row
        return None


def compute_capability():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=20, check=True).stdout
        return out.split()[0].replace(".", "")
    except (OSError, subprocess.SubprocessError, IndexError):
        return "90"


def has_nvcc():
    return bool(os.environ.get("NVCC") or shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"))


# --- phases ------------------------------------------------------------------------------------------------------

def build(c):
    """Needs no library beside libc: those of the worker are not asked for."""
    programs = ["gpu_steps", "gpu_kernels", "gpu_products", "gpu_soak", "make_random_model"]
    targets = [PROGRAMS / (name + kind) for name in programs for kind in ("", "-shim")] + [BUILD / "incipit_cuda.so"]
    tests = [PROGRAMS / "tests" / t.stem for t in kernel_tests()]
    arch = compute_capability()
    make = ["make", "--no-print-directory", "-k", f"-j{os.cpu_count() or 2}", "B=build/gpu", "PACKAGES=",
            f"CUDA_ARCHS={arch}", f"CC={c.options.cc}"]
    if not has_nvcc():
        c.run(make + [t.relative_to(ROOT) for t in targets if t.name.endswith("-shim")], 500, reads_rows=False)
        raise Skipped("there is no nvcc: install CUDA 12.8 or newer (built for the shim alone)")
    c.run(make + [t.relative_to(ROOT) for t in targets], 500, reads_rows=False)
    try:
        c.run(make + [t.relative_to(ROOT) for t in tests], 300, reads_rows=False)
    except Failed as e:
        missing = [t.name for t in tests if not t.exists()]
        raise Failed(f"{', '.join(missing)} cannot be built for the device: {e}") from None
    return f"{len(targets)} programs and {len(tests)} tests for sm_{arch}"


def kernel_tests():
    """Not those of the shim itself, nor those that need the worker's libraries."""
    tests = sorted((ROOT / "tests/unit/cuda/shim").glob("test_*.c"))
    return [t for t in tests if t.stem not in {"test_shim", "test_gpu_shim"}
            and "engine_fixture.h" not in t.read_text()]


def device(c):
    if not has_nvcc():
        c.why_no_gpu = "without nvcc nothing was built for one"
        raise Skipped(c.why_no_gpu)
    try:
        rows = c.run([PROGRAMS / "gpu_kernels", "ceilings", "slice", 60], 60)
    except Failed as e:
        _, is_refusal, why = str(e).partition("opening the device: ")
        if not is_refusal:
            raise  # a crash is no lack of a GPU
        c.why_no_gpu = why.split(": ", 1)[-1].removesuffix(" (exit 1)")
        c.run([PROGRAMS / "gpu_kernels-shim", "ceilings", "tiny"], 60, reads_rows=False)
        raise Skipped(f"{c.why_no_gpu} (rehearsed on the shim)") from None
    c.gpu = next(r for r in rows if r["row"] == "device")
    try:
        c.gpu["smi"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu",
             "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        c.gpu["smi"] = "nvidia-smi reports nothing"
    return c.gpu["name"]


def correctness(c):
    """The tests of the shim, whose kernels now are the device's; launches wait, so that the host may look."""
    if not c.gpu:
        c.run([PROGRAMS / "gpu_products-shim", "tiny"], 30, reads_rows=False)
        c.needs_gpu("the products rehearsed on the shim")
    env = dict(c.env, CUDA_LAUNCH_BLOCKING="1")
    failed = []
    try:
        c.run([PROGRAMS / "gpu_products"], 60)
    except Failed as e:
        failed.append(str(e))
    for test in kernel_tests():
        try:
            c.run([PROGRAMS / "tests" / test.stem], 60, env, reads_rows=False)
        except Failed as e:
            failed.append(str(e))
        c.rows.append({"row": "correct", "name": test.stem, "holds": not failed or not failed[-1].startswith(test.stem)})
    if failed:
        raise Failed("; ".join(failed)[:300])
    return f"products, and {len(kernel_tests())} test programs, each kernel run several times to the same bits"


def soak(c):
    seconds = c.options.soak or 10
    if not c.gpu:
        c.run([PROGRAMS / "gpu_soak-shim", 1], 120, reads_rows=False)
        c.needs_gpu("rehearsed on the shim: 200 random steps agree with the CPU")
    rows = c.run([PROGRAMS / "gpu_soak", seconds], seconds + 60)
    return f"{rows[-1]['steps']} random steps, {rows[-1]['outputs']} outputs, worst logprob off by {rows[-1]['worst']}"


def sanitizer(c):
    c.needs_gpu()
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool:
        raise Skipped("compute-sanitizer is not installed")
    unable = []
    for kind in ("memcheck", "racecheck", "synccheck", "initcheck"):
        try:
            c.run([tool, "--tool", kind, "--error-exitcode", 9, PROGRAMS / "gpu_steps", "tiny"], 25, reads_rows=False)
        except Failed as e:
            if "(exit 9)" in str(e):  # it found something
                raise
            unable.append(f"{kind}: {e}")
    if unable:
        raise Skipped("; ".join(unable)[:300])
    return "memcheck, racecheck, synccheck and initcheck find nothing in a tiny model's steps"


def kernels(c):
    if not c.gpu:
        c.run([PROGRAMS / "gpu_kernels-shim", "kernels", "tiny", 60], 120, reads_rows=False)
        c.needs_gpu("rehearsed on the shim")
    c.run([PROGRAMS / "gpu_kernels", "kernels", BIG, 30], 60)
    c.run([PROGRAMS / "gpu_kernels", "kernels", SMALL, 15], 40)


def steps(c):
    if not c.gpu:
        c.run([PROGRAMS / "gpu_steps-shim", "tiny", 30], 120, reads_rows=False)
        c.needs_gpu("rehearsed on the shim")
    c.run([PROGRAMS / "gpu_steps", BIG, 45], 90)
    c.run([PROGRAMS / "gpu_steps", SMALL, 18], 45)


def peers(c):
    """PyTorch on the same card and day. Ours was measured in 'steps'; where there is time, again after it."""
    if importlib.util.find_spec("torch") is None:
        raise Skipped("python3 has no torch")
    on = "cuda" if c.gpu else "cpu"
    late = []
    for script, limit in (("peer_llama.py", 90), ("peer_attention.py", 40)):
        try:
            c.run([sys.executable, ROOT / "tests/gpu" / script, on], limit, reads_rows=bool(c.gpu))
        except Failed as e:  # a peer that is slow to compile is no fault of ours: its output counts
            late.append(str(e))
    if late:
        raise Skipped("; ".join(late))
    c.needs_gpu("rehearsed on the CPU")
    if c.left() > 90:
        c.run([PROGRAMS / "gpu_steps", BIG, 8], 40)


class Worker:
    def __init__(self, c, model, *args, backend):
        path = c.options.worker
        self.log = tempfile.NamedTemporaryFile("w+", prefix="incipit-worker-", suffix=".log")
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [str(path), "--model", str(model), "--backend", backend, "--port", "0", *args]
            + (["--backend-library", str(BUILD / "incipit_cuda.so")] if backend == "cuda" else []),
            stdout=self.log, stderr=self.log, start_new_session=True)

    def wait_ready(self, limit):
        while time.monotonic() - self.start < limit:
            for line in pathlib.Path(self.log.name).read_text().splitlines():
                if "worker_ready" in line:
                    fields = dict(f.split("=", 1) for f in line.split() if "=" in f)
                    self.url = f"http://127.0.0.1:{fields['port']}"
                    self.ready_s = time.monotonic() - self.start
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        lines = pathlib.Path(self.log.name).read_text().splitlines()
        raise Failed(f"the worker did not start: {lines[-1][:200] if lines else 'no output'}")

    def complete(self, **body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def ttft(self, prompt):
        """Seconds to the first event of a stream, connection included."""
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    took = time.perf_counter() - start
                    answer.read()
                    return took
        raise Failed("a stream without an event")

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def the_worker(c):
    if not pathlib.Path(c.options.worker).exists():
        raise Skipped(f"{c.options.worker} is not here: build it where its libraries are (make worker-portable) and "
                      "carry it along")


def server(c):
    """Over HTTP: ready, a cold prompt, a prompt whose beginning is cached."""
    the_worker(c)
    name, prefix, fresh, backend = (BIG, 8192, 128, "cuda") if c.gpu else ("small", 256, 16, "cpu")
    vocab = 128256 if c.gpu else 2048
    maker = PROGRAMS / ("make_random_model" if c.gpu else "make_random_model-shim")
    with tempfile.TemporaryDirectory(prefix="incipit-model-", dir=c.options.scratch) as folder:
        free = shutil.disk_usage(folder).free
        if c.gpu and free < 20e9:
            raise Skipped(f"{folder} has {free / 1e9:.0f} GB free, the model takes 16: --scratch")
        c.run([maker, name, folder], 120, reads_rows=False)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(ROOT / "deploy/demo/model" / file, folder)
        worker = Worker(c, folder, "--max-model-len", str(2 * (prefix + fresh)), backend=backend)
        try:
            worker.wait_ready(min(90, max(c.left(), 5)))
            prompts = [[(i * 7919 + j * 104729) % (vocab - 10) for j in range(prefix)] for i in range(4)]
            worker.ttft(prompts[0][: prefix // 2])  # warms up what is lazy
            cold = sorted(worker.ttft(p) for p in prompts[1:])
            hits = sorted(worker.ttft(prompts[1] + [(k * 31 + j) % (vocab - 10) for j in range(fresh)])
                          for k in range(9))
        finally:
            worker.close()
    row = {"row": "server", "model": name, "backend": backend, "ready_s": round(worker.ready_s, 2),
           "cold_ms": round(cold[1] * 1e3, 2), "hit_ms": round(hits[4] * 1e3, 2), "hit_max_ms": round(hits[-1] * 1e3, 2)}
    if c.gpu:
        c.rows.append(row)
        return f"ready {row['ready_s']} s, cold {row['cold_ms']} ms, hit {row['hit_ms']} ms"
    raise Skipped(f"no GPU (rehearsed on the CPU: cold {row['cold_ms']} ms, hit {row['hit_ms']} ms)")


DEMO_PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time", "Two plus two is", "The sun is"]


def demo(c):
    """The demonstration model on both backends: greedy tokens, and logprobs of what was chosen."""
    the_worker(c)
    answers = {}
    for backend in ("cpu", "cuda" if c.gpu else "cpu"):
        worker = Worker(c, ROOT / "deploy/demo/model", backend=backend)
        try:
            worker.wait_ready(40)
            answers[len(answers)] = [worker.complete(prompt=p, max_tokens=64, temperature=0, logprobs=2,
                                                     ignore_eos=True)["choices"][0] for p in DEMO_PROMPTS]
        finally:
            worker.close()
    n_same, worst = 0, 0.0
    for prompt, want, got in zip(DEMO_PROMPTS, answers[0], answers[1]):
        a, b = want["logprobs"], got["logprobs"]
        for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])):
            gap = [v for v in (a["top_logprobs"] or [])[i].values()] if a.get("top_logprobs") else [0, -9]
            if x != y:
                if len(gap) == 2 and abs(gap[0] - gap[1]) < 0.05:
                    break  # a tie within rounding: the texts part here
                raise Failed(f"{prompt!r}: token {i} is {y!r}, on the CPU {x!r}")
            n_same += 1
            worst = max(worst, abs(a["token_logprobs"][i] - b["token_logprobs"][i]))
    if worst > 0.05:
        raise Failed(f"a logprob differs by {worst:.4f}")
    c.rows.append({"row": "demo", "same": n_same, "worst": worst, "is_rehearsal": not c.gpu})
    text = f"{n_same} greedy tokens equal, logprobs within {worst:.4f}"
    if not c.gpu:
        raise Skipped(f"no GPU (rehearsed, CPU with CPU: {text})")
    return text


# --- the table ---------------------------------------------------------------------------------------------------

def us(c, row, **want):
    found = c.find(row=row, **want)
    return found and found["us"]


def rate(batch, figure):
    return figure and batch * 1e6 / figure


def bars(c):
    """(what, the bar in words, figure or None, unit, whether it holds)."""
    copy = c.find(row="ceiling", name="device copy")
    decode = c.find(row="kernel", name="decode_attention", model=BIG, what="B=32 L=8192")
    swap, server_row = c.find(row="swap", model=BIG), c.find(row="server")
    bus = [c.find(row="ceiling", name=f"bus {way}") for way in ("in", "out")]
    peer = {b: min((r["us"] for r in c.rows if r.get("name") == "llama step" and r["model"] == BIG and r["batch"] == b),
                   default=None) for b in (1, 32)}
    table = []

    def bar(what, text, figure, unit, holds):
        table.append({"what": what, "bar": text, "figure": figure, "unit": unit,
                      "holds": None if figure is None else bool(holds(figure))})

    def at_least(what, least, stretch, figure, unit):
        bar(what, f">= {least} ({stretch})" if stretch else f">= {least}", figure, unit, lambda x: x >= least)

    def at_most(what, most, stretch, figure, unit):
        bar(what, f"<= {most} ({stretch})" if stretch else f"<= {most}", figure, unit, lambda x: x <= most)

    def ms(figure):
        return figure and figure / 1e3

    at_least("8B decode, batch 1, 1k", 227, 250, rate(1, us(c, "decode", model=BIG, batch=1, context=1024)), "tok/s")
    at_most("8B batch 8, 32 in, 128 out", 4.5, 4.2, ms(us(c, "session", model=BIG)), "ms/step")
    at_least("8B decode, batch 32, 1k", 5500, 6000, rate(32, us(c, "decode", model=BIG, batch=32, context=1024)), "tok/s")
    at_least("8B decode, batch 256, 1k", 15000, 16500,
             rate(256, us(c, "decode", model=BIG, batch=256, context=1024)), "tok/s")
    at_most("8B prefill 1k", 23, 21, ms(us(c, "prefill", model=BIG, fresh=1024)), "ms")
    at_most("8B prefill 8k", 215, 190, ms(us(c, "prefill", model=BIG, fresh=8192)), "ms")
    at_most("8B 128 on 8k cached, TTFT over HTTP", 9, 7, server_row and server_row["hit_ms"], "ms")
    at_most("the same over a cold 8k prompt", 0.05, None,
            server_row and server_row["hit_ms"] / server_row["cold_ms"], "of cold")
    at_least("decode attention of the copy ceiling", 85, None,
             decode and copy and 100 * decode["bytes"] / decode["us"] / 1e3 / copy["gbs"], "%")
    for way, ceiling in zip(("in", "out"), bus):
        figure = swap and swap[f"{way}_gbs"]
        limit = ceiling and ceiling["gbs"]
        bar(f"swap {way}", ">= 45, or 95 % of the bus" + (f" ({limit:.0f})" if limit else ""), figure, "GB/s",
            lambda x, limit=limit: x >= 45 or bool(limit) and x >= 0.95 * limit)
    host = c.find(row="decode", model=BIG, batch=256, context=1024)
    at_most("host per step, batch 256", 50, 30, host and host["host_us"], "us")
    at_most("8B ready, from page cache", 15, None, server_row and server_row["ready_s"], "s")
    for batch in (1, 32):
        ours = us(c, "decode", model=BIG, batch=batch, context=1024)
        at_least(f"compiled PyTorch step / ours, batch {batch}", 1.3, None,
                 ours and peer[batch] and peer[batch] / ours, "x")
    at_least("1.5B decode, batch 1, 1k", 830, 1050, rate(1, us(c, "decode", model=SMALL, batch=1, context=1024)), "tok/s")
    at_least("1.5B decode, batch 256, 1k", 61000, 69000,
             rate(256, us(c, "decode", model=SMALL, batch=256, context=1024)), "tok/s")
    return table


def print_kernels(c):
    copy, product = c.find(row="ceiling", name="device copy"), c.find(row="ceiling", name="product")
    rows = [r for r in c.rows if r.get("row") == "kernel" and "us" in r]
    if not rows or not copy or not product:
        return
    print(f"\n{'kernel':18} {'model':14} {'shape':22} {'us':>9} {'GB/s':>7} {'% copy':>7} {'TFLOP/s':>8} {'% gemm':>7}")
    for r in rows:
        gbs, tflops = r["bytes"] / r["us"] / 1e3, r["flops"] / r["us"] / 1e6
        print(f"{r['name']:18} {r['model']:14} {r['what']:22} {r['us']:9.2f} {gbs:7.0f} {100 * gbs / copy['gbs']:7.1f} "
              f"{tflops:8.1f} {100 * tflops / product['tflops']:7.1f}")


def print_table(c, table):
    print_kernels(c)
    print(f"\n{'':42} {'bar (stretch)':28} {'figure':>10} {'':8} holds")
    for r in table:
        figure = "-" if r["figure"] is None else f"{r['figure']:.4g}"
        holds = {True: "yes", False: "NO", None: "not measured" + ("" if c.gpu else ": no GPU")}[r["holds"]]
        print(f"{r['what']:42} {r['bar']:28} {figure:>10} {r['unit']:8} {holds}")
    print()
    for name, status, seconds, why in c.phases:
        print(f"{status:8} {name:14} {seconds:6.1f} s  {why}")


# What decides comes first: what time does not suffice for is reported as skipped.
PHASES = {"build": build, "device": device, "correctness": correctness, "demo": demo, "steps": steps, "server": server,
          "sanitizer": sanitizer, "kernels": kernels, "peers": peers, "soak": soak}


def phases_of(text):
    wanted = text.split(",")
    for name in wanted:
        if name not in PHASES:
            raise argparse.ArgumentTypeError(f"there is no phase '{name}': give some of {', '.join(PHASES)}")
    return ["build", "device"] + wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=phases_of, help=", ".join(PHASES))
    parser.add_argument("--budget", type=float, default=470, help="seconds for everything")
    parser.add_argument("--soak", type=float, default=0, help="seconds of random schedules (10)")
    parser.add_argument("--worker", default=str(ROOT / "build/release/portable/incipit-worker"))
    parser.add_argument("--scratch", help="folder for a random model of 16 GB; the system's otherwise")
    parser.add_argument("--json", default=str(BUILD / "check.json"))
    parser.add_argument("--cc", default=os.environ.get("CC", "gcc"))
    c = Check(parser.parse_args())
    if c.options.scratch is None and pathlib.Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 40e9:
        c.options.scratch = "/dev/shm"
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    print(f"gpu-check, {date}", flush=True)
    for name, fn in PHASES.items():
        c.phase(name, lambda fn=fn: fn(c))
    table = bars(c)
    print_table(c, table)
    path = pathlib.Path(c.options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"date": date, "device": c.gpu, "why_no_gpu": None if c.gpu else c.why_no_gpu,
                                "phases": c.phases, "bars": table, "rows": c.rows}, indent=1) + "\n")
    print(f"\n{path}")
    return 1 if any(p[1] == "FAILED" for p in c.phases) else 0


if __name__ == "__main__":
    sys.exit(main())
