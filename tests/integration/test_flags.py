"""Command lines that people have for `vllm serve` and `sglang.launch_server` start a worker, or are refused with a
reason that is about the answers."""
import concurrent.futures
import re
import shlex
import subprocess
import threading

from conftest import BUILD, ROOT

WORKER = BUILD / "incipit-worker"
MODEL = ROOT / "deploy/demo/model"
FLAGS = ROOT / "tests/data/compat_flags.txt"
LINES = ROOT / "tests/data/command_lines.txt"

# A reason why a command line may be refused.
ABOUT_ANSWERS = re.compile(r"would change the (answers|prompts)|does not embed, classify or score|chat template")


def recorded():
    source, found = None, []
    for line in LINES.read_text().splitlines():
        if line.startswith("@"):
            source = line[1:]
        elif line and not line.startswith("#"):
            found.append((source, line))
    return found


def arguments(line):
    """What follows the program, and the model apart from it."""
    words = shlex.split(line)
    for program in ("vllm serve", "sglang serve", "python -m vllm.entrypoints.openai.api_server", "python3 -m vllm.entrypoints.openai.api_server",
                    "python -m sglang.launch_server", "python3 -m sglang.launch_server"):
        if words[:len(program.split())] == program.split():
            words = words[len(program.split()):]
    if words and words[0] == "serve":
        words = words[1:]
    return words


# Flags whose values belong to the machine that a line was written for: left out with them.
OF_THE_PLACE = {"--model", "--model-id", "--model-path", "--tokenizer", "--tokenizer-path", "--device", "--download-dir", "--kv-cache-memory-bytes",
                "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"}
# What stands for others, behind them, where the last one wins: a free port, one simulated device, little memory.
OF_THIS_PLACE = ["--host", "127.0.0.1", "--port", "0", "--tensor-parallel-size", "1", "--max-model-len", "256", "--swap-space", "0",
                 "--kv-offload-bytes", "0", "--backend", "sim", "--num-gpu-blocks-override", "512", "--request-events-buffer-bytes", "0",
                 "--log-level", "info"]


def here(words, template):
    """The same line for this machine and its own model."""
    out, i = [], 0
    if words and not words[0].startswith("-"):
        i = 1  # the model
    while i < len(words):
        name, equals, value = words[i].partition("=")
        name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        n_words = 2 if not equals and i + 1 < len(words) and not words[i + 1].startswith("--") else 1
        if name == "--chat-template" and re.search(r"[./]", value or words[i + n_words - 1]):
            out += [name, template]  # a file that is not here
        elif name not in OF_THE_PLACE:
            out.append(words[i])
            n_words = 1
        i += n_words
    return [str(MODEL), *out, *OF_THIS_PLACE]


def start(words):
    """("started" or "refused", stderr)"""
    process = subprocess.Popen([WORKER, *words], stderr=subprocess.PIPE, text=True)
    printed, watch = [], threading.Timer(60, process.kill)
    watch.start()
    try:
        for line in process.stderr:
            printed.append(line)
            if " worker_ready " in line:
                return "started", "".join(printed)
        process.wait()
        return "refused", "".join(printed)
    finally:
        watch.cancel()
        process.kill()
        process.stderr.close()
        process.wait()


def test_recorded_command_lines_start_or_are_refused_for_the_answers(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    lines = recorded()
    assert len(lines) >= 200
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda entry: start(here(arguments(entry[1]), str(template))), lines))
    failed, counts = [], {"started": 0, "refused": 0}
    for (source, line), (result, printed) in zip(lines, results):
        last = printed.strip().splitlines()[-1] if printed.strip() else ""
        if result == "refused" and not ABOUT_ANSWERS.search(last):
            failed.append(f"{source}: {line}\n    {last}")
        else:
            counts[result] += 1
    print(f"{counts['started']} started, {counts['refused']} refused for the answers, {len(failed)} others of {len(lines)}")
    print("\n".join(failed))
    assert len(failed) <= 0.05 * len(lines)


def test_every_documented_flag_is_known():
    table = subprocess.run([WORKER, "--help-compat"], capture_output=True, text=True, check=True).stdout
    assert subprocess.run([WORKER, "--help-foreign"], capture_output=True, text=True, check=True).stdout == table
    known = set(re.findall(r"(?<![\w-])(--?[A-Za-z0-9][\w-]*)", table))
    ours = subprocess.run([WORKER, "--help-all"], capture_output=True, text=True, check=True).stdout
    known |= set(re.findall(r"--[a-z0-9-]+", ours.replace("--[no-]", "--")))
    families = tuple(flag[:-1] for flag in re.findall(r"(?<![\w-])--[a-z0-9-]+-\*", table))
    documented = {line.split()[0] for line in FLAGS.read_text().splitlines() if not line.startswith("#")}
    assert len(documented) > 900
    assert {flag for flag in documented - known if not flag.startswith(families)} == set()
