#!/usr/bin/env python3
"""Beam search against transformers' generate().

Two comparisons. The search alone: a "model" whose next token depends on the position and the last
token only, a table of logits; its answers for many settings are the golden file tests/unit/data/beam_vectors.json,
which `make test` replays through worker/sched/beam.c (--write makes it again; without, it must be
what is there). The engine: small random Llama models, served by incipit-worker, asked with
use_beam_search; the answers' token ids must be those of generate().

Scores that lie so close together that single precision may swap them would make a test of luck:
tables differ from position to position, and models are compared in float32.
"""

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import common
import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCAB = 12
PROMPT = 1  # tokens; the table begins behind them
LONGEST = 10
VECTORS = common.ROOT / "tests/unit/data/beam_vectors.json"


class TableConfig(PretrainedConfig):
    model_type = "table"
    num_hidden_layers = 1
    vocab_size = VOCAB


class TableModel(PreTrainedModel, GenerationMixin):
    """Logits of the next token by position and last token."""

    config_class = TableConfig

    def __init__(self, table):
        super().__init__(TableConfig())
        self.table = torch.nn.Parameter(torch.tensor(table), requires_grad=False)

    def forward(self, input_ids, **_):
        position = input_ids.shape[1] - PROMPT
        return CausalLMOutputWithPast(logits=self.table[position][input_ids])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def make_table(seed):
    rng = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(LONGEST, VOCAB, VOCAB, generator=rng)).tolist()


def search(model, prompt, width, n, max_tokens, length_penalty, early_stopping, eos):
    """[(ids of the answer, score)], the best first."""
    eos = list(eos)
    config = GenerationConfig(num_beams=width, num_return_sequences=n, max_new_tokens=max_tokens,
                              do_sample=False, length_penalty=length_penalty,
                              early_stopping=early_stopping, eos_token_id=eos or None,
                              pad_token_id=0, output_scores=True, return_dict_in_generate=True)
    out = model.generate(torch.tensor([prompt]), generation_config=config)
    answers = []
    for ids, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
        ids = ids[len(prompt):]
        ends = [i for i, t in enumerate(ids) if t in eos]
        answers.append((ids[:ends[0] + 1] if ends else ids[:max_tokens], score))
    return answers


def table_vectors():
    tables = [make_table(seed) for seed in range(3)]
    cases = []
    grid = itertools.product(range(len(tables)), (2, 3, 5), (-0.5, 0.0, 1.0, 2.0),
                             (False, True, "never"), ([3], [3, 7, 11], []))
    for k, (table, width, penalty, stopping, eos) in enumerate(grid):
        max_tokens = 1 + 3 * (k % 4)
        model = TableModel(tables[table]).eval()
        answers = search(model, [k % VOCAB], width, width, max_tokens, penalty, stopping, eos)
        cases.append({"table": table, "prompt": k % VOCAB, "width": width, "max_tokens": max_tokens,
                      "length_penalty": penalty, "early_stopping": stopping, "eos": eos,
                      "answers": [{"ids": ids, "score": float(f"{score:.7g}")} for ids, score in answers]})
    logprobs = [[float(f"{x:.9g}") for x in torch.log_softmax(torch.tensor(t), dim=-1).flatten()]
                for t in tables]
    return {"transformers": transformers.__version__, "logprobs": logprobs, "cases": cases}


def check_vectors():
    vectors = table_vectors()
    if "--write" in sys.argv:
        with open(VECTORS, "w", encoding="ascii") as f:
            f.write("{" + f'"transformers": "{vectors["transformers"]}",\n"logprobs": [\n')
            f.write(",\n".join(json.dumps(t) for t in vectors["logprobs"]) + "],\n\"cases\": [\n")
            f.write(",\n".join(json.dumps(c) for c in vectors["cases"]) + "]}\n")
    with open(VECTORS, encoding="ascii") as f:
        golden = json.load(f)
    for ours, theirs in zip(golden["cases"], vectors["cases"], strict=True):
        assert [a["ids"] for a in ours["answers"]] == [a["ids"] for a in theirs["answers"]], theirs
    print(f"beam: {len(golden['cases'])} searches of the golden file are those of transformers "
          f"{transformers.__version__}")


# --- whole models, over HTTP ------------------------------------------------------------------------

EOS = 2044
TOKENIZER = common.ROOT / "deploy/demo/model"  # any will do: prompts and answers are token ids


def make_llama(folder, seed):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.3, bos_token_id=None, eos_token_id=EOS, pad_token_id=0,
        tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():  # matrices are served as bf16
            p.copy_(p.bfloat16().float())
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    return model


class Worker:
    def __init__(self, folder, *arguments):
        self.process = subprocess.Popen(
            [common.BUILD / "incipit-worker", folder, "--port", "0", "--log-format", "json",
             "--kv-cache-memory-bytes", "64MiB", *arguments], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            event = json.loads(line)
            if event["event"] == "worker_ready":
                self.url = f"http://127.0.0.1:{event['port']}/v1/completions"
                return
        raise RuntimeError("the worker did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, **body):
        request = urllib.request.Request(self.url, json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return [c["token_ids"] for c in json.load(answer)["choices"]]
        except urllib.error.HTTPError as error:
            return error.read().decode()


def check_model(report, folder, seed):
    """Whole prompts and warm ones; ends that come, because they are likely outputs of the model."""
    model = make_llama(folder, seed)
    rng = torch.Generator().manual_seed(seed)
    with Worker(folder, "--backend", "ref") as worker:
        for k, width in enumerate((2, 4, 4, 7, 16)):
            prompt = torch.randint(3, 2000, (20 + 13 * k,), generator=rng).tolist()
            settings = dict(max_tokens=12 + 4 * k, length_penalty=(1.0, 0.0, 2.0, -1.0, 0.6)[k],
                            early_stopping=(False, True, "never", False, True)[k])
            stops = []
            for ends in range(3):
                theirs = [ids for ids, _ in search(model, prompt, width, width, eos=[EOS, *stops], **settings)]
                ours = worker.ask(prompt=prompt, n=width, use_beam_search=True, stop_token_ids=stops,
                                  return_token_ids=True, **settings)
                report.check(ours == theirs, f"model {seed}, width {width}, {ends} more ends: {ours} not {theirs}")
                stops = (stops + [theirs[0][len(theirs[0]) // 2], theirs[-1][1]])[:2 * ends + 2]


if __name__ == "__main__":
    torch.manual_seed(0)
    check_vectors()
    report = common.Report("beam")
    for seed in range(1, 4):
        with tempfile.TemporaryDirectory() as folder:
            check_model(report, Path(folder), seed)
    report.end()
