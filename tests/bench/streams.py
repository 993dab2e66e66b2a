"""A thousand streams at once from one simulated worker: does any of them stand still, does memory grow?

Each client asks for a completion as a stream and keeps the longest pause between two events of it. Rounds
follow each other on new connections; the worker's resident memory is read at the end of each: what the
later ones take more than the second has leaked (the pool is small enough to be in use all of it by then). Half of the clients of a round ask for two samples. A step takes as long as on the default
simulated device; pauses are seen from here, this script's own included.

    streams.py [STREAMS [ROUNDS]]         INCIPIT_BUILD: where the worker is
"""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import time

BUILD = pathlib.Path(os.environ.get("INCIPIT_BUILD", "build/release"))
N = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 4
TOKENS = 60
STALL_S = 1.0


def start():
    worker = subprocess.Popen([BUILD / "incipit-worker", "--backend", "sim", "--port", "0",
                               "--max-num-seqs", str(2 * N), "--max-num-batched-tokens", str(2 * N + 1000),
                               "--max-waiting", str(2 * N), "--num-gpu-blocks-override", str(14 * N),
                               "--max-model-len", "4096", "--log-format", "json", "--log-level", "info"],
                              stderr=subprocess.PIPE, text=True)
    for line in worker.stderr:
        event = json.loads(line)
        if event["event"] == "worker_ready":
            return worker, event["port"]
    raise SystemExit("the worker did not start")


def resident_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def stream(port, i):
    """Events, and the longest pause between two of them."""
    body = json.dumps({"prompt": f"client {i} " * 8, "max_tokens": TOKENS, "stream": True, "ignore_eos": True,
                       "n": 1 + i % 2}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                 b"content-length: %d\r\n\r\n" % len(body) + body)
    last, longest, events = None, 0.0, 0
    while chunk := await reader.read(65536):
        now = time.monotonic()
        if last is not None:
            longest = max(longest, now - last)
        events += chunk.count(b"data: ")
        if events:
            last = now
    writer.close()
    return events, longest


async def main():
    worker, port = start()
    asyncio.get_running_loop().run_in_executor(None, worker.stderr.read)  # no reader for the log
    try:
        memory, worst = [], 0.0
        for k in range(ROUNDS):
            began = time.monotonic()
            done = await asyncio.gather(*(stream(port, i) for i in range(N)))
            longest = max(pause for _, pause in done)
            worst = max(worst, longest)
            memory.append(resident_mib(worker.pid))
            print(f"round {k + 1}: {N} streams, {sum(e for e, _ in done)} events in {time.monotonic() - began:.1f} s, "
                  f"longest pause {longest * 1e3:.0f} ms, {memory[-1]:.1f} MiB resident")
            assert all(events > TOKENS // 2 for events, _ in done), "a stream ended early"
        growth = memory[-1] / memory[min(1, ROUNDS - 1)] - 1
        print(f"no stall above {STALL_S:.0f} s: {'kept' if worst <= STALL_S else 'MISSED'}; "
              f"memory {growth:+.1%} from the second round to the last")
    finally:
        worker.terminate()
        worker.wait()


asyncio.run(main())
