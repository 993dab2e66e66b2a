"""What the pages name exists: flags, make targets, files; and what `make install` installs, runs."""
import os
import re
import subprocess

import pytest

from conftest import BUILD, ROOT

PAGES = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
MAKEFILE = "".join(f.read_text() for f in (ROOT / "Makefile", *ROOT.glob("kernels/*/*.mk"), *ROOT.glob("tests/*/*.mk")))

# Flags on these pages that are of other programs.
OF_OTHERS = set("""--cacert --ready
    --enable-prompt-tokens-details --enable-prefix-caching --max-num-seqs --api-key --model-path --port
    --ssl-certfile --ssl-keyfile
    --kv-transfer-config --disaggregation-mode
    --enable-metrics --enable-cache-report --max-running-requests --disable-radix-cache
    --as --previous --help-foreign --set --create-namespace --no-deps --no-binary --compress-mode
    --budget --phases --fresh --out --print-commands --list-ptx
    --worker --endpoints --records --run --mix --url --resume --minutes --decay-minutes --rate --weights""".split())


def flags_of(program, *options):
    text = subprocess.run([BUILD / program, *(options or ["--help-all"])], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"(?m)^  (--[a-z0-9-]+)", text)) | set(re.findall(r"also\s+(--[a-z0-9-]+)", text))
    for name in re.findall(r"(?m)^  --\[no-\]([a-z0-9-]+)", text):
        found |= {"--" + name, "--no-" + name}
    # Secrets are not taken on the command line; the pages name them as the file's keys.
    return found | {"--" + name for name in re.findall(r"or ([a-z-]+) in the --config file", text)}


