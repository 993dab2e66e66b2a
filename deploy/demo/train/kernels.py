"""kernels.py - compiles kernels.c for this machine and wraps it as PyTorch autograd functions.

Everything is fp32, for the reason kernels.c gives. Shapes: n tokens in a packed batch.
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
    """qkv (n, (n_heads + 2 n_kv_heads) * 64) -> (n, n_heads * 64), rotary position included."""

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
        return o.transpose(0, 1).reshape(n, n_heads * HEAD_DIM)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, o, lse, batch, angles = ctx.saved
        n_heads, n, _ = q.shape
        n_kv_heads = k.shape[0]
        grad = grad.view(n, n_heads, HEAD_DIM).transpose(0, 1).contiguous()
        gq, gk, gv = torch.empty_like(q), torch.empty_like(q), torch.empty_like(q)
        _call("attention_backward", q, k, v, o, lse, grad, gq, gk, gv, batch.sequence_start, batch.prefix_len,
              batch.branch_start, _int(len(batch.prefix_len)), _long(n), _int(n_heads), _int(n_kv_heads))
        out = torch.empty(n, (n_heads + 2 * n_kv_heads) * HEAD_DIM)
        _call("rope_merge", out, gq, gk, gv, angles, batch.position, _long(n), _int(n_heads), _int(n_kv_heads))
        return out, None, None, None, None


class RmsNorm(torch.autograd.Function):
    """x (n, dim) -> the same shape."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        y, inverse = torch.empty_like(x), torch.empty(x.shape[0])
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
    """(n, 2 d_ff), gates then ups -> (n, d_ff)."""

    @staticmethod
    def forward(ctx, gate_up):
        n, d_ff = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(n, d_ff)
        _call("swiglu_forward", gate_up, y, _long(n), _int(d_ff))
        ctx.gate_up = gate_up
        return y

    @staticmethod
    def backward(ctx, grad):
        n, d_ff = grad.shape
        out = torch.empty_like(ctx.gate_up)
        _call("swiglu_backward", ctx.gate_up, grad.contiguous(), out, _long(n), _int(d_ff))
        return out


def _product(a, b):
    """a (m, k) @ b (k, n), either possibly a transposed view."""
    c = torch.empty(a.shape[0], b.shape[1])
    strides = [_long(stride) for stride in a.stride() + b.stride()]
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    _library.matrix_product(pointers[0], *strides[:2], pointers[1], *strides[2:], pointers[2], _int(c.shape[0]),
                            _int(c.shape[1]), _int(a.shape[1]))
    return c


class Linear(torch.autograd.Function):
    """x (n, in), weight (out, in) -> (n, out)."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.saved = (x, weight.detach())
        return _product(x, weight.detach().t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved
        grad = grad.contiguous()
        return _product(grad, weight), _product(grad.t(), x)


attention, rmsnorm, swiglu, linear = Attention.apply, RmsNorm.apply, SwiGlu.apply, Linear.apply
