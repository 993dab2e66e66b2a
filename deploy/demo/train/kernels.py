"""kernels.py - compiles kernels.c for this machine and wraps it as PyTorch autograd functions.

Activations are bf16 between operations, the residual stream and everything inside attention fp32; a matrix
product is bf16 with a bf16 copy of the fp32 weight (PyTorch, oneDNN). Shapes: n tokens in a packed batch.
"""
import ctypes
import os
import subprocess
import tempfile

import torch

HEAD_DIM = 64


def _compile():
    here = os.path.dirname(os.path.abspath(__file__))
    out = os.path.join(tempfile.mkdtemp(prefix="demo-kernels-"), "kernels.so")
    subprocess.run([os.environ.get("CC", "gcc"), "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", out,
                    os.path.join(here, "kernels.c"), "-lm"], check=True)
    return ctypes.CDLL(out)


_library = _compile()


def _call(name, *arguments):
    """Tensors go as pointers, floats as float; integers come as _long or _int."""
    converted = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            assert argument.is_contiguous()
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        elif isinstance(argument, float):
            converted.append(ctypes.c_float(argument))
        else:
            converted.append(argument)
    getattr(_library, name)(*converted)


_long, _int = ctypes.c_long, ctypes.c_int


class Attention(torch.autograd.Function):
    """qkv (n, (n_heads + 2 n_kv_heads) * 64) bf16 -> (n, n_heads * 64) bf16, rotary position included."""

    @staticmethod
    def forward(ctx, qkv, batch, angles, n_heads, n_kv_heads):
        n = qkv.shape[0]
        q, o = torch.empty(n_heads, n, HEAD_DIM), torch.empty(n_heads, n, HEAD_DIM)
        k, v = torch.empty(n_kv_heads, n, HEAD_DIM), torch.empty(n_kv_heads, n, HEAD_DIM)
        lse = torch.empty(n_heads, n)
        _call("rope_split", qkv, q, k, v, angles, batch.position, _long(n), _int(n_heads), _int(n_kv_heads))
        _call("attention_forward", q, k, v, o, lse, batch.sequence_start, batch.prefix_len, batch.branch_start,
              _int(len(batch.prefix_len)), _long(n), _int(n_heads), _int(n_kv_heads))
        ctx.saved = (q, k, v, o, lse, batch, angles)
        return o.transpose(0, 1).reshape(n, n_heads * HEAD_DIM).bfloat16()

    @staticmethod
    def backward(ctx, grad):
        q, k, v, o, lse, batch, angles = ctx.saved
        n_heads, n, _ = q.shape
        n_kv_heads = k.shape[0]
        grad = grad.view(n, n_heads, HEAD_DIM).transpose(0, 1).float().contiguous()
        gq, gk, gv = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
        _call("attention_backward", q, k, v, o, lse, grad, gq, gk, gv, batch.sequence_start, batch.prefix_len,
              batch.branch_start, _int(len(batch.prefix_len)), _long(n), _int(n_heads), _int(n_kv_heads))
        out = torch.empty(n, (n_heads + 2 * n_kv_heads) * HEAD_DIM, dtype=torch.bfloat16)
        _call("rope_merge", out, gq, gk, gv, angles, batch.position, _long(n), _int(n_heads), _int(n_kv_heads))
        return out, None, None, None, None


class RmsNorm(torch.autograd.Function):
    """x (n, dim) fp32 -> bf16."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        y, inverse = torch.empty_like(x, dtype=torch.bfloat16), torch.empty(x.shape[0])
        _call("rmsnorm_forward", x, weight.detach(), y, inverse, _long(x.shape[0]), _int(x.shape[1]), float(eps))
        ctx.saved = (x, weight.detach(), inverse)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, inverse = ctx.saved
        gx, gweight = torch.empty_like(x), torch.zeros_like(weight)
        _call("rmsnorm_backward", x, weight, inverse, grad.contiguous(), gx, gweight, _long(x.shape[0]),
              _int(x.shape[1]))
        return gx, gweight, None


class SwiGlu(torch.autograd.Function):
    """(n, 2 d_ff) bf16, gates then ups -> (n, d_ff) bf16."""

    @staticmethod
    def forward(ctx, gate_up):
        n, d_ff = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(n, d_ff, dtype=torch.bfloat16)
        _call("swiglu_forward", gate_up, y, _long(n), _int(d_ff))
        ctx.gate_up = gate_up
        return y

    @staticmethod
    def backward(ctx, grad):
        n, d_ff = grad.shape
        out = torch.empty_like(ctx.gate_up)
        _call("swiglu_backward", ctx.gate_up, grad.contiguous(), out, _long(n), _int(d_ff))
        return out


class Linear(torch.autograd.Function):
    """x (n, in) bf16, weight (out, in) fp32 -> (n, out) bf16; the weight's gradient is fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        low = weight.detach().bfloat16()
        ctx.saved = (x, low)
        return x @ low.t()

    @staticmethod
    def backward(ctx, grad):
        x, low = ctx.saved
        grad = grad.contiguous()
        return grad @ low, (grad.t() @ x).float()


attention, rmsnorm, swiglu, linear = Attention.apply, RmsNorm.apply, SwiGlu.apply, Linear.apply
