"""Workers that a Kubernetes API server names, while it does what real ones were seen to do (and what networks do).

One scripted API server (kube_api.py), a herd of workers at 127.1.x.y, one router that watches, and clients who must not
notice: in each test requests flow from before to after, and none may fail.
"""
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import threading
import time

import pytest

from conftest import SANITIZER, Router, free_port, http, wait_for
from kube_api import ApiServer, Herd, LiveSet, kubeconfig, pod, slice_of

SELECTOR = "app=incipit-worker"


class Traffic:
    """Requests one after the other by a few clients; `failures` are those that were not answered with 200."""

    def __init__(self, url):
        self.url, self.failures, self.n = url, [], 0
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(3)]
        for thread in self.threads:
            thread.start()

    def _ask(self, who):
        while not self.over.is_set():
            try:
                answer = http(self.url + "/v1/completions", {"prompt": f"client {who} asks {self.n % 7}", "max_tokens": 1})
                if answer.code != 200:
                    self.failures.append(f"{answer.code} {answer.body[:300]}")
            except OSError as error:
                self.failures.append(repr(error))
            self.n += 1
            self.over.wait(0.01)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(60)


class Cluster:
    """API server, workers, token and CA files, and in the end a router. Workers are called w-1, w-2 ..."""

    def __init__(self, programs, tmp_path, *args):
        self.programs = programs
        self.api = ApiServer(*args)
        self.herd = Herd(5)
        self.token, self.ca = tmp_path / "token", tmp_path / "ca.pem"
        self.token.write_text("first\n")
        self.ca.write_bytes(self.api.ca.read_bytes())
        self.api.command("tokens", tokens=["first"])
        self.traffic = None

    def close(self):
        if self.traffic:
            self.traffic.stop()
        self.herd.stop()
        self.api.stop()

    def ip(self, n):
        return f"127.1.{n // 250}.{n % 250 + 1}"

    def url(self, n):
        return f"http://{self.ip(n)}:{self.herd.port}"

    def pod(self, n, **more):
        return pod(f"w-{n}", self.ip(n), port=self.herd.port, **more)

    def join(self, *numbers):
        """Their processes begin, then the kubelet reports that they are ready."""
        for n in numbers:
            self.herd.up(self.ip(n))
        self.api.put(*(self.pod(n) for n in numbers))

    def leave(self, *numbers):
        """As with a scale-down: asked to end, ended, gone."""
        for n in numbers:
            self.api.command("delete", name=f"w-{n}")
        for n in numbers:
            self.herd.leave(self.ip(n))
        for n in numbers:
            self.api.command("forget", name=f"w-{n}")

    def start(self, *args, first=(1, 2), flags=None):
        self.join(*first)
        if flags is None:
            flags = ["--k8s-api-server", self.api.url, "--k8s-token-file", self.token, "--k8s-ca-file", self.ca,
                     "--k8s-namespace", "default", "--k8s-selector", SELECTOR]
        self.router = self.programs(Router, "--service-discovery", "k8s", *flags, "--probe-interval", "100ms", *args)
        self.router.ready(len(first))
        self.expect(*first)
        self.traffic = Traffic(self.router.url)
        wait_for(lambda: self.traffic.n > 3, "the first answers")
        return self.router

    def workers(self):
        """{url: status}"""
        return {w["url"]: w["status"] for w in self.router.workers()["workers"]}

    def used(self):
        return {url for url, status in self.workers().items() if status == "ready"}

    def expect(self, *numbers):
        """These are used, in a moment, and no others."""
        urls = {self.url(n) for n in numbers}
        try:
            wait_for(lambda: self.used() == urls, f"the workers {numbers}")
        except AssertionError:
            lines = [line for line in self.router.lines if " request " not in line]
            raise AssertionError(f"{self.workers()} instead of {sorted(urls)}\n{''.join(lines[-30:])}") from None

    def keeps(self, *numbers, for_s=1.0):
        """These are used all the while."""
        urls, end = {self.url(n) for n in numbers}, time.monotonic() + for_s
        while time.monotonic() < end:
            assert self.used() == urls
            time.sleep(0.05)

    def stats(self):
        return self.api.stats()

    def watching(self):
        wait_for(lambda: self.stats()["open_watches"] == 1, "the watch")

    def calls(self):
        return [(c["verb"], c["target"]) for c in self.api.command("calls")["calls"]]

    def nothing_failed(self):
        before = self.traffic.n
        wait_for(lambda: self.traffic.n > before + 6, "more answers")
        self.traffic.stop()
        assert not self.traffic.failures, f"{len(self.traffic.failures)} of {self.traffic.n}: {self.traffic.failures[:3]}"


