"""Every expression of the dashboard and of the alerts, asked of Prometheus after 20 seconds of a live fleet.

`make dashboards-check`. Two routers before three workers, one of them on the CPU; requests with openings in common, streams,
more than the workers can take, one worker killed and back: so that everything that is counted has been. An expression
without a series, or with nothing but NaN, fails; of an alert what is compared is asked. All of it on loopback.
"""
import json
import math
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import promql
from conftest import DEMO_MODEL, ROOT, Router, Worker, http, started_programs, wait_for

SECONDS = 20
TABLES = [" ".join(f"row{t} {i} of a table that many ask about" for i in range(40)) for t in range(6)]


def port_below(limit=32768):
    """One that the system does not give to others meanwhile."""
    while True:
        port = random.randrange(20000, limit)
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Prometheus:
    def __init__(self, folder, routers, workers):
        self.url = f"http://127.0.0.1:{port_below()}"
        jobs = [("incipit-router", [r.admin_url for r in routers]), ("incipit-worker", [w.url for w in workers])]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [str(ROOT / "deploy/prometheus/rules.yaml")],
                  "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [u.split("://")[1] for u in urls]}]}
                                     for job, urls in jobs]}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                         f"--web.listen-address={self.url.split('://')[1]}", "--log.level=warn"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_for(self.is_ready, "prometheus")

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(self.process.stderr.read())
        try:
            return urllib.request.urlopen(self.url + "/-/ready", timeout=2).status == 200
        except OSError:
            return False

    def api(self, path, **fields):
        query = "?" + urllib.parse.urlencode(fields) if fields else ""
        return json.loads(http(f"{self.url}/api/v1/{path}{query}").body)

    def values(self, expression):
        answer = self.api("query", query=expression)
        assert answer["status"] == "success", answer
        return [float(r["value"][1]) for r in answer["data"]["result"]]

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def ask(router, model, rng, until):
    """One client after another until it is over; what goes wrong on purpose is no concern of theirs."""
    while time.monotonic() < until:
        body = {"model": model, "prompt": rng.choice(TABLES) + f" question {rng.randrange(99)}", "max_tokens": rng.choice([2, 8, 40]),
                "stream": rng.random() < 0.6, "ignore_eos": True}
        try:
            http(router.url + "/v1/completions", body, timeout=15)
        except OSError:
            pass


def leave_early(router, model):
    with socket.create_connection(("127.0.0.1", int(router.url.rsplit(":", 1)[1]))) as s:
        body = json.dumps({"model": model, "prompt": TABLES[0], "max_tokens": 400, "stream": True, "ignore_eos": True})
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        s.recv(10)


def traffic(routers, workers, programs, sim_args):
    until = time.monotonic() + SECONDS
    models = [(routers[0], m) for m in ["sim"] * 24 + ["incipit-demo"]] + [(routers[1], m) for m in ["sim"] * 8 + ["incipit-demo"]]
    clients = [threading.Thread(target=ask, args=(r, m, random.Random(i), until), daemon=True) for i, (r, m) in enumerate(models)]
    for c in clients:
        c.start()
    time.sleep(SECONDS * 0.3)
    port = workers[0].url.rsplit(":", 1)[1]
    workers[0].stop(signal.SIGKILL)  # what it streamed breaks off; what it had not answered is tried again
    time.sleep(SECONDS * 0.2)
    programs(Worker, *sim_args, port=port).ready()
    leave_early(routers[0], "sim")
    for c in clients:
        c.join(SECONDS + 30)


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj",
                    "/CN=localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)


def start_fleet(programs, folder):
    sim_args = ["--backend", "sim", "--sim-speed", 2, "--served-model-name", "sim", "--max-num-seqs", 4, "--kv-offload-bytes", "64MiB",
                "--kv-events", "--kv-file", folder / "kv", "--kv-file-bytes", "1GiB"]
    workers = [programs(Worker, *sim_args).ready() for _ in range(2)]
    workers.append(programs(Worker, DEMO_MODEL, "--backend", "cpu", "--served-model-name", "incipit-demo", "--threads", 1,
                            "--kv-cache-memory-bytes", "64MiB").ready())
    urls = [w.url for w in workers]
    seed = folder / "seed.yaml"
    seed.write_text("prefix-hash-seed: of-both\n")
    make_certificate(folder)
    routers = [programs(Router, "--config", seed, "--worker-urls", *urls[1:], "--worker-dns", urls[0].split("://")[1],
                        "--threads", 1, "--queue-size", 12, "--session-admission", "auto", "--kv-events", "on",
                        "--decision-log", folder / "decisions").ready(3),
               programs(Router, "--config", seed, "--worker-urls", *urls, "--threads", 1, "--worker-cert", folder / "cert.pem",
                        "--worker-key", folder / "key.pem").ready(3)]
    return sim_args, workers, routers


def complaints(prometheus):
    """What is wrong with each expression, on a line."""
    _, panels = promql.panels(ROOT)
    asked = [(f"panel '{p['title']}'", promql.filled_in(t["expr"], f"{SECONDS + 5}s").replace(" or vector(0)", ""))
             for p in panels for t in p["targets"]]
    asked += [(f"alert {name}", promql.without_comparison(e)) for name, e in promql.rules(ROOT).items()]
    for title, expression in asked:
        values = prometheus.values(expression)
        if not values:
            yield f"{title}: no series: {expression}"
        elif all(math.isnan(v) for v in values):
            yield f"{title}: nothing but NaN: {expression}"
    for group in prometheus.api("rules")["data"]["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                yield f"alert {rule['name']}: {rule['health']}: {rule.get('lastError')}"
    print(f"{len(asked)} expressions of {len(panels)} panels and {len(promql.rules(ROOT))} alerts asked")


def main():
    for tool in ("prometheus", "openssl"):
        if not shutil.which(tool):
            print(f"SKIPPED dashboards-check: {tool} is not installed: make deps-deploy")
            return 0
    with tempfile.TemporaryDirectory() as name, started_programs() as programs:
        folder = pathlib.Path(name)
        sim_args, workers, routers = start_fleet(programs, folder)
        prometheus = Prometheus(folder, routers, workers)
        try:
            traffic(routers, workers, programs, sim_args)
            time.sleep(2)  # two more scrapes
            found = list(complaints(prometheus))
        finally:
            prometheus.stop()
    print("\n".join(found) or "each has its series")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
