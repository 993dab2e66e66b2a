"""What is installed and packaged is all there, runs, and is the same each time; units are what systemd takes."""
import base64
import grp
import gzip
import hashlib
import os
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT, SANITIZER, Router, free_port, http

VERSION = (ROOT / "VERSION").read_text().strip()
PROGRAMS = ["incipit-router", "incipit-worker"]
pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="packages are of the release build")


def needs(tool):
    return pytest.mark.skipif(not shutil.which(tool), reason=f"SKIPPED: {tool} is not installed")


def run(*words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=ROOT, **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    root = tmp_path_factory.mktemp("installed")
    run("deploy/package/install", BUILD, env={**os.environ, "DESTDIR": str(root), "PREFIX": "/usr"})
    return root


def test_everything_is_where_its_readers_look(installed):
    found = {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()}
    for program in PROGRAMS:
        assert {f"usr/bin/{program}", f"usr/share/man/man1/{program}.1", f"usr/share/bash-completion/completions/{program}",
                f"usr/share/zsh/vendor-completions/_{program}", f"usr/share/fish/vendor_completions.d/{program}.fish"} <= found
        assert run(installed / "usr/bin" / program, "--version").split()[-1] == VERSION
        assert (installed / f"usr/share/man/man1/{program}.1").read_text() == run(BUILD / program, "man")
    assert {"etc/incipit/router.yaml", "usr/lib/systemd/system/incipit-router.service", "usr/lib/sysusers.d/incipit.conf",
            "usr/share/incipit/demo-model/config.json", "usr/share/doc/incipit/README.md"} <= found
    assert not any("@" in (installed / f).read_text(errors="replace").replace("incipit-worker@", "") for f in found
                   if f.startswith("usr/lib/systemd") and re.search("@[A-Z]+@", (installed / f).read_text()))
    assert (installed / "etc/incipit/router.env").stat().st_mode & 0o777 == 0o600


def test_configuration_that_is_there_stays(installed):
    for name in ("router.yaml", "router.env"):
        (installed / "etc/incipit" / name).write_text("# mine\n")
    run("deploy/package/install", BUILD, env={**os.environ, "DESTDIR": str(installed), "PREFIX": "/usr"})
    assert (installed / "etc/incipit/router.yaml").read_text() == "# mine\n"


def test_the_shipped_configuration_is_taken(installed):
    for program, text in (("incipit-router", ROOT / "deploy/systemd/router.yaml"), ("incipit-worker", ROOT / "deploy/systemd/worker.yaml")):
        run(BUILD / program, "--config", text, "--dump-config")
        known = set(re.findall(r"(?m)^(?:# )?([a-z][a-z-]+): ", run(BUILD / program, "--dump-config")))
        assert set(re.findall(r"(?m)^#?([a-z-]+):(?: |$)", text.read_text())) <= known
    for name in ("router", "worker"):
        for variable in re.findall(r"(?m)^#?(INCIPIT_\w+)=", (ROOT / f"deploy/systemd/{name}.env").read_text()):
            assert variable in run(BUILD / f"incipit-{name}", "--help-all")


def units(installed):
    return sorted((installed / "usr/lib/systemd/system").iterdir())


def test_units_name_options_that_there_are(installed):
    for unit in units(installed):
        text = unit.read_text()
        start = re.search(r"(?m)^ExecStart=(.*)$", text)
        if start:
            program = re.search(r"/usr/bin/(incipit-\w+)", start[1])[1]
            known = run(BUILD / program, "--help-all")
            assert all(f"  {flag}" in known for flag in re.findall(r"--[a-z-]+", start[1])), start[1]
            assert f"Documentation=man:{program}(1)" in text
            # A drain must have time to end, and wrong options must not be tried for ever.
            drain = re.search(r"(?m)^drain-timeout: (\d+)(m?s?) ", run(BUILD / program, "--dump-config"))
            drain_s = int(drain[1]) * {"s": 1, "m": 60}[drain[2]]
            assert int(re.search(r"(?m)^TimeoutStopSec=(\d+)", text)[1]) >= drain_s + 10
            assert "RestartPreventExitStatus=2" in text
        for port, option in re.findall(r"ListenStream=127.0.0.1:(\d+)\nFileDescriptorName=(\w+)", text):
            key = {"client": "port", "admin": "admin-port"}[option]
            assert f"\n{key}: {port} " in run(BUILD / "incipit-router", "--dump-config")


@needs("systemd-analyze")
def test_systemd_takes_the_units_and_finds_them_confined(installed, tmp_path):
    for unit in units(installed):
        # The program's place is this machine's, whose systemd looks for it.
        text = re.sub(r"/usr/bin/(incipit-\w+)", rf"{BUILD}/\1", unit.read_text()).replace("Documentation=man:", "#Documentation=man:")
        (tmp_path / unit.name).write_text(text.replace("/usr/lib/incipit/", f"{ROOT}/deploy/systemd/"))
    names = [tmp_path / u.name.replace("@.", "@0.") for u in units(installed)]
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "incipit" in line]
    assert complaints == []
    for name, limit in (("incipit-router.service", 2.0), ("incipit-worker@0.service", 3.0)):
        text = run("systemd-analyze", "security", "--offline=true", tmp_path / name)
        assert float(re.search(r"Overall exposure level for \S+: ([\d.]+)", text)[1]) <= limit


