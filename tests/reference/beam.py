#!/usr/bin/env python3
"""Beam search against transformers' generate().

Two comparisons. The search alone: a "model" whose next token depends on the position and the last
token only, a table of logits; its answers for many settings are the golden file tests/unit/data/beam_vectors.json,
which `make test` replays through worker/sched/beam.c (--write makes it anew; without, it must be
what is there). The engine: small random Llama models, served by incipit-worker, asked with
use_beam_search; the answers' token ids must be those of generate().

Scores that lie so close together that single precision may swap them would make a test of luck:
tables differ from position to position, and models are compared in float32.
"""

import itertools
import json
import sys

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


if __name__ == "__main__":
    torch.manual_seed(0)
    check_vectors()
