"""tests/replay/runs.py: replays of tests/replay/replay.c, each done once, on JOBS cores (all) and nice."""
import concurrent.futures
import json
import os
import subprocess
import sys


class Runs:
    """`source`: the arguments that name the workload, such as ("trace", "FILE"); none: generated conversations."""

    def __init__(self, binary, source=()):
        self.binary, self.source, self.futures = binary, tuple(source), {}
        self.pool = concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count()))

    def run(self, arguments):
        done = subprocess.run(["nice", "-n", "15", self.binary, *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr or f"replay {' '.join(arguments)}: exit {done.returncode}")
        return json.loads(done.stdout)

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