@needs("systemd-sysusers")
def test_the_user_is_made_and_secrets_are_closed(installed):
    (installed / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (installed / "etc/group").write_text("root:x:0:\n")
    run("systemd-sysusers", f"--root={installed}", "incipit.conf")
    assert "incipit:x:" in (installed / "etc/passwd").read_text()
    secret = installed / "etc/incipit/worker.env"
    secret.chmod(0o644)
    if os.getuid() == 0:
        run("systemd-tmpfiles", f"--root={installed}", "--create", "incipit.conf")
        assert secret.stat().st_mode & 0o777 == 0o600


def test_an_admin_key_is_made_once_for_root_and_the_group(tmp_path):
    file = tmp_path / "etc/incipit/admin-key"
    make = [ROOT / "deploy/systemd/make-admin-key", file]
    env = {**os.environ, "ADMIN_KEY_GROUP": grp.getgrgid(os.getgid()).gr_name}
    run(*make, env=env)
    key = file.read_text()
    assert re.fullmatch(r"[A-Za-z0-9+/]{43}=\n", key) and len(base64.b64decode(key)) == 32
    assert file.stat().st_mode & 0o777 == 0o640 and list(file.parent.iterdir()) == [file]
    run(*make, env=env)
    assert file.read_text() == key, "it is kept"
    other = tmp_path / "other"
    run(make[0], other, env=env)
    assert other.read_text() != key
    done = subprocess.run([make[0], tmp_path / "third"], env={**env, "ADMIN_KEY_GROUP": "no-such-group"}, capture_output=True)
    assert done.returncode != 0 and not (tmp_path / "third").exists(), "half a key is none"


def test_the_installed_service_asks_for_the_admin_key(installed, tmp_path, programs, scripted_worker):
    """The shipped configuration, with the key that the unit makes: no process adds a worker without it."""
    unit = (installed / "usr/lib/systemd/system/incipit-router.service").read_text()
    [made] = re.findall(r"(?m)^ExecStartPre=\+/usr/lib/incipit/make-admin-key (\S+)$", unit)
    assert os.access(installed / "usr/lib/incipit/make-admin-key", os.X_OK)
    text = (ROOT / "deploy/systemd/router.yaml").read_text()
    assert '\nadmin-api-key-file: "@SYSCONFDIR@/incipit/admin-key"\n' in text and made == "/etc/incipit/admin-key"
    key_file = tmp_path / "admin-key"
    run(installed / "usr/lib/incipit/make-admin-key", key_file,
        env={**os.environ, "ADMIN_KEY_GROUP": grp.getgrgid(os.getgid()).gr_name})
    config = tmp_path / "router.yaml"
    config.write_text(text.replace("@SYSCONFDIR@/incipit/admin-key", str(key_file)).replace("/var/lib/incipit", str(tmp_path)))
    router = programs(Router, "--config", config)
    admin = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    assert http(admin + "/workers", {"url": scripted_worker}).code == 401
    key = {"Authorization": "Bearer " + key_file.read_text().strip()}
    assert http(admin + "/workers", {"url": scripted_worker}, headers=key).code == 202
    assert http(admin + "/livez").code == http(admin + "/metrics").code == 200


@pytest.fixture
def scripted_worker():
    return f"http://127.0.0.1:{free_port()}"  # nothing answers there: added all the same


def test_packages_make_the_admin_key_and_purge_it(debs, tmp_path):
    def script(program, name):
        run("dpkg-deb", "-e", debs[program], tmp_path / program)
        return (tmp_path / program / name).read_text()
    assert "make-admin-key /etc/incipit/admin-key" in script("incipit-router", "postinst")
    assert "/etc/incipit/admin-key" in re.search(r"(?s)= purge \].*?esac", script("incipit-router", "postrm"))[0]
    assert "admin-key" not in script("incipit-router", "conffiles"), "it is never overwritten, nor shipped"
    listed = run("dpkg-deb", "-c", debs["incipit-router"])
    assert re.search(r"(?m)^-rwxr-xr-x .* \./usr/lib/incipit/make-admin-key$", listed)
    assert "etc/incipit/admin-key" not in listed and "make-admin-key" not in run("dpkg-deb", "-c", debs["incipit-worker"])


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    if not shutil.which("dpkg-deb"):
        pytest.skip("SKIPPED: dpkg-deb is not installed")
    out = tmp_path_factory.mktemp("debs")
    run("deploy/package/deb", BUILD, os.path.relpath(out, ROOT), env={**os.environ, "DEB_LEVEL": "0"})
    return {p: next(out.glob(f"{p}_*.deb")) for p in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_package_is_whole_and_its_program_runs(debs, program, tmp_path):
    run("dpkg-deb", "-x", debs[program], tmp_path)
    run("dpkg-deb", "-e", debs[program], tmp_path / "DEBIAN")
    assert run(tmp_path / "usr/bin" / program, "--version").split() == [program, VERSION]
    assert gzip.decompress((tmp_path / f"usr/share/man/man1/{program}.1.gz").read_bytes()).decode() == run(BUILD / program, "man")
    control = dict(re.findall(r"(?m)^(\S+): (.*)$", (tmp_path / "DEBIAN/control").read_text()))
    assert (control["Package"], control["Version"]) == (program, VERSION)
    assert "libc6" in control["Depends"] and "libevent" in control["Depends"]
    kind = program.split("-")[1]
    assert (tmp_path / "DEBIAN/conffiles").read_text().split() == [f"/etc/incipit/{kind}.env", f"/etc/incipit/{kind}.yaml"]
    for line in (tmp_path / "DEBIAN/md5sums").read_text().splitlines():
        digest, path = line.split("  ", 1)
        assert hashlib.md5((tmp_path / path).read_bytes()).hexdigest() == digest
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", tmp_path / "DEBIAN" / script)
        assert "@PACKAGE@" not in (tmp_path / "DEBIAN" / script).read_text()


def test_the_packages_can_be_installed_together(debs):
    files = [set(re.findall(r"(?m)^-.* \./(\S+)$", run("dpkg-deb", "-c", debs[p]))) for p in PROGRAMS]
    assert files[0] and files[1] and not files[0] & files[1]


@needs("lintian")
def test_lintian_has_no_complaint(debs):
    done = subprocess.run(["lintian", "--allow-root", *debs.values()], capture_output=True, text=True)
    assert [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")] == []


def test_a_tarball_has_every_file_and_the_same_bytes_each_time(tmp_path):
    for out in ("a", "b"):
        run("deploy/package/dist", tmp_path / out)
    first, second = (tmp_path / out / f"incipit-{VERSION}.tar.gz" for out in "ab")
    assert first.read_bytes() == second.read_bytes()
    listed = run("tar", "-tvf", first).splitlines()
    assert all(" 0/0 " in line for line in listed)
    names = {line.split(f" incipit-{VERSION}/")[1] for line in listed}
    assert {"Makefile", "VERSION", "router/main.c", "tests/run", "deploy/deps"} <= names
    assert not any(n.startswith(("build/", ".git/")) for n in names)
