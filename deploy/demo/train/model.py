"""model.py - the 2.9-million-parameter Llama, its structured start, and its way to and from safetensors.

Why a structured start: from random weights every configuration tried stayed on the plateau "copies some row's
value" for as long as it was watched. Finding a row needs an induction circuit (Olsson et al., "In-context
Learning and Induction Heads", 2022): a head that knows the previous token, and a later one that looks for the
place where the previous token equals the current one. Written into the weights, the plateau is gone:

    layer 0   head h looks h+1 tokens back (a constant in the embedding drives the fast rotary pairs) and
              writes what it sees, turned by its own random orthonormal matrix, beside the token itself
    layer 1   keys read what layer 0 wrote for "one back" / "two back", queries read the token itself:
              both KV heads find where the current token stood before; values copy
    layer 2+  queries and keys share one orthonormal matrix: "find what looks like me"; values copy

Only the slow rotary pairs carry those matches, so distance hardly matters to them (hence theta 500000).
"""
import json
import math
import struct

import numpy as np
import torch
import torch.nn.functional as functional

import kernels

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, D_FF = 2048, 256, 4, 4, 2, kernels.HEAD_DIM, 512
MAX_POSITIONS, THETA, EPS = 4096, 500000.0, 1e-5
QKV_ROWS = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]

_frequencies = 1.0 / (THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
_turns = torch.arange(MAX_POSITIONS).float()[:, None] * _frequencies[None]
ANGLES = torch.cat([_turns.cos(), _turns.sin()], 1).contiguous()          # (positions, 64)


class Model(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        def matrices(rows, columns, scale):
            return torch.nn.ParameterList(
                [torch.nn.Parameter(torch.randn(rows, columns, generator=generator) * scale / math.sqrt(columns))
                 for _ in range(LAYERS)])
        generator = torch.Generator().manual_seed(seed)
        depth = 1 / math.sqrt(2 * LAYERS)
        self.embedding = torch.nn.Parameter(torch.empty(VOCAB, DIM))
        self.final_norm = torch.nn.Parameter(torch.full((DIM,), 0.05))    # small: keeps the tied logits small
        self.attention_norm = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(DIM)) for _ in range(LAYERS)])
        self.mlp_norm = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(DIM)) for _ in range(LAYERS)])
        self.qkv = matrices(sum(QKV_ROWS), DIM, 1.0)
        self.out = matrices(DIM, HEADS * HEAD_DIM, depth)
        self.gate_up = matrices(2 * D_FF, DIM, 1.0)
        self.down = matrices(DIM, D_FF, depth * 0.3)
        structured_start(self, generator)

    def forward(self, batch):
        """Logits (len(batch.loss_at), VOCAB) at the positions where a token is to be predicted."""
        x = functional.embedding(batch.tokens, self.embedding)
        for layer in range(LAYERS):
            h = kernels.rmsnorm(x, self.attention_norm[layer], EPS)
            h = kernels.attention(kernels.linear(h, self.qkv[layer]), batch, ANGLES, HEADS, KV_HEADS)
            x = x + kernels.linear(h, self.out[layer])
            h = kernels.rmsnorm(x, self.mlp_norm[layer], EPS)
            h = kernels.swiglu(kernels.linear(h, self.gate_up[layer]))
            x = x + kernels.linear(h, self.down[layer])
        h = kernels.rmsnorm(x.index_select(0, batch.loss_at), self.final_norm, EPS)
        return kernels.linear(h, self.embedding)


