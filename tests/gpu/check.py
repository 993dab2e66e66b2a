#!/usr/bin/env python3
"""Everything that is asked of the CUDA backend on a GPU: `make gpu-check` in a checkout, `run` in a kit (make gpu-kit).

A checkout needs nvcc, gcc and python3; a kit needs NVIDIA's driver and python3. Phases come in order of value, each
with a limit of its own, and fit any --budget: what it has no time for stays to be done, and the same command later, or
after the run was killed, goes on there. Each phase leaves a log and its figures in the folder of results ($OUT, or
--out); check.json and table.txt have all of them. What cannot run is SKIPPED, with the reason. Without a GPU a checkout
rehearses each phase on the shim (the kernels as fibers) with the arguments that a card would get, except for those in
EXCEPTIONS; a kit reports 'no GPU here'. Exit code 1: something is wrong; a missed bar is not.
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

from bars import BIG, QUANTISED, SMALL, bars, format_table
from runner import Check, Failed, Places, Skipped, is_kernel_test, why_driver_is_too_old

SERVED_PREFIX, SERVED_FRESH, SERVED_IDS = 8192, 128, 2000  # ids: within every vocabulary
# Of most value first; then the other tests of kernels, as far as time goes.
SANITIZED = ("test_attend_decode", "test_attend_prefill", "test_ops_gemv", "test_products", "test_sampling", "test_ops_rope")

# Where a rehearsal's command differs from a card's: (pattern, what stands there in the rehearsal, why). None: there is
# no such command. tests/integration/test_gpu_check.py proves that there is no other difference.
EXCEPTIONS = (
    (r"^correctness: .*build/gpu/gpu/tests/", None, "on the shim these tests are part of `make unit`"),
    (r"^sanitizer: ", None, "the tools look at device code alone; on the shim `make SAN=address unit` does"),
    (r"gpu/(gpu_\w+|make_random_model)", r"gpu/\1-shim", "the kernels run as fibers: there is no device"),
    (rf"(make_random_model-shim) {BIG}", r"\1 small", "16 GB of weights are too slow on the CPU, which serves them here"),
    (rf"(gpu_\w+-shim( kernels| ceilings)?) ({BIG}|{SMALL}|slice)", r"\1 tiny",
     "16 GB of weights do not fit the shim's memory, and would take days as fibers"),
    (r"--backend cuda --backend-library \S+", "--backend cpu", "a worker cannot load the shim"),
    (r"(peer_\w+\.py) cuda", r"\1 cpu", "there is no device"),
)


# --- phases ------------------------------------------------------------------------------------------------------

def has_nvcc():
    return bool(os.environ.get("NVCC") or shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"))


def compute_capability():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=20, check=True).stdout
        return out.split()[0].replace(".", "")
    except (OSError, subprocess.SubprocessError, IndexError):
        return "90"


def build(c):
    """Needs no library beside libc: those of the worker are not asked for. Warnings of an unknown compiler are
    no errors."""
    arch = compute_capability()
    flags = (os.environ.get("CFLAGS", "") + " -Wno-error").strip()
    make = ["make", "--no-print-directory", "-k", f"-j{os.cpu_count() or 2}", "B=build/gpu", "PACKAGES=",
            f"CUDA_ARCHS={arch}", f"CUDA_PTX={arch}", f"CC={c.options.cc}", f"CFLAGS={flags}", "NVCC_WERROR="]
    if not has_nvcc() and not c.is_dry:
        c.run(make + ["gpu-rehearsals"], 500, reads_rows=False)
        raise Skipped("there is no nvcc: install CUDA 12.8 or newer (built for the shim alone)")
    c.run(make + ["gpu-rehearsals", "gpu-programs"], 500, reads_rows=False)
    return f"programs and {len(c.places.tests())} tests for sm_{arch}"


def device(c):
    args = ["ceilings", c.model("slice"), 60]
    if c.is_dry:
        c.run([c.program("gpu_kernels"), *args], 60)
        return None
    if not c.places.is_kit and not has_nvcc():
        c.why_no_gpu = "without nvcc nothing was built for one"
        raise Skipped(c.why_no_gpu)
    try:
        rows = c.run([c.places.programs / "gpu_kernels", "ceilings", "slice", 60], 60)
    except Failed as e:
        _, is_refusal, why = str(e).partition("opening the device: ")
        if not is_refusal:
            raise  # a crash is no lack of a GPU
        c.why_no_gpu = why.split(": ", 1)[-1].removesuffix(" (exit 1)")
        if c.places.is_kit:
            raise Skipped(f"no GPU here: {c.why_no_gpu}") from None
        c.run([c.program("gpu_kernels"), *args], 60, reads_rows=False)
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
    """The tests of the shim, whose kernels now are the device's. Tests of single kernels launch on a NULL stream, and
    look at the results at once: their launches wait. The others record graphs, which cannot."""
    failed = []
    if c.rehearses():
        c.run([c.program("gpu_products"), c.model(BIG)], 60, reads_rows=False)
        c.needs_gpu("the products rehearsed on the shim")
        if c.is_dry:
            return None
    else:
        try:
            c.run([c.program("gpu_products"), c.model(BIG)], 60)
        except Failed as e:
            failed.append(str(e))
    for test in c.places.tests():
        env = {"CUDA_LAUNCH_BLOCKING": "1"} if is_kernel_test(test) else None
        try:
            c.run([c.places.programs / "tests" / test], 60, env, reads_rows=False)
        except Failed as e:
            failed.append(str(e))
        c.rows.append({"row": "correct", "name": test, "holds": not failed or not failed[-1].startswith(test)})
    if failed:
        raise Failed("; ".join(failed)[:600])
    return f"products, and {len(c.places.tests())} test programs, each kernel run several times to the same bits"


def soak(c):
    seconds = c.options.soak or 10
    is_rehearsal = c.rehearses()
    rows = c.run([c.program("gpu_soak"), seconds], seconds + 60, reads_rows=not is_rehearsal)
    if is_rehearsal:
        c.needs_gpu("rehearsed on the shim: random steps agree with the CPU")
    if c.is_dry:
        return None
    return f"{rows[-1]['steps']} random steps, {rows[-1]['outputs']} outputs, worst logprob off by {rows[-1]['worst']}"


def sanitizer(c):
    """Over tests of kernels, which load no library: a library's own kernels would take all the time. initcheck reports
    the padding of copies too, so that what it finds is advice."""
    c.needs_gpu()
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool and not c.is_dry:
        raise Skipped("compute-sanitizer is not installed")
    unable, advice, n_clean = [], [], 0
    tests = sorted((t for t in c.places.tests() if is_kernel_test(t)),
                   key=lambda t: SANITIZED.index(t) if t in SANITIZED else len(SANITIZED))
    for kind in ("memcheck", "racecheck", "synccheck", "initcheck") if c.gpu else ():
        for test in tests:
            if c.allowed_s(90) < 10:
                unable.append(f"{kind} {test}: out of time")
                continue
            try:
                c.run([tool or "compute-sanitizer", "--tool", kind, "--error-exitcode", 9,
                       c.places.programs / "tests" / test], 90, {"CUDA_LAUNCH_BLOCKING": "1"}, reads_rows=False)
                n_clean += 1
            except Failed as e:
                if "(exit 9)" not in str(e):
                    unable.append(f"{kind} {e}")
                elif kind == "initcheck":
                    advice.append(test)
                else:
                    raise Failed(f"{kind}: {e}") from None
    c.rows.append({"row": "sanitizer", "clean": n_clean, "unable": unable, "initcheck": advice})
    if not n_clean:
        raise Skipped("; ".join(unable)[:300])
    return (f"{n_clean} runs find nothing" + (f"; {len(unable)} could not end" if unable else "")
            + (f"; initcheck reports (advice): {', '.join(advice)}" if advice else ""))


def kernels(c):
    for model, seconds, limit in ((BIG, 30, 60), (SMALL, 15, 40)):
        c.run([c.program("gpu_kernels"), "kernels", c.model(model), seconds], limit, reads_rows=not c.rehearses())
    c.needs_gpu("rehearsed on the shim")


def steps(c):
    for model, seconds, limit in ((BIG, 45, 90), (SMALL, 18, 45)):
        c.run([c.program("gpu_steps"), c.model(model), seconds], limit, reads_rows=not c.rehearses())
    c.needs_gpu("rehearsed on the shim")


def quantised(c):
    """Whole steps of the big model with quantised matrices, and with a quantised cache."""
    for matrices, cache in QUANTISED:
        c.run([c.program("gpu_steps"), c.model(BIG), 15, matrices, cache], 45, reads_rows=not c.rehearses())
    c.needs_gpu("rehearsed on the shim")


def peers(c):
    """PyTorch on the same card and day. Ours was measured in 'steps'; where there is time, again after it."""
    c.rehearses()
    if importlib.util.find_spec("torch") is None and not c.is_dry:
        raise Skipped("python3 has no torch")
    late = []
    for script, limit in (("peer_llama.py", 90), ("peer_attention.py", 40)):
        try:
            c.run([sys.executable if not c.is_dry else "python3", c.places.scripts / script, "cuda" if c.gpu else "cpu"],
                  limit, reads_rows=bool(c.gpu))
        except Failed as e:  # a peer that is slow to compile is no fault of ours: its output counts
            late.append(str(e))
    if late:
        raise Skipped("; ".join(late))
    if c.gpu is None or c.left() > 90 or c.is_dry:
        c.run([c.program("gpu_steps"), c.model(BIG), 8], 40, reads_rows=bool(c.gpu))
    c.needs_gpu("rehearsed on the CPU")


class Worker:
    """A worker, started by what a card or its rehearsal would start; a dry run notes what would be asked of it."""

    def __init__(self, c, model, *args):
        self.c = c
        where = (["--backend", "cuda", "--backend-library", c.places.object] if c.gpu else ["--backend", "cpu"])
        self.args = [pathlib.Path(c.options.worker), "--model", model, *where, "--port", "0", *args]
        self.ready_s = 0.0

    def __enter__(self):
        self.c.note(self.c.line_of(self.args, 90, None))
        if self.c.is_dry:
            return self
        self.log = tempfile.NamedTemporaryFile("w+", prefix="incipit-worker-", suffix=".log")
        self.start = time.monotonic()
        self.process = subprocess.Popen([str(a) for a in self.args], stdout=self.log, stderr=self.log, env=self.c.env,
                                        start_new_session=True)
        try:
            self.wait_ready(self.c.allowed_s(90))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        if not self.c.is_dry:
            self.close()

    def wait_ready(self, limit):
        while time.monotonic() - self.start < limit:
            for line in pathlib.Path(self.log.name).read_text().splitlines():
                if "worker_ready" in line:
                    fields = dict(f.split("=", 1) for f in line.split() if "=" in f)
                    self.url = f"http://127.0.0.1:{fields['port']}"
                    self.ready_s = time.monotonic() - self.start
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        lines = pathlib.Path(self.log.name).read_text().splitlines()
        raise Failed(f"the worker did not start: {lines[-1][:300] if lines else 'no output'}")

    def ask(self, **body):
        prompt = body["prompt"]
        self.c.note(f"POST /v1/completions, prompt {prompt if isinstance(prompt, str) else len(prompt)}, "
                    + ", ".join(f"{k} {v}" for k, v in body.items() if k != "prompt"))
        return urllib.request.Request(self.url + "/v1/completions" if not self.c.is_dry else "http://none",
                                      json.dumps(body).encode(), {"Content-Type": "application/json"})

    def complete(self, **body):
        request = self.ask(**body)
        if self.c.is_dry:
            return {"choices": [{"logprobs": {"tokens": [], "token_logprobs": [], "top_logprobs": []}}]}
        with urllib.request.urlopen(request, timeout=self.c.allowed_s(60)) as answer:
            return json.load(answer)

    def ttft(self, prompt):
        """Seconds to the first event of a stream, connection included."""
        request = self.ask(prompt=prompt, max_tokens=2, temperature=0, stream=True, ignore_eos=True)
        if self.c.is_dry:
            return 1.0
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=self.c.allowed_s(120)) as answer:
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
        with (self.c.out / f"{self.c.phase_name}.log").open("a") as log:
            log.write(pathlib.Path(self.log.name).read_text())
        self.log.close()


def needs_worker(c):
    if not pathlib.Path(c.options.worker).exists() and not c.is_dry:
        raise Skipped(f"{c.options.worker} is not here: build it where its libraries are (make worker-portable) and "
                      "carry it along")


def scratch(c):
    """A folder for a model of 16 GB: memory, where there is enough."""
    if c.options.scratch is None and pathlib.Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 40e9:
        return "/dev/shm"
    return c.options.scratch


def server(c):
    """Over HTTP: ready, a cold prompt, a prompt whose beginning is cached."""
    needs_worker(c)
    name = BIG if c.gpu else "small"
    prefix, fresh, ids = SERVED_PREFIX, SERVED_FRESH, SERVED_IDS
    # A kit has one such program, which needs no device.
    maker = c.places.programs / "make_random_model" if c.places.is_kit and not c.is_dry else c.program("make_random_model")
    with tempfile.TemporaryDirectory(prefix="incipit-model-", dir=scratch(c)) as folder:
        free = shutil.disk_usage(folder).free
        if c.gpu and free < 20e9 and not c.is_dry:
            raise Skipped(f"{folder} has {free / 1e9:.0f} GB free, the model takes 16: --scratch")
        folder = "MODEL" if c.is_dry else folder
        c.run([maker, name, folder], 120, reads_rows=False)
        for file in ("tokenizer.json", "tokenizer_config.json") if not c.is_dry else ():
            shutil.copy(c.places.demo_model / file, folder)
        with Worker(c, folder, "--max-model-len", 2 * (prefix + fresh)) as worker:
            prompts = [[(i * 7919 + j * 104729) % ids for j in range(prefix)] for i in range(4)]
            worker.ttft(prompts[0][: prefix // 2])  # warms up what is lazy
            cold = sorted(worker.ttft(p) for p in prompts[1:])
            hits = sorted(worker.ttft(prompts[1] + [(k * 31 + j) % ids for j in range(fresh)]) for k in range(9))
    row = {"row": "server", "model": name, "backend": "cuda" if c.gpu else "cpu", "ready_s": round(worker.ready_s, 2),
           "cold_ms": round(cold[1] * 1e3, 2), "hit_ms": round(hits[4] * 1e3, 2), "hit_max_ms": round(hits[-1] * 1e3, 2)}
    c.needs_gpu(f"rehearsed on the CPU: cold {row['cold_ms']} ms, hit {row['hit_ms']} ms")
    c.rows.append(row)
    return f"ready {row['ready_s']} s, cold {row['cold_ms']} ms, hit {row['hit_ms']} ms"


DEMO_PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time", "Two plus two is", "The sun is"]


class OnCpu:
    """The check as a worker on the CPU sees it: the other side of the comparison, with and without a card."""

    def __init__(self, c):
        self.__dict__.update(c.__dict__, gpu=None)
        self.note, self.line_of, self.allowed_s = c.note, c.line_of, c.allowed_s


def demo(c):
    """The demonstration model on both backends: greedy tokens, and logprobs of what was chosen."""
    needs_worker(c)
    answers = []
    for side in (OnCpu(c), c):
        with Worker(side, c.places.demo_model) as worker:
            answers.append([worker.complete(prompt=p, max_tokens=64, temperature=0, logprobs=2,
                                            ignore_eos=True)["choices"][0] for p in DEMO_PROMPTS])
    n_same, worst = 0, 0.0
    for prompt, want, got in zip(DEMO_PROMPTS, *answers):
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
    text = f"{n_same} greedy tokens equal, logprobs within {worst:.4f}"
    c.needs_gpu(f"rehearsed, CPU with CPU: {text}")
    c.rows.append({"row": "demo", "same": n_same, "worst": worst})
    return text


# --- the run -----------------------------------------------------------------------------------------------------

# In order of value: (phase, limit in seconds, least that it is worth beginning with).
PHASES = {"build": (build, 500, 0), "device": (device, 90, 5), "correctness": (correctness, 240, 20),
          "steps": (steps, 140, 30), "demo": (demo, 60, 10), "server": (server, 200, 40),
          "quantised": (quantised, 140, 45), "kernels": (kernels, 110, 20),
          "soak": (soak, 600, 15), "sanitizer": (sanitizer, 400, 30), "peers": (peers, 200, 60)}


def phases_of(text):
    wanted = text.split(",")
    for name in wanted:
        if name not in PHASES:
            raise argparse.ArgumentTypeError(f"there is no phase '{name}': give some of {', '.join(PHASES)}")
    return ["build", "device"] + wanted


def print_commands(options, places):
    """Every command of every phase, as a card or its rehearsal would get it."""
    c = Check(options, places)
    c.gpu = {"name": "a card"} if options.print_commands == "card" else None
    for name, (fn, limit, least) in PHASES.items():
        c.phase(name, lambda fn=fn: fn(c), limit, least)
    print("\n".join(c.commands))


def options_of(arguments, places):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=phases_of, help=", ".join(PHASES))
    parser.add_argument("--budget", type=float, default=470, help="seconds for this run (470)")
    parser.add_argument("--fresh", action="store_true", help="run all phases, also those that an earlier run did")
    parser.add_argument("--soak", type=float, default=0, help="seconds of random schedules (10)")
    parser.add_argument("--out", default=os.environ.get("OUT") or str(places.out),
                        help="folder of the results ($OUT, else %(default)s)")
    parser.add_argument("--worker", default=str(places.worker))
    parser.add_argument("--scratch", help="folder for a random model of 16 GB; the system's otherwise")
    parser.add_argument("--cc", default=os.environ.get("CC", "gcc"))
    parser.add_argument("--print-commands", choices=["card", "rehearsal"],
                        help="print what every phase would run on a card, or in its rehearsal, and run nothing")
    return parser.parse_args(arguments)


def report(c, date):
    """check.json and table.txt; the text of the table."""
    rows = bars(c)
    text = format_table(c, rows)
    undone = [name for name in phase_names(c) if name not in c.phases]
    if undone:
        text += f"\nto be done, by the same command again: {', '.join(undone)}\n"
    c.write("check.json", {"date": date, "device": c.gpu, "why_no_gpu": None if c.gpu else c.why_no_gpu,
                           "phases": [[name, p["status"], p["seconds"], p["why"]] for name, p in c.phases.items()],
                           "undone": undone, "bars": rows, "rows": c.rows})
    c.write("table.txt", text)
    return text


def phase_names(c):
    return [name for name in PHASES
            if (name != "build" or not c.places.is_kit) and (not c.options.phases or name in c.options.phases)]


def end(number, _):
    raise SystemExit(128 + number)


def main(arguments=None, places=None):
    places = places or Places()
    options = options_of(arguments, places)
    if options.print_commands:
        print_commands(options, places)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    c = Check(options, places)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    print(f"gpu-check, {date}", flush=True)
    too_old = why_driver_is_too_old(places.kit)
    if too_old:
        c.why_no_gpu = too_old
        c.phases = {name: {"status": "SKIPPED", "seconds": 0, "why": "the driver is too old"} for name in phase_names(c)}
        report(c, date)
        print(too_old)
        return 0
    resumed = c.resume()
    if resumed:
        print(resumed, flush=True)
    for name in phase_names(c):
        fn, limit, least = PHASES[name]
        c.phase(name, lambda fn=fn: fn(c), limit, least)
        report(c, date)
    print(report(c, date))
    print(c.out / "check.json")
    return 1 if any(p["status"] == "FAILED" for p in c.phases.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
