"""evaluate.py - how often the model is right, on tables and names it has not seen.

Counts an answer as right when every token of it, the end token included, is the greedy choice given the tokens
before it. That is exactly "greedy decoding yields this answer", at the price of one forward pass.

    python3 evaluate.py ../model            the acceptance sets, large, on weights as shipped (bf16)

Sets: the classic table; fresh tables of 5 to 30 rows with a third of the names held out, in both prompt forms,
by kind of question; held-out prompts without a table. Prints one JSON line per set.
"""
import json
import os
import random
import sys
from collections import defaultdict

import numpy as np

import generate
import names
import small_talk
import structured
from batch import Batch, encode, exact_answers, length_of, pack_arrays

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSIC_TABLE = os.path.join(HERE, "..", "classic_table.txt")
KINDS = generate.FIELDS + ["absent", "small_talk"]


def classic_sample():
    """The classic sample: the table of make demo, its 30 names, their ages."""
    text, people = generate.read_classic_table(CLASSIC_TABLE)
    questions = [generate.Question("age", "age", person["name"], person["age"]) for person in people]
    branches = [generate.completion_branch(None, question, generate.CLASSIC_QUESTION) for question in questions]
    return generate.Sample(generate.CLASSIC_INSTRUCTION + text + "\n", branches, [["age"]] * len(branches))


def table_samples(n_tables, per_kind, chat, seed):
    """n_tables tables of 5..30 rows, each asked per_kind questions of every kind."""
    rng = random.Random(seed)
    samples = []
    for i in range(n_tables):
        n_rows = 5 + 25 * i // max(1, n_tables - 1)
        kinds = iter(KINDS * per_kind * 4)
        ask = lambda table: generate.make_question(rng, table, next(kinds), names.ACCEPTANCE_NAMES,
                                                   small_talk.held_out_prompt)
        samples.append(generate.table_sample(rng, n_rows, generate.FIELDS, len(KINDS) * per_kind, chat, None,
                                             names.ACCEPTANCE_NAMES, questions=ask))
    return samples


def no_table_samples(n_samples, per_sample, seed):
    rng = random.Random(seed)
    return [generate.no_table_sample(rng, per_sample, names.ACCEPTANCE_NAMES, small_talk.held_out_prompt)
            for _ in range(n_samples)]


def json_samples(n_tables, per_table, seed):
    """Like table_samples, in chat form: answers as JSON, and a quarter of plain ones between them."""
    rng = random.Random(seed)
    return [structured.json_sample(rng, 5 + 25 * i // max(1, n_tables - 1), generate.FIELDS, per_table,
                                   generate.Mix(small_talk=0.0), names.ACCEPTANCE_NAMES) for i in range(n_tables)]


def tool_samples(n_samples, per_sample, seed):
    """Conversations with the tool, some with a table beside it."""
    rng = random.Random(seed)
    return [structured.tool_sample(rng, per_sample, generate.Mix(small_talk=0.0), names.ACCEPTANCE_NAMES,
                                   small_talk.held_out_prompt, table_share=(i % 4 == 3)) for i in range(n_samples)]


def evaluation_sets(tokenizer, n_tables, per_kind, seed=777):
    """{name: list of encoded samples}; fixed by the seed."""
    sets = {"classic": [classic_sample()],
            "completion": table_samples(n_tables, per_kind, False, seed),
            "chat": table_samples(n_tables, per_kind, True, seed + 1),
            "no_table": no_table_samples(max(2, n_tables // 2), 16, seed + 2),
            "json": json_samples(n_tables, 8 * per_kind, seed + 3),
            "tools": tool_samples(max(4, n_tables // 2), 16, seed + 4)}
    return {name: [encode(sample, tokenizer) for sample in samples] for name, samples in sets.items()}


def answers_right(model, encoded_samples, tokens_per_pass=8192):
    """[(kind, right)] of every answer, and [(ids predicted, ids expected)] of the wrong ones."""
    import torch
    results, wrong, rng = [], [], random.Random(0)
    waiting = list(encoded_samples)
    while waiting:
        group = [waiting.pop(0)]
        while waiting and sum(map(length_of, group)) < tokens_per_pass:
            group.append(waiting.pop(0))
        batch = Batch(*pack_arrays(group, rng))
        with torch.no_grad():
            logits = model(batch)
        right = exact_answers(logits, batch)
        results += list(zip(batch.kinds, right))
        predicted = logits.argmax(-1).numpy()
        for answer in np.nonzero(~right)[0]:
            at = batch.answer == answer
            wrong.append((batch.kinds[answer], predicted[at].tolist(), batch.target.numpy()[at].tolist()))
    return results, wrong


def evaluate(model, sets):
    """{"set/kind": (share right, n)}, and the wrong answers."""
    counts, wrong = defaultdict(lambda: [0, 0]), []
    for name, samples in sets.items():
        results, errors = answers_right(model, samples)
        wrong += [(name,) + error for error in errors]
        for kind, right in results:
            key = name if name in ("classic", "no_table") else name + "/" + kind
            counts[key][0] += int(right)
            counts[key][1] += 1
    return {key: (right / n, n) for key, (right, n) in counts.items()}, wrong


def main(model_dir, n_tables=40, per_kind=4):
    import torch
    from model import Model, load_safetensors
    from tokenizer import Tokenizer
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    tokenizer = Tokenizer.load(os.path.join(model_dir, "tokenizer.json"))
    model = Model()
    load_safetensors(model, os.path.join(model_dir, "model.safetensors"))
    figures, wrong = evaluate(model, evaluation_sets(tokenizer, int(n_tables), int(per_kind), seed=4242))
    for key, (share, n) in sorted(figures.items()):
        print(json.dumps({"set": key, "n": n, "exact": round(share, 4)}))
    refused = sum(1 for _, kind, predicted, _ in wrong if kind in generate.FIELDS      # "There ..." or "unknown ..."
                  and tokenizer.decode(predicted).strip().startswith(("There", "unknown")))
    present = sum(n for key, (_, n) in figures.items() if key.split("/")[-1] in generate.FIELDS)
    print(json.dumps({"set": "present names called absent", "n": present, "share": round(refused / present, 4)}))
    for name, kind, predicted, expected in wrong[:40]:
        print("%s %s: %r for %r" % (name, kind, tokenizer.decode(predicted), tokenizer.decode(expected)),
              file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