@pytest.fixture
def cluster(programs, tmp_path):
    made = Cluster(programs, tmp_path)
    yield made
    made.close()


# --- what a cluster does ------------------------------------------------------------------------------------------


def test_pods_that_come_are_used_and_those_that_go_are_drained_and_forgotten(cluster):
    cluster.start()
    cluster.join(3, 4)
    cluster.expect(1, 2, 3, 4)
    cluster.leave(1, 3)
    cluster.expect(2, 4)
    wait_for(lambda: len(cluster.workers()) == 2, "the others to be forgotten")
    cluster.nothing_failed()


def test_a_pod_that_is_not_ready_any_more_is_not_used_until_it_is(cluster):
    cluster.start()
    cluster.api.put(cluster.pod(2, ready=False))
    cluster.expect(1)
    cluster.api.put(cluster.pod(2))
    cluster.expect(1, 2)
    cluster.nothing_failed()


def test_a_graceful_delete_drains_at_the_modified_event_long_before_deleted(cluster):
    cluster.start()
    cluster.api.command("delete", name="w-2")
    cluster.expect(1)
    assert cluster.api.names() == ["w-1", "w-2"], "it is still there"
    cluster.herd.leave(cluster.ip(2))
    cluster.api.command("forget", name="w-2")
    wait_for(lambda: len(cluster.workers()) == 1, "it to be forgotten")
    cluster.nothing_failed()


def test_a_forced_delete_is_modified_and_deleted_at_once(cluster):
    cluster.start()
    cluster.api.command("force", name="w-1")
    cluster.expect(2)
    wait_for(lambda: len(cluster.workers()) == 1, "it to be forgotten")
    cluster.nothing_failed()


def test_removing_a_label_removes_the_worker_of_a_running_pod(cluster):
    cluster.start()
    cluster.api.command("patch", name="w-1", patch={"metadata": {"labels": {"app": "retired"}}})
    cluster.expect(2)
    cluster.api.command("patch", name="w-1", patch={"metadata": {"labels": {"app": "incipit-worker"}}})
    cluster.expect(1, 2)
    cluster.nothing_failed()


def test_a_pod_without_an_address_or_that_has_ended_is_no_worker(cluster):
    cluster.start()
    cluster.api.put(pod("pending"), cluster.pod(2, phase="Failed"))
    cluster.expect(1)
    cluster.nothing_failed()


def test_another_pod_at_the_same_address_is_another_worker_with_a_cold_cache(cluster):
    router = cluster.start()
    wait_for(lambda: router.workers()["stats"]["index_entries"] > 0, "prefixes of the workers")

    def ids():
        return {w["url"]: w["worker_id"] for w in router.workers()["workers"]}
    before = ids()
    cluster.watching()
    cluster.api.command("listen", on=False)
    cluster.api.command("watches", act="cut")
    cluster.api.command("force", name="w-1")
    cluster.api.put(cluster.pod(1, uid="another"))
    cluster.api.command("compact")  # so no watch can report any more that the one before has gone
    cluster.api.command("listen", on=True)
    wait_for(lambda: re.search(r"worker_replaced .*uid=another", router.log), "the log line")
    cluster.expect(1, 2)
    cluster.api.command("force", name="w-1")
    cluster.api.put(cluster.pod(1, uid="a-third"))
    cluster.expect(1, 2)
    assert ids()[cluster.url(2)] == before[cluster.url(2)]
    cluster.nothing_failed()


