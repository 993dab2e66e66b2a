"""tests/replay/runs.py: replays of tests/replay/replay.c, each done once, on JOBS cores (all) and nice.

Beside the binary, replay.jsonl keeps every result, so that what was interrupted goes on where it was. Its first line is a
digest of the binary; with another binary it begins anew. A trace counts as the same while its size and time are.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import threading


class Results:
    """What earlier runs of the same binary gave, by arguments."""

    def __init__(self, binary):
        self.path = pathlib.Path(binary).with_suffix(".jsonl")
        self.lock = threading.Lock()
        head = json.dumps(hashlib.sha256(pathlib.Path(binary).read_bytes()).hexdigest())
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if lines[:1] != [head]:
            lines = [head]
            self.path.write_text(head + "\n")
        self.known = {}
        for line in lines[1:]:
            try:
                key, result = json.loads(line)
            except ValueError:
                continue  # cut off by an interruption
            self.known[tuple(key)] = result

    def get(self, key):
        return self.known.get(key)

    def put(self, key, result):
        with self.lock, self.path.open("a") as f:
            f.write(json.dumps([key, result]) + "\n")


def file_stamp(arguments):
    """Of the files that are named: what changes when they do."""
    stats = [os.stat(a) for name, a in zip(arguments, arguments[1:]) if name == "trace" and os.path.exists(a)]
    return tuple(str(x) for s in stats for x in (s.st_size, s.st_mtime_ns))


class Runs:
    """`source`: the arguments that name the workload, such as ("trace", "FILE"); none: generated conversations."""

    def __init__(self, binary, source=()):
        self.binary, self.source, self.futures = binary, tuple(source), {}
        self.results, self.n_done = Results(binary), 0
        self.pool = concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count()))

    def run(self, arguments):
        key = (*arguments, *file_stamp(arguments))
        result = self.results.get(key)
        if result is None:
            done = subprocess.run(["nice", "-n", "15", self.binary, *arguments], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr or f"replay {' '.join(arguments)}: exit {done.returncode}")
            result = json.loads(done.stdout)
            self.results.put(key, result)
        self.n_done += 1
        if sys.stderr.isatty():
            print(f"\r{self.n_done} of {len(self.futures)} replays ", end="", file=sys.stderr, flush=True)
        return result

    def want(self, source, seeds, **arguments):
        """Futures of one replay per seed."""
        out = []
        for seed in seeds:
            key = (*source, "seed", str(seed), *(str(x) for pair in arguments.items() for x in pair))
            if key not in self.futures:
                self.futures[key] = self.pool.submit(self.run, key)
            out.append(self.futures[key])
        return out

    def at(self, seeds, **arguments):
        return self.want(self.source, seeds, **arguments)


def mean(futures, column):
    return sum(f.result()[column] for f in futures) / len(futures)


def most(futures, column):
    return max(f.result()[column] for f in futures)


def options(doc, usage="[trace FILE] [--quick]"):
    """(Runs, quick?) from the command line BINARY `usage`."""
    arguments = [a for a in sys.argv[1:] if a != "--quick"]
    if not arguments or len(arguments) not in (1, 3):
        sys.exit(f"{doc}\nusage: BINARY {usage}")
    return Runs(arguments[0], arguments[1:]), "--quick" in sys.argv
