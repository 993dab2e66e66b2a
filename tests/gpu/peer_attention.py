#!/usr/bin/env python3
"""PyTorch's attention on this card: peer_attention.py cuda|cpu. One line of JSON per measurement.

SDPA has keys and values without pages, so it is an upper bar, not a rival; FlexAttention is compiled with a mask
over paged keys and values, as its own paged example does it: logical order is found through a table of pages.
Kernels are timed in CUDA graphs over several sets of buffers. On the CPU: tiny shapes, to rehearse."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
IS_GPU = DEVICE == "cuda"
MODELS = {"llama-3.1-8b": (32, 8, 128), "qwen2.5-1.5b": (12, 2, 128)} if IS_GPU else {"tiny": (4, 2, 16)}
DECODE = [(1, 1024), (1, 8192), (32, 1024), (32, 8192)] if IS_GPU else [(2, 32)]
PREFILL = [(1024, 1024), (8192, 8192), (128, 8320)] if IS_GPU else [(16, 48)]
PAGE = 16


def median_us(run, n_sets):
    """Microseconds of run(set), set after set, in a graph on a GPU."""
    for i in range(3):
        run(i % n_sets)
    if not IS_GPU:
        start = time.perf_counter()
        run(0)
        return (time.perf_counter() - start) * 1e6
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(20):
            run(i % n_sets)
    times = []
    for _ in range(12):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e3 / 20)
    return statistics.median(times)


def row(name, model, what, us, **more):
    print(json.dumps({"row": "peer", "name": name, "model": model, "what": what, "us": round(us, 2), **more}), flush=True)


def skip(name, model, what, why):
    print(json.dumps({"row": "peer", "name": name, "model": model, "what": what, "skipped": str(why)[:200]}), flush=True)


def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def sdpa(model, heads, kv_heads, hd, batch, n_new, context):
    size = 2 * batch * context * kv_heads * hd * 2
    n_sets = max(1, min(8, 200_000_000 // size)) if IS_GPU else 1
    q = random(batch, heads, n_new, hd)
    kv = [(random(batch, kv_heads, context, hd), random(batch, kv_heads, context, hd)) for _ in range(n_sets)]
    causal = n_new == context
    mask = None
    if n_new > 1 and not causal:  # a prefix is cached: the mask is one of lower right corners
        mask = torch.ones(n_new, context, device=DEVICE, dtype=torch.bool).tril(context - n_new)
    return median_us(lambda i: F.scaled_dot_product_attention(q, *kv[i], attn_mask=mask, is_causal=causal,
                                                              enable_gqa=True), n_sets)


def flex(model, heads, kv_heads, hd, batch, context):
    """Decode over pages in shuffled order: a physical key belongs to its row, and counts if it is of the past."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    pages = batch * (context // PAGE)
    order = torch.randperm(pages, device=DEVICE)
    owner, logical = torch.empty_like(order), torch.empty_like(order)
    owner[order] = torch.arange(pages, device=DEVICE) // (context // PAGE)
    logical[order] = torch.arange(pages, device=DEVICE) % (context // PAGE)

    def mask(b, h, q_index, kv_index):
        return (owner[kv_index // PAGE] == b) & (logical[kv_index // PAGE] * PAGE + kv_index % PAGE < context)

    n_tokens = pages * PAGE
    block_mask = create_block_mask(mask, batch, None, 1, n_tokens, device=DEVICE, BLOCK_SIZE=(1 if IS_GPU else 128, 128),
                                   _compile=IS_GPU)
    compiled = torch.compile(flex_attention, dynamic=False) if IS_GPU else flex_attention
    q, k, v = random(batch, heads, 1, hd), random(1, kv_heads, n_tokens, hd), random(1, kv_heads, n_tokens, hd)
    k, v = k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)
    return median_us(lambda i: compiled(q, k, v, block_mask=block_mask, enable_gqa=True), 1)


def main():
    torch.manual_seed(1)
    with torch.no_grad():
        for model, (heads, kv_heads, hd) in MODELS.items():
            for batch, context in DECODE:
                what = f"B={batch} L={context}"
                row("sdpa decode", model, what, sdpa(model, heads, kv_heads, hd, batch, 1, context))
            for n_new, context in PREFILL:
                what = f"B=1 T={n_new} P={context - n_new}"
                row("sdpa prefill", model, what, sdpa(model, heads, kv_heads, hd, 1, n_new, context))
        for model, (heads, kv_heads, hd) in list(MODELS.items())[:1]:
            for batch, context in DECODE[2:3] or DECODE:
                what = f"B={batch} L={context}"
                try:
                    row("flex decode, paged", model, what, flex(model, heads, kv_heads, hd, batch, context))
                except Exception as e:  # what a version of PyTorch cannot is no fault of ours
                    skip("flex decode, paged", model, what, e)


main()