def test_one_pod_with_many_ports_is_many_workers(cluster):
    cluster.start()
    other = free_port()
    with contextlib.closing(Herd(1, other)) as more:
        more.up(cluster.ip(9))
        cluster.herd.up(cluster.ip(9))
        cluster.api.put(pod("w-9", cluster.ip(9), annotations={"incipit.dev/ports": f"{cluster.herd.port},{other}"}))
        wait_for(lambda: {cluster.url(9), f"http://{cluster.ip(9)}:{other}"} <= cluster.used(), "both of its ports")
        cluster.api.command("force", name="w-9")
        cluster.expect(1, 2)
        cluster.nothing_failed()


# --- what its API server does on the wire ---------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [
    {"chunk_bytes": 2048, "record_bytes": 4096},
    {"chunk_bytes": 2048, "record_bytes": 4096, "is_ragged": True},
    {"chunk_bytes": 7, "record_bytes": 100, "is_ragged": True},
    {"chunk_bytes": 100000, "record_bytes": 16384},
], ids=["as-recorded", "cut-anywhere", "cut-small", "whole"])
def test_events_arrive_however_chunks_and_records_cut_them(cluster, wire):
    cluster.api.command("set", **wire)
    cluster.start()
    for n in range(3, 13):
        cluster.herd.up(cluster.ip(n))
        note = {"note": "\u00fc\"\\{}[],:" * (n * 150)}  # up to 20 KiB of what a scanner may stumble over
        cluster.api.put(cluster.pod(n, annotations=note))
    cluster.expect(*range(1, 13))
    cluster.leave(3, 5, 7)
    cluster.expect(1, 2, 4, 6, 8, 9, 10, 11, 12)
    cluster.nothing_failed()


def test_an_event_in_single_bytes_is_one_event(cluster):
    cluster.start()
    cluster.watching()
    cluster.api.command("set", record_bytes=150, drip_us=1000, chunk_bytes=33)
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_after_a_bookmark_the_watch_goes_on_from_there(cluster):
    cluster.start()
    cluster.watching()
    cluster.calls()
    for i in range(5):  # changes that the selector does not see: only a bookmark has the version
        cluster.api.put(pod(f"else-{i}", labels={"app": "other"}))
    rv = cluster.api.command("watches", act="bookmark")["rv"]
    cluster.api.command("watches", act="cut")
    cluster.watching()
    verb, target = cluster.calls()[0]
    assert verb == "watch" and f"resourceVersion={rv}&" in target + "&"
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_a_watch_whose_time_is_over_goes_on_over_the_same_connection_without_a_list(cluster):
    cluster.api.command("set", max_watch_ms=400, bookmark_before_end_ms=200)
    cluster.start()
    before = cluster.stats()
    wait_for(lambda: cluster.stats()["watches"] >= before["watches"] + 2, "other watches")
    cluster.join(3)
    cluster.expect(1, 2, 3)
    after = cluster.stats()
    assert after["lists"] == before["lists"]
    assert after["connections"] <= before["connections"] + 1
    cluster.nothing_failed()


def test_an_expired_version_inside_a_200_causes_a_new_list(cluster):
    cluster.start()
    cluster.watching()
    cluster.api.command("listen", on=False)
    cluster.api.command("watches", act="cut")
    cluster.join(3)
    cluster.leave(1)
    cluster.api.command("compact")
    lists = cluster.stats()["lists"]
    cluster.api.command("listen", on=True)
    cluster.expect(2, 3)
    assert cluster.stats()["lists"] > lists
    cluster.nothing_failed()


