"""Manual pages and completions match --help, and man, bash, zsh and fish take them."""
import re
import shutil
import subprocess

import pytest

from conftest import BUILD

PROGRAMS = ["incipit-router", "incipit-worker"]
COMMANDS = {"incipit-router": ["healthcheck", "drain"], "incipit-worker": ["serve", "batch", "inspect", "devices", "healthcheck", "drain"]}
both = pytest.mark.parametrize("program", PROGRAMS)


def needs(tool):
    return pytest.mark.skipif(not shutil.which(tool), reason=f"SKIPPED: {tool} is not installed")


def printed(program, *words):
    return subprocess.run([BUILD / program, *words], capture_output=True, text=True, check=True).stdout


def options_of(program):
    """The options that --help-all shows, and the variables of those that are not taken as options."""
    flags, secrets = set(), set()
    for words in [[], *([c] for c in COMMANDS[program])]:
        text = printed(program, *words, "--help-all")
        flags |= set(re.findall(r"(?m)^  --(?:\[no-\])?([a-z0-9-]+)", text))
        secrets |= set(re.findall(r"(?m)^  (INCIPIT_\w+), or", text))
    assert len(flags) > 40
    return flags, secrets


@both
def test_every_option_is_on_the_page(program):
    page = printed(program, "man").replace("\\-", "-")
    flags, secrets = options_of(program)
    assert {f for f in flags if not re.search(rf'--(\[no-\])?{f}(?![\w-])', page)} == set()
    assert {s for s in secrets if s not in page} == set()
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "ENVIRONMENT", "FILES", "SIGNALS",
                    "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f".SH {heading}\n" in page
    for word in [*COMMANDS[program], "man", "completion"]:
        assert f".B {word}\n" in page, word


@both
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_but_those_rarely_needed_is_offered_by_every_shell(program, shell):
    rare = printed(program, "man").replace("\\-", "-").split(".SS Rarely needed\n")[1].split("\n.SS ")[0]
    rare = set(re.findall(r"(?m)^\.BI? \"?--(?:\[no-\])?([a-z0-9-]+)", rare))
    text = printed(program, "completion", shell)
    flag = "-l {}(?![a-z-])" if shell == "fish" else "--{}(?![a-z-])"
    missing = {f for f in options_of(program)[0] if not re.search(flag.format(f), text)}
    assert 12 <= len(missing) and missing <= rare


@both
@needs("groff")
def test_groff_has_no_complaint(program):
    done = subprocess.run(["groff", "-ww", "-mandoc", "-Tutf8", "-P-cbou"], input=printed(program, "man"), capture_output=True,
                          text=True, check=True)
    assert done.stderr == ""
    assert "OPTIONS" in done.stdout


@both
@needs("mandoc")
def test_mandoc_has_no_complaint(program):
    done = subprocess.run(["mandoc", "-Tlint", "-W", "style"], input=printed(program, "man"), capture_output=True, text=True)
    complaints = [c for c in (done.stdout + done.stderr).splitlines() if "longer than 80 bytes" not in c]
    assert complaints == [] and done.returncode <= 1


def complete(program, *words):
    """What bash offers for the last of the words."""
    script = """source <("$0" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
                "$1_" 2>/dev/null; _%s; printf '%%s\\n' "${COMPREPLY[@]}"\n""" % program.replace("-", "_")
    done = subprocess.run(["bash", "-c", script, BUILD / program, program, *words], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def test_bash_completes_names_values_and_subcommands(tmp_path):
    policies = re.search(r"--policy NAME.*?one of ([a-z_, ]+)", printed("incipit-router", "--help", "policy"), re.S)
    assert complete("incipit-router", "--poli") == ["--policy"]
    assert set(complete("incipit-router", "--policy", "")) >= {"prefix", "round_robin"}, policies
    assert complete("incipit-router", "--policy", "=", "round") == ["round_robin"]
    assert complete("incipit-router", "--policy", "=") == complete("incipit-router", "--policy", "")
    assert complete("incipit-router", "--routing-logic", "pre") == ["prefix", "prefix_scorer"]
    assert complete("incipit-router", "--port", "") == []
    assert complete("incipit-router", "--api-key") == ["--api-keys-file"]
    assert complete("incipit-router", "completion", "f") == ["fish"]
    assert complete("incipit-worker", "in") == ["inspect"]
    assert complete("incipit-worker", "devices", "--js") == ["--json"]
    assert complete("incipit-worker", "--js") == []
    assert complete("incipit-worker", "batch", "--inp") == ["--input-file"]
    (tmp_path / "two words").mkdir()
    assert complete("incipit-router", "--model", f"{tmp_path}/two") == [f"{tmp_path}/two words"]


@both
@pytest.mark.parametrize("shell", [pytest.param(s, marks=needs(s)) for s in ("bash", "zsh", "fish")])
def test_the_shell_can_read_it(program, shell):
    done = subprocess.run([shell, "-n"], input=printed(program, "completion", shell), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@needs("fish")
def test_fish_completes():
    done = subprocess.run(["fish", "-c", f"{BUILD}/incipit-router completion fish | source; complete -C 'incipit-router --policy r'"],
                          capture_output=True, text=True)
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == {"random", "round_robin"}


@both
@needs("zsh")
def test_zsh_takes_it_for_the_program(program, tmp_path):
    script = f"autoload -U compinit; compinit -D; source <({BUILD / program} completion zsh); print $_comps[{program}]"
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert (done.stdout.strip(), done.stderr) == ("_" + program.replace("-", "_"), "")


@both
def test_an_unknown_shell_is_reported(program):
    done = subprocess.run([BUILD / program, "completion", "csh"], capture_output=True, text=True)
    assert done.returncode == 2 and "bash, zsh or fish" in done.stderr and done.stdout == ""
