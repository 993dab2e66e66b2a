"""Every policy in a real router; sessions by header and by body; flags of other routers."""
import json
import re
import subprocess

from conftest import BUILD, ROOT, Router, Worker

POLICIES = re.findall(r"^ +X\((\w+)\)", (ROOT / "router/routing/policy.h").read_text(), re.M)


def fleet(programs, n=2):
    return [programs(Worker, "--backend", "sim", "--sim-speed", 50).ready().url for _ in range(n)]


def asker(router):
    """ask(prompt, headers, body fields): the worker that answered."""
    def ask(prompt="Hello", headers=None, **more):
        answer = router.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **more},
                             headers={"x-incipit-route": "1", **(headers or {})})
        assert answer.code == 200, answer.body
        return answer.headers["x-incipit-route"].split("worker=")[1].split()[0]
    return ask


def test_the_chart_and_the_page_have_every_policy():
    schema = json.loads((ROOT / "deploy/helm/incipit/values.schema.json").read_text())
    assert schema["properties"]["router"]["properties"]["policy"]["enum"] == POLICIES
    page = (ROOT / "router/README.md").read_text()
    assert [p for p in POLICIES if f"`{p}`" not in page] == []


def test_every_policy_serves(programs):
    urls = fleet(programs)
    for policy in POLICIES:
        router = programs(Router, "--worker-urls", *urls, "--policy", policy, "--explain-to-clients").ready(2)
        ask = asker(router)
        seen = {ask(f"question {i} " * 40) for i in range(30)}
        assert seen == {"0", "1"}, policy
        assert router.stop() == 0, router.log


def test_a_session_stays_by_header_or_body(programs):
    urls = fleet(programs, 3)
    ask = asker(programs(Router, "--worker-urls", *urls, "--policy", "session", "--explain-to-clients").ready(3))
    homes = set()
    for i in range(50):  # homes follow from ports, which are chance: all on two workers is 1 in 200 million
        name = f"user-{i}"
        home = ask("a", {"X-SMG-Routing-Key": name})
        homes.add(home)
        assert ask("b", {"x-session-id": name}) == home
        assert ask("c", prompt_cache_key=name) == home
        assert ask("d", session_id=name) == home
        assert ask("e", {"x-smg-routing-key": name}, session_id="another") == home
    assert homes == {"0", "1", "2"}
    assert {ask(headers={"x-user-id": "me"}) for _ in range(40)} == {"0", "1", "2"}  # no key


def test_the_header_of_a_session_is_an_option(programs):
    """As production-stack spells it."""
    urls = fleet(programs, 3)
    ask = asker(programs(Router, "--explain-to-clients", "--static-backends", ",".join(urls), "--routing-logic", "session",
                         "--session-key", "x-user-id").ready(3))
    assert len({ask(headers={"X-User-Id": "me"}) for _ in range(10)}) == 1


def test_an_unsupported_option_of_other_routers_is_refused_by_name():
    done = subprocess.run([BUILD / "incipit-router", "--worker-urls", "http://127.0.0.1:1",
                           "--root-path", "/v2"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "--root-path is not supported: strip the prefix in the proxy before this router" in done.stderr
