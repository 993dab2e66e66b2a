"""--model org/name against a scripted hub on loopback: cache layout, resumption, and what goes wrong.

The hub has the API, sizes and hashes; large files it redirects to another server, the store, as the
real one does. Both remember what they were asked.
"""
import fcntl
import hashlib
import http.server
import json
import os
import re
import socket
import struct
import subprocess
import threading

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Program, wait_for

NAME, COMMIT = "acme/tiny-chat", "0123456789abcdef0123456789abcdef01234567"
REPO = "models--acme--tiny-chat"
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
ARGS = ("--port", "0", "--max-model-len", "256", "--num-gpu-blocks-override", "64", "--threads", "1")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Server:
    """An HTTP/1.1 server whose answers are `answer(request)`: (code, headers, body[, cut after])."""

    def __init__(self):
        self.seen, self.lock = [], threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with outer.lock:
                    outer.seen.append((self.command, self.path, dict(self.headers.items())))
                code, headers, body, *cut = outer.answer(self)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(body[:cut[0]] if cut else body)
                if cut:
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)

            do_HEAD = do_GET

            def log_message(self, *args):
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def asked(self, path_part, method="GET"):
        with self.lock:
            return [s for s in self.seen if path_part in s[1] and s[0] == method]

    def stop(self):
        self.httpd.shutdown()
        self.httpd.server_close()


class Store(Server):
    """Where large files lie. `cuts`: how many bytes each coming answer gives before it breaks off."""

    def __init__(self, files):
        self.files, self.cuts, self.ranges_work, self.hold = files, [], True, None
        super().__init__()

    def answer(self, request):
        data = self.files[request.path.split("?")[0].strip("/")]
        first = 0
        if self.hold:
            self.hold.wait(PATIENCE_S)
        if "Range" in request.headers and self.ranges_work:
            first = int(re.match(r"bytes=(\d+)-$", request.headers["Range"])[1])
        headers = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if first else {}
        cut = [self.cuts.pop(0)] if self.cuts else []
        return (206 if first else 200, headers, data[first:], *cut)