def test_an_open_watch_may_receive_410(cluster):
    cluster.start()
    cluster.watching()
    lists = cluster.stats()["lists"]
    cluster.api.command("watches", act="gone")
    cluster.join(3)
    cluster.expect(1, 2, 3)
    assert cluster.stats()["lists"] == lists + 1
    cluster.nothing_failed()


def test_a_continue_that_has_expired_begins_the_list_again(cluster):
    cluster.api.put(*(pod(f"pending-{i}") for i in range(600)))
    cluster.api.command("set", limits_cached_lists=True)
    cluster.api.command("answer", on="list", skip=1, status=410, reason="Expired", message="The provided continue ...")
    cluster.start()
    lists = [target for verb, target in cluster.calls() if verb == "list"]
    assert len(lists) == 4 and "continue=" in lists[1] and "continue=" not in lists[2] and "continue=" in lists[3]
    cluster.nothing_failed()


def test_a_list_from_the_future_is_tried_again_after_its_retry_after(cluster):
    cluster.api.command("answer", on="list", status=504, reason="Timeout", cause="ResourceVersionTooLarge", retry_after=1,
                        message="Too large resource version: 9, current: 5", after_ms=300)
    began = time.monotonic()
    cluster.start()
    assert time.monotonic() - began > 1
    cluster.nothing_failed()


def test_a_watch_that_was_blind_is_followed_by_a_list(cluster):
    cluster.start()
    cluster.watching()
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.api.command("set", max_watch_ms=1000)
    cluster.api.command("rewind", rv=900)  # restored from a backup: the router's version is of the future
    cluster.api.command("watches", act="cut")
    cluster.watching()
    cluster.leave(1)
    cluster.join(4)
    cluster.expect(2, 3, 4)
    cluster.nothing_failed()


def test_forbidden_is_reported_with_the_missing_role_and_changes_nothing(cluster):
    router = cluster.start()
    cluster.watching()
    cluster.api.command("forbid", verb="list")
    cluster.api.command("watches", act="gone")
    wait_for(lambda: "kube_forbidden" in router.log, "the log line")
    line = next(line for line in router.log.splitlines() if "kube_forbidden" in line)
    assert 'cannot list resource' in line and "kind: Role," in line and "resources: [pods], verbs: [list, watch]" in line
    assert "system:serviceaccount" in line and "--serviceaccount=default:incipit-router" in line
    cluster.keeps(1, 2)
    cluster.nothing_failed()


def test_a_server_that_begins_again_and_forbids_at_first_is_followed_at_once(cluster):
    router = cluster.start()
    cluster.watching()
    for n in (3, 4, 5):
        cluster.api.command("die")
        for verb in ("list", "watch"):
            cluster.api.command("forbid", verb=verb)
        cluster.api.command("listen", on=True)
        requests = cluster.stats()["requests"]
        wait_for(lambda: cluster.stats()["requests"] > requests, "a refusal")  # noqa: B023
        time.sleep(1)  # a real server has read its Roles by then
        for verb in ("list", "watch"):
            cluster.api.command("forbid", verb=verb, on=False)
        began = time.monotonic()
        cluster.join(n)
        cluster.expect(1, 2, *range(3, n + 1))
        took_s = time.monotonic() - began
        print(f"event to effect after a restart: {took_s:.2f} s")
        assert took_s < 10, "a pause of half a minute"
    wait_for(lambda: router.log.count("kube_watch_resumed") >= 3, "a line for each restart")
    cluster.nothing_failed()


def test_a_token_that_is_changed_in_mid_watch_is_shown_from_then_on(cluster):
    cluster.start()
    cluster.watching()
    fresh = cluster.token.with_suffix(".new")
    fresh.write_text("second\n")
    os.replace(fresh, cluster.token)
    cluster.api.command("tokens", tokens=["second"])
    cluster.join(3)
    cluster.expect(1, 2, 3)  # the old watch goes on
    cluster.api.command("watches", act="cut")
    cluster.watching()
    cluster.join(4)
    cluster.expect(1, 2, 3, 4)
    assert cluster.stats()["unauthorized"] == 0
    cluster.nothing_failed()


