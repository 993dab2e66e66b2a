"""vLLM with MooncakeConnector, as far as a router sees it.

It follows vLLM 0.33 (kv_connector/v1/mooncake): an engine that prefills keeps a prompt's KV under the transfer id of the
request; one that decodes finds it by the engine's id at the bootstrap server, and waits for the id there. Ids of engines
are new at each start. With several data-parallel ranks behind one port, the header X-data-parallel-rank chooses one.

Faults beside those of pd_engines: unready (the bootstrap server has no engine yet), broken (its answer is no JSON).
"""
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from pd_engines import Engine, prompt_of


class MooncakeEngine(Engine):
    def __init__(self, fleet, name, mode="both", ranks=1, port=0):
        self.transfers = {}  # (engine id, transfer id) -> the prompt
        self.ids = self.published = self.fresh_ids(ranks)
        self.ranks = []  # that prompts were computed on
        super().__init__(fleet, name, "vllm", mode)
        self.bootstrap = None
        if mode != "decode":
            self.start_bootstrap(port)

    @staticmethod
    def fresh_ids(ranks):
        one = str(uuid.uuid4())
        return [one] if ranks == 1 else [f"{one}_dp{rank}" for rank in range(ranks)]

    def start_bootstrap(self, port=0):
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                engine.query(self)

        self.bootstrap = ThreadingHTTPServer((self.host, port), Handler)
        self.bootstrap.daemon_threads = True
        threading.Thread(target=self.bootstrap.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def bootstrap_port(self):
        return self.bootstrap.server_address[1]

    def stop_bootstrap(self):
        self.bootstrap.shutdown()
        self.bootstrap.server_close()

    def stop(self):
        super().stop()
        if self.bootstrap:
            self.stop_bootstrap()

    def restart(self):
        """Another process: other engines, no KV. The bootstrap server has the old ones until publish."""
        with self.fleet.lock:
            self.ids = self.fresh_ids(len(self.ids))
            self.transfers.clear()

    def publish(self):
        self.published = self.ids

    def query(self, handler):
        if handler.path != "/query":
            self.reply(handler, 404, {})
        elif "broken" in self.faults:
            self.reply(handler, 200, "<html>")
        else:
            ids = [] if "unready" in self.faults else self.published
            self.reply(handler, 200, {str(rank): {"engine_id": id, "worker_addr": {"0": {"0": "tcp://10.0.0.1:5555"}}}
                                      for rank, id in enumerate(ids)})

    def get(self, handler):
        if handler.path == "/metrics":
            self.text(handler, 200, 'vllm:num_requests_running{model_name="m"} 0\n', "text/plain")
        else:
            super().get(handler)

    def vllm(self, handler, body):
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            assert self.mode != "decode", "a consumer computes no prompt for others"
            self.compute(handler, body, params)
        elif params.get("do_remote_prefill"):
            assert self.mode != "prefill", "a producer takes no KV"
            self.take(handler, body, params)
        else:
            self.answer(handler, body, 0)

    def compute(self, handler, body, params):
        if body.get("max_tokens") != 1 or body.get("stream") or "stream_options" in body:
            self.error(handler, 400, "a prefill has one token and no stream")
            return
        rank = int(handler.headers.get("x-data-parallel-rank", 0))
        self.ranks.append(rank)
        with self.fleet.lock:
            self.transfers[self.ids[rank], params["transfer_id"]] = prompt_of(body)
            self.fleet.lock.notify_all()
        self.answer(handler, body, 8)

    def take(self, handler, body, params):
        """Waits for the KV, however long that takes (480 s), or until the client leaves."""
        try:
            with urlopen(params["remote_bootstrap_addr"] + "/query", timeout=10) as response:
                engines = [e["engine_id"] for e in json.loads(response.read()).values()]
        except (OSError, ValueError):
            engines = []
        source = self.fleet.engine_of(params["remote_engine_id"])
        if params["remote_engine_id"] not in engines or not source or "fetch" in self.faults:
            self.load_failed(handler, body)
            return
        key = params["remote_engine_id"], params["transfer_id"]
        self.wait(handler, lambda: key in source.transfers)
        assert source.transfers.pop(key) == prompt_of(body)
        self.answer(handler, body, 32)


class MooncakeFleet:
    """What the engines of a test share."""

    def __init__(self):
        self.lock = threading.Condition()
        self.engines = []

    def engine_of(self, id):
        return next((e for e in self.engines if id in e.ids), None)

    def stranded(self):
        """Prompts that were computed and not taken."""
        return sum(len(e.transfers) for e in self.engines)