class Hub(Server):
    def __init__(self, files, large):
        self.files, self.large = files, large
        self.store = Store(dict(files))
        self.names, self.refuses, self.claims = list(files), None, {}
        self.redirects_to = self.store.url
        super().__init__()

    def answer(self, request):
        path = request.path
        if self.refuses and self.refuses[2] in path:
            return self.refuses[0], {"X-Error-Code": self.refuses[1]}, b"{}"
        if path.startswith(f"/api/models/{NAME}/revision/"):
            if path.rsplit("/", 1)[1] not in ("main", "v1.0", COMMIT):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
            siblings = [{"rfilename": n} for n in self.names]
            return 200, {}, json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
        prefix = f"/{NAME}/resolve/{COMMIT}/"
        if not path.startswith(prefix) or path[len(prefix):] not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        name = path[len(prefix):]
        data = self.files[name]
        if name in self.large:
            digest, size = self.claims.get(name, (sha256(data), len(data)))
            return 302, {"Location": f"{self.redirects_to}/{name}?signature=x",
                         "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(size)}, b""
        digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return 200, {"ETag": f'W/"{digest}"', "Content-Length": str(len(data))}, data

    def stop(self):
        self.store.stop()
        super().stop()


def demo_files():
    return {n: (DEMO_MODEL / n).read_bytes() for n in (*SMALL, "model.safetensors")}


@pytest.fixture
def hub():
    hub = Hub(demo_files() | {"README.md": b"# not read"}, {"model.safetensors"})
    yield hub
    hub.stop()


def environment(hub, cache, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    return env | {"HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", "HF_HUB_CACHE": str(cache),
                  "HOME": str(cache)} | more


class Worker(Program):
    """conftest's, with an environment of its own."""

    def __init__(self, env, *args):
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(env)
        try:
            super().__init__("incipit-worker", [*ARGS, *args])
        finally:
            os.environ.clear()
            os.environ.update(before)

    def ready(self):
        self.url = f"http://127.0.0.1:{self.field('worker_ready', 'port')}"
        return self


def fails(env, *args):
    """Its sentence and its exit code."""
    done = subprocess.run([str(BUILD / "incipit-worker"), *ARGS, *args], env=env, capture_output=True,
                          text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0, done.stderr
    return done.stderr.strip().splitlines()[-1], done.returncode


def start(programs, hub, cache, *args, **env):
    return programs(Worker, environment(hub, cache, **env), "--model", NAME, *args).ready()


def test_a_model_is_fetched_once_into_the_layout_of_the_hub_cache(programs, hub, tmp_path):
    worker = start(programs, hub, tmp_path)
    assert worker.get("/v1/models").json["data"][0]["id"] == NAME
    assert worker.post("/v1/completions", {"model": NAME, "prompt": "Hello", "max_tokens": 2}).code == 200
    repo = tmp_path / REPO
    assert (repo / "refs/main").read_text() == COMMIT
    weights = repo / "snapshots" / COMMIT / "model.safetensors"
    assert os.readlink(weights) == f"../../blobs/{sha256(hub.files['model.safetensors'])}"
    assert sorted(p.name for p in weights.parent.iterdir()) == sorted([*SMALL, "model.safetensors"])
    assert not list(tmp_path.rglob("*.incomplete")) and not list(tmp_path.rglob("*.new"))
    assert not hub.asked("README.md")
    worker.stop()
    n = len(hub.seen)
    start(programs, hub, tmp_path).stop()  # from the cache: no request is sent
    assert len(hub.seen) == n
    start(programs, None, tmp_path, "--offline").stop()


def test_an_interrupted_download_resumes(programs, hub, tmp_path):
    hub.store.cuts = [1_000_000, 1, 2_000_000]
    start(programs, hub, tmp_path).stop()
    ranges = [s[2].get("Range") for s in hub.store.seen]
    assert ranges == [None, "bytes=1000000-", "bytes=1000001-", "bytes=3000001-"]


def test_a_later_start_resumes_an_earlier_download(programs, hub, tmp_path):
    data = hub.files["model.safetensors"]
    (tmp_path / REPO / "blobs").mkdir(parents=True)
    (tmp_path / REPO / "blobs" / f"{sha256(data)}.incomplete").write_bytes(data[:4_000_000])
    start(programs, hub, tmp_path).stop()
    assert [s[2].get("Range") for s in hub.store.seen] == ["bytes=4000000-"]


def test_a_server_without_ranges_is_asked_for_all_of_it(programs, hub, tmp_path):
    hub.store.cuts, hub.store.ranges_work = [3_000_000], False
    start(programs, hub, tmp_path).stop()
    assert len(hub.store.seen) == 2


def test_a_connection_that_brings_nothing_is_given_up(hub, tmp_path):
    hub.store.cuts = [1000] + [0] * 20
    errors, code = fails(environment(hub, tmp_path), "--model", NAME)
    assert code == 1 and "model.safetensors" in errors
    assert len(hub.store.seen) == 6  # one that brought something, five that did not


def test_damaged_content_is_refused_and_removed(programs, hub, tmp_path):
    good = hub.store.files["model.safetensors"]
    hub.store.files["model.safetensors"] = good[:-1] + bytes([good[-1] ^ 1])
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "SHA-256" in errors and sha256(good) in errors and "removed" in errors
    assert not list(tmp_path.rglob("*.incomplete")) and not list(tmp_path.rglob("refs/main"))
    hub.store.files["model.safetensors"] = good
    start(programs, hub, tmp_path).stop()


def test_more_than_was_declared_is_refused(hub, tmp_path):
    hub.store.files["model.safetensors"] += b"more"
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "longer than" in errors


def test_the_token_goes_to_the_endpoint_alone(programs, hub, tmp_path):
    start(programs, hub, tmp_path, HF_TOKEN="hf_secret").stop()
    assert all(s[2].get("Authorization") == "Bearer hf_secret" for s in hub.seen)
    assert hub.store.seen and not any("Authorization" in s[2] for s in hub.store.seen)


def test_the_token_may_be_in_the_file_of_other_tools(programs, hub, tmp_path):
    (tmp_path / "token").write_text("hf_filed\n")
    start(programs, hub, tmp_path / "hub", HF_HOME=str(tmp_path)).stop()
    assert all(s[2].get("Authorization") == "Bearer hf_filed" for s in hub.seen)


@pytest.mark.parametrize("refuses, token, words", [
    ((401, "GatedRepo", "/api/"), None, ["gated", "401", "accept its terms", "HF_TOKEN"]),
    ((401, "RepoNotFound", "/api/"), None, ["neither a folder", "401", "HF_TOKEN"]),
    ((403, "GatedRepo", "/resolve/"), "hf_x", ["gated", "403", "the token in HF_TOKEN"]),
    ((401, "", "/api/"), "hf_x", ["the token in HF_TOKEN may not read it"]),
    ((404, "RepoNotFound", "/api/"), None, [f"neither a folder {NAME}", "404"]),
])
def test_a_refusal_names_the_remedy(hub, tmp_path, refuses, token, words):
    hub.refuses = refuses
    env = environment(hub, tmp_path, **({"HF_TOKEN": token} if token else {}))
    errors, _ = fails(env, "--model", NAME)
    assert all(w in errors for w in words), errors
    assert "hf_x" not in errors


def test_a_revision_has_a_ref_of_its_own(programs, hub, tmp_path):
    start(programs, hub, tmp_path, "--revision", "v1.0").stop()
    assert (tmp_path / REPO / "refs/v1.0").read_text() == COMMIT
    errors, code = fails(environment(hub, tmp_path), "--model", NAME, "--revision", "v2.0")
    assert "no revision 'v2.0'" in errors and code == 2
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME, "--revision", "../../etc")
    assert "is not a branch, tag or commit" in errors
    start(programs, None, tmp_path, "--revision", COMMIT, "--offline").stop()


def test_offline_names_the_missing_files(programs, hub, tmp_path):
    for env, args in ((environment(hub, tmp_path), ["--offline"]),
                      (environment(hub, tmp_path, HF_HUB_OFFLINE="1"), [])):
        errors, code = fails(env, "--model", NAME, *args)
        assert "not in the cache" in errors and "offline" in errors and code == 2
    assert not hub.seen
    start(programs, hub, tmp_path).stop()
    (tmp_path / REPO / "snapshots" / COMMIT / "model.safetensors").unlink()
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME, "--offline")
    assert "model.safetensors" in errors
    start(programs, hub, tmp_path).stop()  # online it is linked again


def test_a_model_larger_than_the_disk_is_refused_in_figures(hub, tmp_path):
    hub.claims["model.safetensors"] = ("ab" * 32, 1 << 49)
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "does not fit on the disk" in errors and "GiB free" in errors and "--download-dir" in errors
    hub.claims["model.safetensors"] = ("ab" * 32, (1 << 64) - 1)  # would wrap around to nothing
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "no valid ETag or size for model.safetensors" in errors
    assert not hub.store.seen


def test_a_folder_that_cannot_be_written_is_named(hub, tmp_path):
    (tmp_path / "file").write_text("")
    errors, _ = fails(environment(hub, tmp_path / "file" / "cache"), "--model", NAME)
    assert str(tmp_path / "file") in errors and "--download-dir" in errors


def test_redirects_end_and_stay_within_bounds(hub, tmp_path):
    hub.redirects_to = "http://192.0.2.1"  # an address for examples: no request may go there
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "not https" in errors
    hub.store.answer = lambda request: (302, {"Location": f"{hub.store.url}/again"}, b"")
    hub.redirects_to = hub.store.url
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "redirects more than 5 times" in errors
    errors, _ = fails(environment(hub, tmp_path) | {"HF_ENDPOINT": "http://192.0.2.1"}, "--model", NAME)
    assert "HF_ENDPOINT" in errors and "https" in errors


def test_two_that_start_at_once_fetch_it_once(programs, hub, tmp_path):
    hub.store.hold = threading.Event()
    workers = [programs(Worker, environment(hub, tmp_path), "--model", NAME) for _ in range(2)]
    wait_for(lambda: any("waiting for the other process" in w.log for w in workers), "one to wait for the other")
    hub.store.hold.set()
    for worker in workers:
        worker.ready().stop()
    assert len(hub.store.seen) == 1


def test_a_lock_of_another_tool_is_respected(programs, hub, tmp_path):
    digest = sha256(hub.files["model.safetensors"])
    locks = tmp_path / ".locks" / REPO
    locks.mkdir(parents=True)
    with open(locks / f"{digest}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        worker = programs(Worker, environment(hub, tmp_path), "--model", NAME)
        wait_for(lambda: "waiting for the other process" in worker.log, "it to wait")
        assert not hub.store.seen
    worker.ready().stop()


def split(data):
    """A safetensors file as two shards, and their index."""
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    header.pop("__metadata__", None)
    names = sorted(header)
    files, index = {}, {}
    for i, part in enumerate((names[::2], names[1::2])):
        name, new, at, chunks = f"model-0000{i + 1}-of-00002.safetensors", {}, 0, []
        for tensor in part:
            begin, end = header[tensor]["data_offsets"]
            new[tensor] = dict(header[tensor], data_offsets=[at, at + end - begin])
            at += end - begin
            chunks.append(body[begin:end])
            index[tensor] = name
        text = json.dumps(new).encode()
        files[name] = struct.pack("<Q", len(text)) + text + b"".join(chunks)
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": index}).encode()
    return files


def test_shards_are_those_of_the_index(programs, tmp_path):
    files = demo_files()
    shards = split(files.pop("model.safetensors"))
    hub = Hub(files | shards | {"model-00009-of-00002.safetensors": b"not in the index"},
              {n for n in shards if n.endswith(".safetensors")})
    try:
        second = hub.files.pop("model-00002-of-00002.safetensors")
        errors, code = fails(environment(hub, tmp_path), "--model", NAME)
        assert "no file model-00002-of-00002.safetensors" in errors and code == 2
        hub.files["model-00002-of-00002.safetensors"] = second
        worker = start(programs, hub, tmp_path)
        worker.stop()
        assert "total_mib=0" not in worker.log  # nothing is logged before the total is known
        assert not hub.asked("model-00009")
        assert len(hub.store.seen) == 2
        (tmp_path / REPO / "snapshots" / COMMIT / "model-00002-of-00002.safetensors").unlink()
        errors, _ = fails(environment(None, tmp_path), "--model", NAME, "--offline")
        assert "model-00002-of-00002.safetensors is missing" in errors
    finally:
        hub.stop()


@pytest.mark.parametrize("files, words", [
    (("config.json", "tokenizer.json", "pytorch_model.bin"), ["save_pretrained", "*.bin", NAME]),
    (("config.json", "tokenizer.json", "x.Q4_K_M.gguf"), ["GGUF"]),
    (("config.json", "tokenizer.model", "model.safetensors"), ["no tokenizer.json"]),
    (("README.md",), ["no config.json"]),
])
def test_a_repository_without_required_files_is_refused_before_the_download(hub, tmp_path, files, words):
    hub.names = files
    errors, code = fails(environment(hub, tmp_path), "--model", NAME)
    assert all(w in errors for w in words), errors
    assert code == 2 and not hub.asked("/resolve/")


@pytest.mark.parametrize("index", [
    {"weight_map": {"a": "../../../../etc/passwd"}}, {"weight_map": {"a": "/etc/passwd"}},
    {"weight_map": {"a": 1}}, {"weight_map": []}, {},
])
def test_an_index_leads_nowhere_else(hub, tmp_path, index):
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.names = [*SMALL, "model.safetensors.index.json"]
    errors, _ = fails(environment(hub, tmp_path), "--model", NAME)
    assert "model.safetensors.index.json" in errors


def test_a_folder_comes_before_a_name(tmp_path):
    (tmp_path / "acme" / "tiny-chat").mkdir(parents=True)
    done = subprocess.run([str(BUILD.absolute() / "incipit-worker"), *ARGS, "--model", NAME], cwd=tmp_path,
                          env=environment(None, tmp_path), capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    assert "has no config.json" in done.stderr and done.returncode == 2


def test_an_endpoint_that_is_not_there_is_named(tmp_path):
    errors, code = fails(environment(None, tmp_path), "--model", NAME)
    assert "127.0.0.1:9" in errors and code == 1
