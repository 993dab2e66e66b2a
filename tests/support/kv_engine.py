"""Engines that publish KV events as vLLM and SGLang do: ZeroMQ by pyzmq, MessagePack by msgspec.

The structures have the fields and settings of the engines' sources (vllm/distributed/kv_events.py,
sglang/srt/disaggregation/kv_events.py), in the three generations that fleets have: `arrays` (until
06/2026), `maps` (arrays of maps) and `all_maps`. The cache behind them is a plain LRU, so that a test can
compare what was followed with what is held.
"""
import collections
import http.server
import itertools
import json
import queue
import random
import threading
import time
import zlib
from typing import Any, Optional

import msgspec
import zmq

CHARS = 4  # of a token
END = (-1).to_bytes(8, "big", signed=True)
STORED = [("block_hashes", list), ("parent_block_hash", Any), ("token_ids", list), ("block_size", int), ("lora_id", Any)]
MORE = [("medium", Any), ("lora_name", Any, None), ("extra_keys", Any, None), ("group_idx", Any, None),
        ("kv_cache_spec_kind", Any, None), ("kv_cache_spec_sliding_window", Any, None)]


class Shapes:
    """The structures of one generation."""

    def __init__(self, generation):
        is_array = generation == "arrays"
        form = {"array_like": is_array, "omit_defaults": True, "tag": True}
        medium = [] if is_array else [("medium", Any, None), ("group_idx", Any, None)]
        self.batch = msgspec.defstruct(
            "KVEventBatch", [("ts", float), ("events", list), ("data_parallel_rank", Optional[int], None)],
            array_like=generation != "all_maps", omit_defaults=True)
        self.stored = msgspec.defstruct("BlockStored", STORED + ([] if is_array else MORE), **form)
        self.removed = msgspec.defstruct("BlockRemoved", [("block_hashes", list), *medium], **form)
        self.cleared = msgspec.defstruct("AllBlocksCleared", [], **form)

    def store(self, hashes, parent, block_size, medium):
        tokens = list(range(100, 100 + block_size * len(hashes)))
        if self.stored.__struct_config__.array_like:
            return self.stored(hashes, parent, tokens, block_size, None)
        return self.stored(hashes, parent, tokens, block_size, None, medium)

    def remove(self, hashes, medium):
        return self.removed(hashes) if self.removed.__struct_config__.array_like else self.removed(hashes, medium)