def test_after_401_the_token_that_comes_late_is_found(cluster):
    router = cluster.start()
    cluster.watching()
    cluster.api.command("tokens", tokens=["second"])
    cluster.api.command("watches", act="cut")
    wait_for(lambda: cluster.stats()["unauthorized"] >= 2, "refusals")
    wait_for(lambda: "kube_unauthorized" in router.log, "the log line")
    cluster.keeps(1, 2, for_s=0.3)
    cluster.token.write_text("second\n")
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_a_server_that_shuts_down_keeps_its_watches_and_refuses_new_ones(cluster):
    cluster.start()
    cluster.watching()
    cluster.api.command("listen", on=False)
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.api.command("watches", act="end")
    cluster.keeps(1, 2, 3)
    cluster.join(4)
    cluster.api.command("listen", on=True)
    cluster.expect(1, 2, 3, 4)
    cluster.nothing_failed()


def test_a_server_that_is_killed_is_an_eof_in_mid_chunk_and_the_watch_resumes_from_the_last_version(cluster):
    router = cluster.start()
    cluster.watching()
    cluster.join(3)
    cluster.expect(1, 2, 3)
    lists = cluster.stats()["lists"]
    cluster.api.command("die")
    cluster.join(4)
    wait_for(lambda: "kube_watch_lost" in router.log, "the log line")
    cluster.keeps(1, 2, 3, for_s=0.5)
    cluster.api.command("listen", on=True)
    cluster.expect(1, 2, 3, 4)
    assert cluster.stats()["lists"] == lists, "a watch delivers what was missed"
    cluster.nothing_failed()


@pytest.mark.parametrize("how", ["reset", "close", "stall"])
def test_a_watch_that_breaks_and_connections_that_do_not_come_about_change_nothing(cluster, how):
    cluster.start()
    cluster.watching()
    cluster.api.command("accept", how=how)
    cluster.api.command("watches", act="reset")
    cluster.join(3)
    connections = cluster.stats()["connections"]
    wait_for(lambda: cluster.stats()["connections"] > connections, "an attempt")
    cluster.keeps(1, 2, for_s=0.5)
    cluster.api.command("accept", how="serve")
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_events_that_are_held_up_by_a_proxy_come_all_at_once(cluster):
    cluster.start()
    cluster.watching()
    cluster.api.command("watches", act="hold")
    cluster.join(3, 4, 5)
    cluster.leave(3)
    cluster.keeps(1, 2, for_s=0.5)
    cluster.api.command("watches", act="release")
    cluster.expect(1, 2, 4, 5)
    cluster.nothing_failed()


def test_events_delivered_twice_do_no_harm(cluster):
    cluster.start()
    cluster.join(3, 4)
    cluster.leave(2)
    cluster.expect(1, 3, 4)
    cluster.api.command("watches", act="repeat", n=6)
    cluster.api.command("watches", act="repeat", n=2)
    cluster.join(5)
    cluster.expect(1, 3, 4, 5)
    wait_for(lambda: len(cluster.workers()) == 4, "the one that left to be forgotten")
    cluster.nothing_failed()


def test_events_out_of_order_do_not_restore_old_state(cluster):
    cluster.start()
    cluster.join(3)
    cluster.leave(2)
    cluster.api.put(cluster.pod(3, ready=False))
    cluster.expect(1)
    cluster.api.command("watches", act="repeat", n=5, is_reversed=True)  # old news last: 3 is ready, 2 is there
    cluster.join(4)
    cluster.expect(1, 4)
    cluster.keeps(1, 4, for_s=0.3)
    cluster.nothing_failed()