def named_in(text):
    """The flags in a page's code: not dashes in prose, nor patterns such as --cb-*."""
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.S))
    return {f for f in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+(?![\w*-])", code) if not f.endswith("-")}


@pytest.mark.parametrize("page", [p for p in PAGES if not p.endswith("MIGRATING.md")])
def test_every_flag_on_a_page_exists(page):
    known = flags_of("incipit-router") | flags_of("incipit-worker") | flags_of("incipit-worker", "devices", "--help-all")
    known |= OF_OTHERS
    assert named_in((ROOT / page).read_text()) - known == set()


MIGRATING = (ROOT / "router/MIGRATING.md").read_text()


@pytest.mark.parametrize("program", ["router", "worker"])
def test_the_flags_on_the_page_of_migration_are_the_tables_in_the_code(program):
    written = subprocess.run([BUILD / "tests/integration/migrating_page", program], capture_output=True, text=True, check=True).stdout
    assert (ROOT / program / "MIGRATING.md").read_text().split("\n## Flags\n")[1] == written, "run make pages"


def migrating_rows():
    """The cells of each row of MIGRATING.md: their flags, ours or what becomes of theirs, the reason."""
    rows = [line.strip("|").split(" | ") for line in MIGRATING.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row[0].strip().startswith("theirs")]


def test_our_side_of_the_migration_page_exists():
    ours = flags_of("incipit-router")
    for theirs, *rest in migrating_rows():
        assert named_in(" ".join(rest)) <= ours, theirs
    assert named_in(MIGRATING.split("\n## Flags\n")[0]) <= ours


# Of the flags in the first column, those whose value must be of a kind.
VALUES = {"--log-level": "info", "--prometheus-host": "127.0.0.1", "--static-backends": "http://127.0.0.1:1", "--health-check-endpoint": "/health",
          "--max-payload-size": "1MiB", "--k8s-service-discovery-type": "pod-ip", "--routing-strategy": "random", "--routing-logic": "random",
          "--spill-rel-threshold": "2", "--dp-size": "0"}


@pytest.mark.parametrize("flag, value, is_refused", sorted(
    {(flag.replace("*", "x"), value, row[1].startswith("refused")) for row in migrating_rows()
     for flag, value in re.findall(r"`(--[a-z0-9-]+\*?) ?([^ `]*)`", row[0])}))
def test_their_side_of_the_migration_page_works_as_written(flag, value, is_refused):
    """A flag that is not refused starts the router; a refused one has its reason. None is unknown."""
    for args in ([flag], [flag, value or VALUES.get(flag, "1")]):
        done = subprocess.run([BUILD / "incipit-router", "--worker-urls=http://127.0.0.1:1", *args, "--dump-config"],
                              capture_output=True, text=True)
        assert "unknown option" not in done.stderr, done.stderr
        if is_refused or done.returncode == 0:
            break
    assert (done.returncode != 0) == is_refused, done.stderr


def test_every_make_target_on_a_page_exists():
    targets = set(re.findall(r"(?m)^([a-z0-9-]+):", MAKEFILE))
    patterns = {"bench-": "tests/bench/bench_{}.c", "fuzz-": "tests/fuzz/fuzz_{}.c"}
    for page in PAGES:
        for target in re.findall(r"(?<![\w-])make ([a-z][a-z0-9_-]*)", "\n".join(
                re.findall(r"```.*?```|`[^`]+`|(?m:^    .*$)", (ROOT / page).read_text(), re.S))):
            if target.startswith("deps-"):
                assert f"\n{target[5:]}) want=" in (ROOT / "deploy/deps").read_text(), f"{page}: make {target}"
                continue
            prefix = next((p for p in patterns if target.startswith(p) and target not in targets), None)
            if prefix:
                source = patterns[prefix].format(target[len(prefix):])
                assert (ROOT / source).exists(), f"{page}: make {target}"
            else:
                assert target in targets, f"{page}: make {target}"


@pytest.mark.parametrize("program", ["router", "worker"])
def test_the_page_of_metrics_is_the_table_in_the_code(program):
    written = subprocess.run([BUILD / "tests/integration/metrics_page", program], capture_output=True, text=True,
                             check=True).stdout
    assert (ROOT / program / "METRICS.md").read_text() == written, "run make pages"


def test_make_help_explains_every_target():
    inner = {"FORCE", "check", "check-libs", "cuda-check", "unit-build", "all", "fuzz-%", "deps-%", "release-%", "gpu-programs",
             "gpu-rehearsals"}
    phony = {t for line in re.findall(r"(?m)^\.PHONY: (.*)$", MAKEFILE) for t in line.split()}
    explained = set(re.findall(r"(?m)^([a-z0-9%-]+):[^=\n]*## ", MAKEFILE))
    assert phony - explained - inner == set()


def test_the_page_of_conformance_lists_each_numbered_case():
    """The case, and its test; and nothing that no test holds."""
    rows = re.findall(r"(?m)^\| ([0-9][0-9, -]*) \| .* \| (.*) \|$", (ROOT / "tests/conformance/README.md").read_text())
    listed, held = {}, {}
    for numbers, tests in rows:
        for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", numbers):
            for n in range(int(first), int(last or first) + 1):
                assert n not in listed, n
                listed[n] = tests
    for source in (ROOT / "tests").glob("**/test_*.c"):
        for group in re.findall(r"cmocka_unit_test\w*\(case_([0-9_and]*)", source.read_text()):
            for n in re.findall(r"[0-9]+", group):
                held.setdefault(int(n), set()).add(source.stem)
    assert listed.keys() == held.keys()
    assert {n: tests for n, tests in held.items() if any(t not in listed[n] for t in tests)} == {}


def modules(folder):
    """Files of a room that a reader starts with: headers, but those that only its own files share, and what has none."""
    names = [f.name for f in folder.iterdir() if f.suffix in (".c", ".h", ".cu", ".inc")]
    return {n.rsplit(".", 1)[0] for n in names if not re.search(r"_(internal|tables|avx2|avx512|neon|utf8|inline)\.", n)}


def test_the_page_of_each_room_names_its_modules_and_no_others():
    pages = [page for page in ROOT.glob("*/**/README.md") if "| read | for |" in page.read_text() and "build" not in page.parts]
    assert len(pages) > 20
    for page in pages:
        here, text = page.parent, page.read_text()
        table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        for name in re.findall(r"`([^`]+)`", " ".join(table)):
            assert (here / name).exists() or any((here / f"{name}.{kind}").exists() for kind in ("c", "h", "inc", "cu")), f"{page}: {name}"
        missing = {m for m in modules(here) if f"`{m}" not in text and not any(m.startswith(n) for n in re.findall(r"`([a-z_0-9]+)", text))}
        assert missing == set(), page


def sections(page):
    """The names by which links reach the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.+)$", text)}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_its_section(page):
    for target, section in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", (ROOT / page).read_text()):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        assert not section or section in sections(file), f"{target}#{section}"


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_longer_than_a_reader_takes(page):
    """Tables of names, METRICS.md and LOG.md, are searched and not read: each name has its whole sentence there."""
    limit = 3500 if page.endswith(("METRICS.md", "/LOG.md")) else 2500
    assert len((ROOT / page).read_text().split()) <= limit


def test_every_function_on_the_page_of_the_architecture_exists():
    sources = "".join(p.read_text() for room in ("common", "router", "worker", "kernels") for p in (ROOT / room).rglob("*.[ch]"))
    for name in re.findall(r"`([a-z]+_[a-z_]+)`", (ROOT / "ARCHITECTURE.md").read_text()):
        assert re.search(rf"\b{name}\b|/{name}\.h", sources), name


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_on_the_maintainers_pages_exists(page):
    """Names in backticks that begin with a folder of the tree or end like a file; a bare file is beside the one before it."""
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir()}
    for line in (ROOT / page).read_text().splitlines():
        folder = ROOT
        for name in re.findall(r"`([\w./-]+)`", line):
            is_path = name.split("/")[0] in rooms and "/" in name or re.search(r"\w\.(c|h|md|py|yaml|mk)$", name)
            if not is_path or "NAME" in name or name.startswith("x_"):
                continue
            found = [at for at in (ROOT, folder) for end in ("", ".c", ".h") if (at / f"{name}{end}").exists()]
            assert found, f"{page}: {name}"
            folder = (found[0] / name).parent


@pytest.mark.skipif(BUILD != ROOT / "build/release", reason="the release build is what is installed")
def test_installed_programs_run(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "SAN", "VARIANT"))}
    subprocess.run(["make", "-C", ROOT, "install", f"DESTDIR={tmp_path}", "PREFIX=/opt/incipit"], check=True,
                   capture_output=True, env=environment)
    version = (ROOT / "VERSION").read_text().strip()
    for program in ("incipit-router", "incipit-worker"):
        installed = tmp_path / "opt/incipit/bin" / program
        ask = lambda option: subprocess.run([installed, option], capture_output=True, text=True, check=True).stdout
        assert ask("--version").strip().endswith(version) and ask("--help").startswith(f"{program} {version}")
    assert (tmp_path / "opt/incipit/share/incipit/demo-model/config.json").exists()