def bind(s, port):
    """The predecessor's socket may take a moment to be gone."""
    for _ in range(500):
        try:
            return s.bind(f"tcp://*:{port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        time.sleep(0.02)
    raise AssertionError(f"port {port} stays in use")


class Publisher(threading.Thread):
    """vLLM's publisher thread: a queue, PUB with three frames, and replays from a ROUTER between two batches.
    `has_topic`: replays have the topic as well, as since vLLM #45177. Negative items: so many batches are lost."""

    def __init__(self, context, port, replay_port, has_topic=False, kept=10_000):
        super().__init__(daemon=True)
        self.queue, self.kept, self.sequence = queue.Queue(100_000), collections.deque(maxlen=kept), 0
        self.topic, self.has_topic, self.n_replays, self.is_over = b"kv@pod@model", has_topic, 0, False
        self.pub = context.socket(zmq.PUB)
        self.pub.set_hwm(100_000)
        bind(self.pub, port)
        self.replay = context.socket(zmq.ROUTER) if replay_port else None
        if self.replay:
            bind(self.replay, replay_port)
        self.start()

    def answer(self):
        client, empty, start = self.replay.recv_multipart()
        assert empty == b""
        self.n_replays += 1
        topic = [self.topic] if self.has_topic else []
        for sequence, payload in list(self.kept):
            if sequence >= int.from_bytes(start, "big"):
                self.replay.send_multipart([client, b"", *topic, sequence.to_bytes(8, "big"), payload])
        self.replay.send_multipart([client, b"", *topic, END, b""])

    def run(self):
        encode = msgspec.msgpack.Encoder().encode
        while not self.is_over:
            if self.replay and self.replay.poll(0):
                self.answer()
            try:
                batch, is_sent = self.queue.get(timeout=0.02)
            except queue.Empty:
                continue
            payload = batch if isinstance(batch, bytes) else encode(batch)
            if is_sent:
                self.pub.send_multipart([self.topic, self.sequence.to_bytes(8, "big"), payload])
            self.kept.append((self.sequence, payload))
            self.sequence += 1
        for s in (self.pub, self.replay):
            if s:
                s.close(linger=0)

    def end(self):
        self.is_over = True
        self.join()


class Engine:
    """One engine: its HTTP pages, its cache, its publisher. `ports`: of events and replays (0: none)."""

    def __init__(self, ports, kind="vllm", generation="maps", n_blocks=500, block_size=16, is_bytes=False, seed=1, **more):
        self.ports, self.kind, self.more = ports, kind, more
        self.shapes, self.n_blocks, self.block_size, self.is_bytes = Shapes(generation), n_blocks, block_size, is_bytes
        self.random, self.cache, self.context = random.Random(seed), collections.OrderedDict(), zmq.Context()
        self.lock = threading.Lock()  # of the cache
        self.publisher = Publisher(self.context, *ports, **more)
        self.info, self.started = {}, time.time()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    # --- what a router asks

    def page(self, path):
        if path == "/health":
            return ""
        if path == "/v1/models":
            return json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": self.kind,
                                                           "max_model_len": 4096}]})
        if path == "/get_server_info" and self.kind == "sglang":
            return json.dumps({"page_size": self.block_size, "max_total_num_tokens": 1_000_000, **self.info})
        if path == "/metrics":
            return f'{self.kind}:num_requests_running{{model_name="m"}} 0\nprocess_start_time_seconds {self.started:.3f}\n'
        return None

    def handler(engine):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, code, body):
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self):
                page = engine.page(self.path)
                self.answer(404 if page is None else 200, page or "")

            def do_POST(self):
                prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
                n = max(len(prompt) // CHARS, 1)
                engine.compute(prompt)
                self.answer(200, json.dumps({"id": "1", "object": "text_completion", "choices": [
                    {"index": 0, "text": "x", "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": n, "completion_tokens": 1, "total_tokens": n + 1}}))

            def log_message(self, *_):
                pass
        return Handler

    # --- its cache

    def hash_of(self, number):
        """Integers of either sign, or 32 bytes; `number` tells blocks apart."""
        value = (number * 0x9E3779B97F4A7C15 + 1) % 2**64
        if self.is_bytes:
            return bytes(24) + value.to_bytes(8, "big")
        return value - 2**64 if self.kind == "sglang" and value >= 2**63 else value

    @property
    def digest(self):
        total = 0
        for number in self.cache:
            total ^= (number * 0x9E3779B97F4A7C15 + 1) % 2**64
        return f"{total:016x}"

    def use(self, numbers, parent):
        """A run of blocks is used: the events of that."""
        removed, stored = [], []
        for number in numbers:
            if number in self.cache:
                self.cache.move_to_end(number)
                continue
            if len(self.cache) == self.n_blocks:
                removed.append(self.shapes.remove([self.hash_of(self.cache.popitem(last=False)[0])], "GPU"))
            self.cache[number] = True
            stored.append(self.hash_of(number))
        return removed + ([self.shapes.store(stored, parent, self.block_size, "GPU")] if stored else [])

    def step(self, n=4, n_different=2000):
        """A few runs of blocks are used: the events of that."""
        events = []
        for _ in range(n):
            first = self.random.randrange(n_different) * 4
            events += self.use(range(first, first + 4), self.hash_of(first - 1) if first else None)
        return events

    def blocks_of(self, prompt):
        """Numbers of its full blocks, which tell its beginnings apart."""
        size = self.block_size * CHARS
        return [2**32 + zlib.crc32(prompt[:end].encode()) for end in range(size, len(prompt) + 1, size)]

    def compute(self, prompt):
        with self.lock:
            events = self.use(self.blocks_of(prompt), None)
            if events:
                self.publish(events)

    def holds(self, prompt):
        """Tokens of the prompt's beginning that are cached."""
        with self.lock:
            held = itertools.takewhile(self.cache.__contains__, self.blocks_of(prompt))
            return self.block_size * len(list(held))

    def publish(self, events, is_sent=True):
        self.publisher.queue.put((self.shapes.batch(time.time(), events, 0), is_sent))

    def work(self, n_batches, is_sent=True, **more):
        for _ in range(n_batches):
            with self.lock:
                self.publish(self.step(**more), is_sent)

    def clear(self):
        self.cache.clear()
        self.publish([self.shapes.cleared()])

    def restart(self, **more):
        """Another process: empty, at 0."""
        self.publisher.end()
        self.cache.clear()
        self.started = time.time()
        self.more |= more
        self.publisher = Publisher(self.context, *self.ports, **self.more)

    def end(self):
        self.publisher.end()
        self.server.shutdown()
        self.server.server_close()
        self.context.destroy(linger=0)