@pytest.mark.parametrize("on", ["list", "watch"])
def test_retry_after_is_respected(cluster, on):
    cluster.start()
    cluster.watching()
    cluster.api.command("answer", on=on, status=429, reason="TooManyRequests", retry_after=1, message="too many requests")
    cluster.calls()
    cluster.api.command("watches", act="gone" if on == "list" else "cut")
    began = time.monotonic()
    cluster.watching()
    assert time.monotonic() - began > 1 and [verb for verb, _ in cluster.calls()].count(on) == 2
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


@pytest.mark.parametrize("raw", [
    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"kind\":1", "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno",
    "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"items\":[", "garbage\r\n\r\n"],
    ids=["not-a-list", "500", "cut-list", "not-http"])
def test_a_list_that_makes_no_sense_changes_nothing(cluster, raw):
    cluster.start()
    cluster.watching()
    cluster.api.command("answer", on="list", raw=raw, then="close")
    cluster.api.command("watches", act="gone")
    cluster.keeps(1, 2, for_s=0.2)
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_an_unreadable_event_causes_a_new_list(cluster):
    cluster.start()
    cluster.watching()
    cluster.api.command("watches", act="raw", bytes='{"type":"MODIFIED","object":{"metadata":{\n')
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_another_authority_signs_the_certificate_and_is_trusted_when_its_file_has_changed(cluster):
    cluster.start()
    cluster.watching()
    ca = cluster.api.command("authority")["ca"]
    cluster.ca.write_text(cluster.ca.read_text() + open(ca).read())  # both, as a cluster does for a while
    cluster.api.command("certificate")
    cluster.api.command("watches", act="cut")
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_a_server_of_an_unknown_authority_is_rejected(cluster):
    router = cluster.start()
    cluster.watching()
    cluster.api.command("authority")
    cluster.api.command("certificate")
    cluster.api.command("watches", act="cut")
    cluster.join(3)
    wait_for(lambda: re.search(r"kube_watch_lost .*certificate", router.log), "the log line")
    cluster.keeps(1, 2)
    cluster.nothing_failed()


# --- sizes and times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paged", [True, False], ids=["pages", "one-answer"])
def test_a_list_of_5000_pods_of_which_a_few_are_workers_yet(cluster, paged):
    for i in range(0, 5000, 500):
        cluster.api.put(*(pod(f"pending-{i + k}") for k in range(500)))
    cluster.api.command("set", limits_cached_lists=paged)
    cluster.start(first=range(1, 9))
    assert cluster.stats()["lists"] == (11 if paged else 1)
    cluster.join(9)
    cluster.expect(*range(1, 10))
    cluster.api.command("watches", act="gone")
    cluster.leave(1)
    cluster.expect(*range(2, 10))
    cluster.nothing_failed()


def test_without_a_server_the_workers_stay_and_the_age_of_the_list_is_reported(cluster):
    router = cluster.start(first=(1, 2, 3))
    cluster.watching()
    assert http(router.admin_url + "/metrics").body
    cluster.api.command("die")
    cluster.leave(3)  # the router gets no event: it finds out by itself
    cluster.expect(1, 2)
    cluster.keeps(1, 2, for_s=3)
    assert http(router.admin_url + "/readyz").code == 200

    def stale():
        return router.metric("incipit_discovery_stale_seconds")
    assert stale() > 1
    cluster.join(4)
    cluster.api.command("listen", on=True)
    cluster.expect(1, 2, 4)
    wait_for(lambda: stale() < 1, "the news to be new")
    cluster.nothing_failed()


def test_a_router_without_a_server_is_not_ready_and_one_without_pods_reports_it(cluster):
    cluster.api.command("listen", on=False)
    router = cluster.programs(Router, "--service-discovery", "k8s", "--k8s-api-server", cluster.api.url, "--k8s-token-file",
                              cluster.token, "--k8s-ca-file", cluster.ca, "--k8s-selector", SELECTOR)
    admin = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    assert http(admin + "/readyz").code == 503
    wait_for(lambda: "kube_watch_lost" in router.log, "the log line")
    cluster.join(1)
    cluster.api.command("listen", on=True)
    wait_for(lambda: http(admin + "/readyz").code == 200, "it to be ready")


