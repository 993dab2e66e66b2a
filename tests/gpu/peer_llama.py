#!/usr/bin/env python3
"""A decoder step of Llama-3.1-8B's shape as PyTorch does it best: peer_llama.py cuda|cpu.

Static keys and values; the layer and the head compiled (torch.compile: first its default mode, then, where time is
left, max-autotune); the whole step in one CUDA graph; random bf16 weights of deviation 0.02; greedy choice on the device.
The cache has the length of the test, and attention reads all of it, through SDPA. One line of JSON per batch and mode:
the median over replays; the faster mode is the rival. On the CPU: a tiny shape, not compiled, to rehearse."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
IS_GPU = DEVICE == "cuda"
SHAPE = (dict(layers=32, d=4096, heads=32, kv=8, hd=128, ffn=14336, vocab=128256) if IS_GPU else
         dict(layers=2, d=64, heads=4, kv=2, hd=16, ffn=96, vocab=128))
BATCHES, CONTEXT = ([1, 32, 8], 1024) if IS_GPU else ([1, 2], 32)


def random(*shape):
    return torch.empty(*shape, device=DEVICE, dtype=torch.bfloat16).normal_(0, 0.02)


def make_weights(s):
    q, kv = s["heads"] * s["hd"], s["kv"] * s["hd"]
    layers = [dict(norm1=torch.ones(s["d"], device=DEVICE, dtype=torch.bfloat16),
                   norm2=torch.ones(s["d"], device=DEVICE, dtype=torch.bfloat16), qkv=random(q + 2 * kv, s["d"]),
                   o=random(s["d"], q), gate_up=random(2 * s["ffn"], s["d"]), down=random(s["d"], s["ffn"]))
              for _ in range(s["layers"])]
    return dict(embed=random(s["vocab"], s["d"]), head=random(s["vocab"], s["d"]),
                norm=torch.ones(s["d"], device=DEVICE, dtype=torch.bfloat16), layers=layers)


def rotate(x, turn):
    a, b = x.float().chunk(2, -1)
    cos, sin = turn
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def layer_step(x, layer, keys, values, s, position, turn, mask):
    batch, q, kv = x.shape[0], s["heads"] * s["hd"], s["kv"] * s["hd"]
    h = F.rms_norm(x, (s["d"],), layer["norm1"], 1e-5)
    qs, ks, vs = F.linear(h, layer["qkv"]).split((q, kv, kv), -1)
    qs = rotate(qs.view(batch, s["heads"], 1, s["hd"]), turn)
    ks = rotate(ks.view(batch, s["kv"], 1, s["hd"]), turn)
    keys.index_copy_(2, position, ks)
    values.index_copy_(2, position, vs.view(batch, s["kv"], 1, s["hd"]))
    mix = F.scaled_dot_product_attention(qs, keys, values, attn_mask=mask, enable_gqa=True)
    x = x + F.linear(mix.reshape(batch, q), layer["o"])
    h = F.rms_norm(x, (s["d"],), layer["norm2"], 1e-5)
    gate, up = F.linear(h, layer["gate_up"]).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer["down"])


def head_step(x, norm, head, s):
    return F.linear(F.rms_norm(x, (s["d"],), norm, 1e-5), head).float().argmax(-1)


def step(w, s, cache, token, position, turn, mask, layer_fn, head_fn):
    """token (B), position (1): the next token (B)."""
    x = F.embedding(token, w["embed"])
    for layer, (keys, values) in zip(w["layers"], cache):
        x = layer_fn(x, layer, keys, values, s, position, turn, mask)
    return head_fn(x, w["norm"], w["head"], s)


def measure(w, s, batch, how):
    cache = [(random(batch, s["kv"], CONTEXT, s["hd"]), random(batch, s["kv"], CONTEXT, s["hd"]))
             for _ in range(s["layers"])]
    token = torch.zeros(batch, device=DEVICE, dtype=torch.long)
    position = torch.tensor([CONTEXT - 1], device=DEVICE)
    angle = torch.rand(s["hd"] // 2, device=DEVICE)
    turn, mask = (angle.cos(), angle.sin()), torch.ones(1, 1, 1, CONTEXT, device=DEVICE, dtype=torch.bool)
    parts = [torch.compile(f, mode=how, fullgraph=True) if how else f for f in (layer_step, head_step)]
    for _ in range(3):
        step(w, s, cache, token, position, turn, mask, *parts)
    times = []
    if IS_GPU:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token.copy_(step(w, s, cache, token, position, turn, mask, *parts))
    for _ in range(30 if IS_GPU else 3):
        start = time.perf_counter()
        if IS_GPU:
            graph.replay()
            torch.cuda.synchronize()
        else:
            step(w, s, cache, token, position, turn, mask, *parts)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def main():
    torch.manual_seed(1)
    with torch.no_grad():
        w = make_weights(SHAPE)
        for how in ("default", "max-autotune-no-cudagraphs") if IS_GPU else (None,):
            for batch in BATCHES:
                try:
                    times = measure(w, SHAPE, batch, how)
                except Exception as e:  # a mode that this version cannot
                    print(json.dumps({"row": "peer note", "batch": batch, "mode": how, "skipped": str(e)[:200]}), flush=True)
                    continue
                print(json.dumps({"row": "peer", "name": "llama step", "model": "llama-3.1-8b" if IS_GPU else "tiny",
                                  "batch": batch, "context": CONTEXT, "mode": how or "eager",
                                  "us": round(statistics.median(times), 1), "us_min": round(min(times), 1),
                                  "us_max": round(max(times), 1)}), flush=True)


main()
