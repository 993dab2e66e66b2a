"""batch.py - samples (text) to one packed batch (tensors).

A batch is a row of sequences end to end; a sequence is a prefix and its branches, each branch at the positions
right after the prefix (kernels.c draws the mask). Only positions in loss_at predict a token. Token and loss
counts are padded to multiples of 256: with ever new sizes oneDNN would compile a new kernel at every step.
"""
from dataclasses import dataclass

import numpy as np
import torch

PAD_MULTIPLE = 256
WEIGHT_ANSWER, WEIGHT_QUESTION, WEIGHT_TABLE, SHARE_TABLE, WEIGHT_REPEAT = 1.0, 0.1, 0.12, 0.05, 0.9
WEIGHT_DECISION = 3.0             # the answer's first token: present, absent or not about the table
WEIGHT_VALUE = 5.0                # the first token of a value in JSON, a call or what follows a call


@dataclass
class Encoded:
    """One sequence: branches are (inputs, targets, weights, answer ordinal or -1 per target)."""
    prefix: list
    branches: list
    kinds: list                   # of every answer, in order


def encode(sample, tokenizer):
    prefix = tokenizer.encode(sample.prefix)
    branches, kinds = [], []
    for pieces, branch_kinds in zip(sample.branches, sample.kinds):
        ids, weights, answers = [], [], []
        kind = iter(branch_kinds)
        for role, text in pieces:
            piece = tokenizer.encode(text)
            ids += piece
            if role == "answer":
                kinds.append(next(kind))
            is_answer = role in ("answer", "value", "more")
            answers += [len(kinds) - 1 if is_answer else -1] * len(piece)
            weight = WEIGHT_ANSWER if is_answer else WEIGHT_QUESTION if role == "question" else 0.0
            weights += [weight] * len(piece)
            if role in ("answer", "value"):
                weights[-len(piece)] = WEIGHT_DECISION if role == "answer" else WEIGHT_VALUE
        branches.append((ids[:-1], ids[1:], weights[1:], answers[1:]))
    return Encoded(prefix, branches, kinds)


def repeat_encoded(rng, n_words):
    """The plateau breaker: random tokens, then the same again, as they were or in shuffled blocks of four."""
    n = rng.randint(max(4, n_words // 3), n_words)
    ids = [rng.randrange(2044) for _ in range(n)]
    weights = [0.0] + [WEIGHT_REPEAT] * (n - 1)
    again = ids
    if rng.random() < 0.5:
        blocks = [ids[i:i + 4] for i in range(0, n, 4)]
        rng.shuffle(blocks)
        again = [token for block in blocks for token in block]
        weights = [0.0 if i == 0 else WEIGHT_REPEAT for block in blocks for i in range(len(block))]
    line = [2044] + ids + [2044] + again
    weights = [0.0] * (n + 2) + weights
    return Encoded([], [(line[:-1], line[1:], weights[1:], [-1] * (len(line) - 1))], [])


def length_of(encoded):
    return len(encoded.prefix) + sum(len(branch[0]) for branch in encoded.branches)


class Batch:
    """Tensors by name (see pack); answer is numpy: per loss position, which answer it belongs to, or -1."""

    def __init__(self, arrays, kinds):
        self.kinds = kinds
        self.answer = arrays.pop("answer")
        for name, array in arrays.items():
            setattr(self, name, torch.from_numpy(array))


def pack_arrays(encoded_samples, rng):
    """(arrays, kinds of all answers); cheap to send between processes. Batch(*...) makes tensors of it."""
    tokens, position, branch_start, starts, prefix_lens = [], [], [], [0], []
    loss_at, target, weight, answer, kinds = [], [], [], [], []
    for sample in encoded_samples:
        base, n_prefix = len(tokens), len(sample.prefix)
        tokens += sample.prefix
        position += range(n_prefix)
        branch_start += [0] * n_prefix
        for i in range(n_prefix - 1):
            if SHARE_TABLE and rng.random() < SHARE_TABLE:
                loss_at.append(base + i)
                target.append(sample.prefix[i + 1])
                weight.append(WEIGHT_TABLE)
                answer.append(-1)
        for inputs, targets, weights, answers in sample.branches:
            at = len(tokens)
            for i, w in enumerate(weights):
                if w > 0:
                    loss_at.append(at + i)
                    target.append(targets[i])
                    weight.append(w)
                    answer.append(len(kinds) + answers[i] if answers[i] >= 0 else -1)
            tokens += inputs
            position += range(n_prefix, n_prefix + len(inputs))
            branch_start += [at - base] * len(inputs)
        kinds += sample.kinds
        starts.append(len(tokens))
        prefix_lens.append(n_prefix)
    n_pad = -len(tokens) % PAD_MULTIPLE
    if n_pad:
        tokens += [0] * n_pad
        position += range(n_pad)
        branch_start += [0] * n_pad
        starts.append(len(tokens))
        prefix_lens.append(n_pad)
    n_pad = -len(loss_at) % PAD_MULTIPLE
    loss_at += [0] * n_pad
    target += [0] * n_pad
    weight += [0.0] * n_pad
    answer += [-1] * n_pad
    arrays = {"tokens": np.array(tokens, np.int64), "position": np.array(position, np.int32),
              "branch_start": np.array(branch_start, np.int32), "sequence_start": np.array(starts, np.int32),
              "prefix_len": np.array(prefix_lens, np.int32), "loss_at": np.array(loss_at, np.int64),
              "target": np.array(target, np.int64), "weight": np.array(weight, np.float32),
              "answer": np.array(answer, np.int32)}
    return arrays, kinds


def exact_answers(logits, batch):
    """Boolean per answer: every token of it, the end token included, is the greedy choice."""
    wrong = (logits.argmax(-1) != batch.target).numpy() & (batch.answer >= 0)
    right = np.ones(len(batch.kinds), bool)
    right[batch.answer[wrong]] = False
    return right
