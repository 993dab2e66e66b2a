"""The word `healthcheck`: what a container image without a shell asks about itself."""
import os
import subprocess

from conftest import BUILD, Router, Worker, free_port, http


def ask(name, *args, **environment):
    return subprocess.run([BUILD / name, "healthcheck", *map(str, args)], capture_output=True, text=True,
                          timeout=30, env={**os.environ, **environment})


def test_a_worker_is_well_until_it_ends(programs):
    worker = programs(Worker, "--backend", "sim").ready()
    port = worker.url.rsplit(":", 1)[1]
    assert ask("incipit-worker", "--port", port).returncode == 0
    assert ask("incipit-worker", INCIPIT_PORT=port, INCIPIT_HOST="0.0.0.0").returncode == 0
    assert worker.stop() == 0
    asked = ask("incipit-worker", "--port", port)
    assert asked.returncode == 1 and f"http://127.0.0.1:{port}/livez: " in asked.stderr


def test_a_router_without_workers_is_alive_and_not_ready(programs):
    router = programs(Router, "--worker-urls", f"http://127.0.0.1:{free_port()}")
    url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    port = url.rsplit(":", 1)[1]
    assert ask("incipit-router", "--admin-port", port).returncode == 0
    assert http(url + "/readyz").code == 503