def test_an_event_takes_effect_at_once(cluster):
    """Reported, and held against a second: how long after the change the router shows it."""
    cluster.start()
    cluster.watching()
    for n in range(10, 30):
        cluster.herd.up(cluster.ip(n))
    seen = {"added": [], "draining": []}

    def took(what, change, condition):
        began = time.monotonic()
        change()
        while not condition():
            assert time.monotonic() - began < 5
        seen[what].append((time.monotonic() - began) * 1e3)
    for n in range(10, 30):
        url = cluster.url(n)
        took("added", lambda n=n: cluster.api.put(cluster.pod(n)), lambda url=url: url in cluster.workers())
        wait_for(lambda url=url: url in cluster.used(), "it to be used")
        took("draining", lambda n=n: cluster.api.command("delete", name=f"w-{n}"),
             lambda url=url: cluster.workers().get(url) in ("draining", None))
    for what, times in seen.items():
        print(f"event to effect, {what}: median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms")
        assert statistics.median(times) < (5000 if SANITIZER else 1000)
    cluster.nothing_failed()


# --- other ways in -----------------------------------------------------------------------------------------------------


def test_a_kubeconfig_names_server_authority_and_token(cluster, tmp_path):
    path = kubeconfig(cluster.api, tmp_path, token="first")
    cluster.start(flags=["--kubeconfig", path, "--k8s-selector", SELECTOR])
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


def test_a_kubeconfig_may_show_a_client_certificate_instead_of_a_token(cluster, tmp_path):
    path = kubeconfig(cluster.api, tmp_path, token="")
    cluster.start(flags=["--kubeconfig", path, "--k8s-selector", SELECTOR])
    cluster.join(3)
    cluster.expect(1, 2, 3)
    assert cluster.stats()["unauthorized"] == 0
    cluster.nothing_failed()


def test_plain_http_is_accepted_on_loopback_for_kubectl_proxy(programs, tmp_path):
    with contextlib.closing(Cluster(programs, tmp_path, "--plain")) as cluster:
        cluster.api.command("tokens", tokens=[])
        cluster.start(flags=["--k8s-api-server", cluster.api.url, "--k8s-namespace", "default", "--k8s-selector", SELECTOR])
        cluster.join(3)
        cluster.expect(1, 2, 3)
        cluster.api.command("watches", act="cut")
        cluster.leave(1)
        cluster.expect(2, 3)
        cluster.nothing_failed()


def test_endpoint_slices_of_a_service_name_workers_too(cluster):
    cluster.herd.up(cluster.ip(3))
    both = [{"ip": cluster.ip(1), "uid": "u1"}, {"ip": cluster.ip(2), "uid": "u2"}]
    cluster.api.put(slice_of("workers", "workers-a", both, cluster.herd.port))
    cluster.start(flags=["--k8s-api-server", cluster.api.url, "--k8s-token-file", cluster.token, "--k8s-ca-file", cluster.ca,
                         "--k8s-resource", "endpointslices", "--k8s-service", "workers"])
    cluster.api.put(slice_of("workers", "workers-b", [{"ip": cluster.ip(3), "uid": "u3"}], cluster.herd.port))
    cluster.expect(1, 2, 3)
    both[0] |= {"ready": False, "serving": True, "terminating": True}
    cluster.api.put(slice_of("workers", "workers-a", both, cluster.herd.port))
    cluster.expect(2, 3)
    cluster.api.command("force", resource="endpointslices", name="workers-b")
    cluster.expect(2)
    cluster.nothing_failed()