@torch.no_grad()
def structured_start(model, generator):
    """The circuit of this file's top, written over (or added to) random weights."""
    def orthonormal(rows, columns):
        return torch.linalg.qr(torch.randn(columns, rows, generator=generator))[0].t().contiguous()

    half, group, constant = HEAD_DIM // 2, HEADS // KV_HEADS, DIM - 1
    n_fast, first_slow = 14, 12                       # rotary pairs that carry position / that carry content
    model.embedding.copy_(0.3 * torch.randn(VOCAB, DIM, generator=generator))
    model.embedding[:, constant] = 1.0

    content = [orthonormal(HEAD_DIM, DIM) for _ in range(KV_HEADS)]       # what layer 0 reads of a token
    written = [orthonormal(HEAD_DIM, DIM) for _ in range(HEADS)]          # where it writes it
    strength = math.sqrt(30.0) / 3.3
    qkv, out = model.qkv[0], model.out[0]
    qkv.mul_(0.2)
    out.mul_(0.2)
    for head in range(HEADS):
        for pair in range(n_fast):
            turn = -(head + 1) * float(_frequencies[pair])
            qkv[head * HEAD_DIM + pair, constant] = strength * math.cos(turn)
            qkv[head * HEAD_DIM + pair + half, constant] = strength * math.sin(turn)
        out[:, head * HEAD_DIM:(head + 1) * HEAD_DIM] += 0.5 * written[head].t()
    for kv in range(KV_HEADS):
        key, value = (HEADS + kv) * HEAD_DIM, (HEADS + KV_HEADS + kv) * HEAD_DIM
        qkv[key:key + n_fast, constant] = strength
        qkv[key + half:key + half + n_fast, constant] = 0
        qkv[value:value + HEAD_DIM] = content[kv]

    slow = torch.zeros(HEAD_DIM, 1)
    slow[first_slow:half] = 1
    slow[half + first_slow:] = 1
    for layer in range(1, LAYERS):
        qkv, out = model.qkv[layer], model.out[layer]
        qkv.mul_(0.3)
        out.mul_(0.3)
        for kv in range(KV_HEADS):
            if layer == 1:
                key_reads, query_reads, gain = written[kv], content[kv // group], 1.3
            else:
                key_reads = query_reads = orthonormal(HEAD_DIM, DIM)
                gain = 0.8
            copy = orthonormal(HEAD_DIM, DIM)
            key, value = (HEADS + kv) * HEAD_DIM, (HEADS + KV_HEADS + kv) * HEAD_DIM
            qkv[key:key + HEAD_DIM] += gain * slow * key_reads
            qkv[value:value + HEAD_DIM] += copy
            for head in range(kv * group, (kv + 1) * group):
                qkv[head * HEAD_DIM:(head + 1) * HEAD_DIM] += gain * slow * query_reads
                out[:, head * HEAD_DIM:(head + 1) * HEAD_DIM] += (0.5 if layer == 1 else 0.25) * copy.t()


# ---- safetensors ----------------------------------------------------------------------------------

def hugging_face_tensors(model):
    """{name: tensor} under the names of LlamaForCausalLM."""
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.final_norm}
    for layer in range(LAYERS):
        prefix = "model.layers.%d." % layer
        q, k, v = model.qkv[layer].split(QKV_ROWS)
        gate, up = model.gate_up[layer].split(D_FF)
        tensors.update({
            prefix + "input_layernorm.weight": model.attention_norm[layer],
            prefix + "self_attn.q_proj.weight": q, prefix + "self_attn.k_proj.weight": k,
            prefix + "self_attn.v_proj.weight": v, prefix + "self_attn.o_proj.weight": model.out[layer],
            prefix + "post_attention_layernorm.weight": model.mlp_norm[layer],
            prefix + "mlp.gate_proj.weight": gate, prefix + "mlp.up_proj.weight": up,
            prefix + "mlp.down_proj.weight": model.down[layer]})
    return tensors


def _bf16_bytes(tensor):
    return tensor.detach().bfloat16().contiguous().view(torch.int16).numpy().tobytes()


def save_safetensors(model, path):
    """bf16, header padded so that the data begin at a multiple of 64 bytes."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(hugging_face_tensors(model).items()):
        blob = _bf16_bytes(tensor)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


@torch.no_grad()
def load_safetensors(model, path):
    """Reads what save_safetensors wrote back into model (values are then bf16-rounded)."""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name, tensor in hugging_face_tensors(model).items():
        first, last = header[name]["data_offsets"]
        raw = np.frombuffer(data[8 + size + first:8 + size + last], dtype=np.int16).copy()
        tensor.copy_(torch.from_numpy(raw).view(torch.bfloat16).reshape(tensor.shape).float())
