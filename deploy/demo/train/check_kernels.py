"""check_kernels.py - compares kernels.c with plain PyTorch, forward and backward, then times one step.

    python3 check_kernels.py ../model/tokenizer.json

The batch holds what training holds: tables with branches, prompts without a table, random repeats, padding.
The bound is relative to the largest value compared.
"""
import math
import random
import sys
import time

import torch
import torch.nn.functional as functional

import generate
import kernels
import model
from batch import Batch, encode, pack_arrays, repeat_encoded
from tokenizer import Tokenizer

BOUND = 1e-5


def compare(name, ours, reference):
    error = (ours.float() - reference).abs().max().item() / reference.abs().max().item()
    print("%-22s relative error %.1e" % (name, error))
    assert error < BOUND, name


def rotate(x, batch):
    """Half-rotation of (n, heads, 64) by position."""
    angles = model.ANGLES[batch.position.long()][:, None]
    cosine, sine = angles[..., :32], angles[..., 32:]
    a, b = x[..., :32], x[..., 32:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def reference_attention(qkv, batch):
    """Dense attention per sequence under the mask of kernels.c."""
    heads, kv_heads, size = model.HEADS, model.KV_HEADS, model.HEAD_DIM
    q, k, v = (part.reshape(len(qkv), -1, size) for part in qkv.split(model.QKV_ROWS, 1))
    q, k = rotate(q, batch), rotate(k, batch).repeat_interleave(heads // kv_heads, 1)
    v = v.repeat_interleave(heads // kv_heads, 1)
    outputs = []
    for i, n_prefix in enumerate(batch.prefix_len):
        first, end = batch.sequence_start[i].item(), batch.sequence_start[i + 1].item()
        at = torch.arange(end - first)
        branch = batch.branch_start[first:end].long()[:, None]
        seen = (at[None] <= at[:, None]) & ((at[None] < n_prefix) | (at[None] >= branch))
        scores = torch.einsum("ihd,jhd->hij", q[first:end], k[first:end]) / math.sqrt(size)
        weights = scores.masked_fill(~seen[None], -1e30).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v[first:end]).reshape(end - first, heads * size))
    return torch.cat(outputs)


def check_attention(batch):
    ours = torch.randn(len(batch.tokens), sum(model.QKV_ROWS)).requires_grad_()
    plain = ours.detach().float().requires_grad_()
    result = kernels.attention(ours, batch, model.ANGLES, model.HEADS, model.KV_HEADS)
    expected = reference_attention(plain, batch)
    grad = torch.randn_like(expected)
    result.backward(grad)
    expected.backward(grad.float())
    compare("attention", result, expected)
    compare("attention backward", ours.grad, plain.grad)


def check_linear():
    x, weight = torch.randn(301, 256, requires_grad=True), torch.randn(512, 256, requires_grad=True)
    x2, weight2 = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    result, expected = kernels.linear(x, weight), x2 @ weight2.t()
    grad = torch.randn(301, 512)
    result.backward(grad)
    expected.backward(grad)
    compare("linear", result, expected)
    compare("linear backward x", x.grad, x2.grad)
    compare("linear backward w", weight.grad, weight2.grad)


def check_rmsnorm():
    x, weight = torch.randn(50, 256, requires_grad=True), torch.randn(256, requires_grad=True)
    x2, weight2 = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    result = kernels.rmsnorm(x, weight, model.EPS)
    expected = x2 * torch.rsqrt(x2.pow(2).mean(-1, keepdim=True) + model.EPS) * weight2
    grad = torch.randn(50, 256)
    result.backward(grad)
    expected.backward(grad.float())
    compare("rmsnorm", result, expected)
    compare("rmsnorm backward x", x.grad, x2.grad)
    compare("rmsnorm backward w", weight.grad, weight2.grad)


def check_swiglu():
    ours = torch.randn(50, 1024).requires_grad_()
    plain = ours.detach().float().requires_grad_()
    result, expected = kernels.swiglu(ours), functional.silu(plain[:, :512]) * plain[:, 512:]
    grad = torch.randn(50, 512)
    result.backward(grad)
    expected.backward(grad.float())
    compare("swiglu", result, expected)
    compare("swiglu backward", ours.grad, plain.grad)


def time_step(tokenizer, rng):
    samples = [generate.table_sample(rng, 24, generate.FIELDS, 18, True, generate.Mix()) for _ in range(2)]
    batch, net = Batch(*pack_arrays([encode(sample, tokenizer) for sample in samples], rng)), model.Model()
    for _ in range(4):
        start = time.time()
        functional.cross_entropy(net(batch), batch.target).backward()
        seconds = time.time() - start
    print("forward and backward of %d tokens: %.3f s, %.0f tokens/s" % (
        len(batch.tokens), seconds, len(batch.tokens) / seconds))


def main(tokenizer_path):
    torch.manual_seed(0)
    rng, tokenizer = random.Random(3), Tokenizer.load(tokenizer_path)
    samples = [generate.table_sample(rng, rng.randint(3, 9), generate.FIELDS, 5, i % 2 == 0, generate.Mix())
               for i in range(3)] + [generate.no_table_sample(rng, 5)]
    encoded = [encode(sample, tokenizer) for sample in samples] + [repeat_encoded(rng, 60)]
    check_attention(Batch(*pack_arrays(encoded, rng)))
    check_linear()
    check_rmsnorm()
    check_swiglu()
    time_step(tokenizer, rng)


if __name__ == "__main__":
    main(*sys.argv[1:])