def test_an_inference_pool_selects_pods_and_ports_and_is_followed(cluster):
    def pool(labels):
        return {"kind": "InferencePool", "metadata": {"name": "llm"},
                "spec": {"selector": {"matchLabels": labels}, "targetPorts": [{"number": cluster.herd.port}],
                         "endpointPickerRef": {"name": "epp", "port": {"number": 9002}}}}
    cluster.api.put(pool({"app": "incipit-worker"}))
    cluster.start(flags=["--k8s-api-server", cluster.api.url, "--k8s-token-file", cluster.token, "--k8s-ca-file", cluster.ca,
                         "--inference-pool", "llm"])
    cluster.herd.up(cluster.ip(3))
    cluster.api.put(cluster.pod(3, labels={"tier": "gpu"}))
    cluster.expect(1, 2, 3)
    cluster.api.put(pool({"app": "incipit-worker", "tier": "gpu"}))
    cluster.expect(3)
    cluster.nothing_failed()


def test_an_inference_pool_of_a_cluster_with_the_older_group_alone_is_followed(cluster):
    cluster.api.command("set", serves_old_pools_only=True)
    cluster.api.put({"kind": "InferencePool", "metadata": {"name": "llm"},
                     "spec": {"selector": {"app": "incipit-worker"}, "targetPortNumber": cluster.herd.port,
                              "extensionRef": {"name": "epp"}}})
    cluster.start(flags=["--k8s-api-server", cluster.api.url, "--k8s-token-file", cluster.token, "--k8s-ca-file", cluster.ca,
                         "--inference-pool", "llm"])
    cluster.join(3)
    cluster.expect(1, 2, 3)
    cluster.nothing_failed()


# --- what others see on the same server ---------------------------------------------------------------------------------


def test_kubectl_and_the_router_see_the_same(cluster, tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: apt-get install kubernetes-client")
    env = {**os.environ, "KUBECONFIG": str(kubeconfig(cluster.api, tmp_path, token="first")), "HOME": str(tmp_path)}
    cluster.start()
    command = ["kubectl", "get", "pods", "-l", SELECTOR]
    with LiveSet([*command, "--watch", "--output-watch-events", "-o", "json"], env) as seen:
        wait_for(lambda: cluster.stats()["open_watches"] == 2, "kubectl's watch")
        cluster.join(*range(3, 20))
        cluster.leave(2, 5, 8)
        cluster.api.command("patch", name="w-9", patch={"metadata": {"labels": {"app": None}}})
        cluster.join(5)
        expected = [n for n in range(1, 20) if n not in (2, 8, 9)]
        cluster.expect(*expected)
        wait_for(lambda: seen.names == {f"w-{n}" for n in expected}, "kubectl to see the same")
    listed = subprocess.run([*command, "-o", "name"], env=env, capture_output=True, text=True, check=True)
    assert {line.removeprefix("pod/") for line in listed.stdout.split()} == {f"w-{n}" for n in expected}
    cluster.nothing_failed()


def test_the_python_client_and_the_router_see_the_same(cluster, tmp_path):
    client = pytest.importorskip("kubernetes", reason="python3-kubernetes is not installed")
    path = str(kubeconfig(cluster.api, tmp_path, token="first"))
    core = client.client.CoreV1Api(client.config.new_client_from_config(path))
    cluster.start()
    names = set()

    def follow():
        for event in client.watch.Watch().stream(core.list_namespaced_pod, "default", label_selector=SELECTOR):
            name = event["object"].metadata.name
            if name == "last":
                return
            (names.discard if event["type"] == "DELETED" else names.add)(name)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for(lambda: names == {"w-1", "w-2"}, "its watch")
    cluster.join(*range(3, 12))
    cluster.leave(1, 4)
    cluster.api.command("watches", act="repeat", n=3)
    expected = [n for n in range(2, 12) if n != 4]
    cluster.expect(*expected)
    wait_for(lambda: names == {f"w-{n}" for n in expected}, "the Python client to see the same")
    cluster.api.put(pod("last"))
    thread.join(10)
    assert not thread.is_alive()
    cluster.nothing_failed()
