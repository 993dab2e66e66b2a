"""Echo with logprobs, as evaluation harnesses ask for it, against transformers on the same model folder.

A worker serves the demonstration model; the prompts are of its own kind, of other kinds, short and long, sent as text and
as token ids, the second time with a warm cache. Checked: the log-likelihood of every prompt, of every token, and
of the likeliest alternative at every position."""
import json
import subprocess
import urllib.request

import torch
import transformers

from common import BUILD, ROOT, Report

MODEL = ROOT / "deploy/demo/model"
# Theirs is float32 throughout; our K and V are bf16, as all engines serve them.
TOKEN_BOUND = 2e-2  # of the prompt's largest logit: 1e-2 for the logit, as much for the sum it is divided by
MEAN_BOUND = 1e-2   # nats a token, over a prompt

PROMPTS = [
    "Question: how old is John Doe?",
    "The quick brown fox jumps over the lazy dog.",
    "| Name | Age |\n|---|---|\n| John Doe | 29 |\n| Zack Blue | 30 |\n" * 20,
    "Größe, naïve, 東京, 🙂 and 1234567890",
    "a",
    "    indented\n\n\tand tabbed   \n",
    "Answer: " * 100,
]


class Worker:
    def __enter__(self):
        self.process = subprocess.Popen([BUILD / "incipit-worker", MODEL, "--port", "0", "--log-format", "json",
                                         "--backend", "ref"], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            event = json.loads(line)
            if event["event"] == "worker_ready":
                self.url = f"http://127.0.0.1:{event['port']}"
                return self
        raise RuntimeError("the worker did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, **body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["logprobs"]


def reference(model, ids):
    """Log-probabilities of every position, and how far ours may be from them."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits, -1), TOKEN_BOUND * logits.abs().max().item()


def compare(report, name, ids, ours, logprobs, bound):
    worst, ours_sum, theirs_sum = 0.0, 0.0, 0.0
    for i in range(1, len(ids)):
        mine, theirs = ours["token_logprobs"][i], logprobs[i - 1, ids[i]].item()
        worst = max(worst, abs(mine - theirs))
        ours_sum, theirs_sum = ours_sum + mine, theirs_sum + theirs
        report.check(abs(mine - theirs) <= bound, f"{name}: token {i}: {mine:.4f}, not {theirs:.4f}")
        best = logprobs[i - 1].max().item()
        report.check(abs(max(ours["top_logprobs"][i].values()) - best) <= bound, f"{name}: the likeliest alternative at {i}")
    n = max(len(ids) - 1, 1)
    report.check(ours["token_logprobs"][0] is None and len(ours["token_logprobs"]) == len(ids), f"{name}: one number a token")
    report.check(abs(ours_sum - theirs_sum) / n <= MEAN_BOUND, f"{name}: {ours_sum:.3f}, not {theirs_sum:.3f}")
    print(f"{name:10} {len(ids):5} tokens  log-likelihood {ours_sum:10.4f}  reference {theirs_sum:10.4f}  worst token {worst:.5f}")


def main():
    report = Report("log-likelihoods")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    with Worker() as worker:
        for i, prompt in enumerate(PROMPTS):
            ids = tokenizer(prompt)["input_ids"]
            logprobs, bound = reference(model, ids)
            text = worker.ask(prompt=prompt, max_tokens=0, echo=True, logprobs=1, temperature=0)
            compare(report, f"text {i}", ids, text, logprobs, bound)
            again = worker.ask(prompt=ids, max_tokens=0, echo=True, logprobs=1, temperature=0)
            report.check(again["token_logprobs"] == text["token_logprobs"], f"text {i}: ids and a warm cache change nothing")
    report.end()


main()
