#!/usr/bin/env python3
"""Times single ops of PyTorch: the peer of tools/bench_ops.cpp, which says what is read and answered. tools/compare_ops.py runs both.

    venv/bin/python tools/torch_ops.py THREADS < lines"""
import os
import statistics
import sys
import time

THREADS = sys.argv[1]
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = THREADS

import torch
import torch.nn.functional as f

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Case:
    """The sizes of a case, and its operands: floats() are the leaves that backward gives gradients."""
    def __init__(self, sizes, dtype, backward):
        self.n, self.dtype, self.backward, self.leaves = sizes, dtype, backward, []

    def leaf(self, values):
        x = values.to(self.dtype).detach().requires_grad_(self.backward)
        self.leaves.append(x)
        return x

    def constant(self, *shape):
        return torch.randn(*(shape or self.n)).to(self.dtype)

    def floats(self, *shape):
        return self.leaf(torch.randn(*(shape or self.n)))

    def image(self):
        return self.leaf(torch.randn(*self.n[:4]).contiguous(memory_format=torch.channels_last))

    def filters(self, *shape):
        return self.leaf(torch.randn(*shape).contiguous(memory_format=torch.channels_last))

    def indices(self, below, *shape):
        return torch.randint(0, below, shape or tuple(self.n))

    def flags(self):
        return torch.randn(*self.n) > 0

    def parameters(self):
        made = [torch.randn(self.n[1], requires_grad=True) for _ in range(self.n[0])]
        for parameter in made:
            parameter.grad = torch.randn(self.n[1])
        return made


def of_one(function):
    def make(c):
        x = c.floats()
        return lambda: function(x)
    return make


def of(function, *operands):
    """Of operands that are made first: functions of the case."""
    def make(c):
        made = [operand(c) for operand in operands]
        return lambda: function(*made)
    return make


def sizes(*places):
    """An operand whose sizes are those of the case at these places; the text "1" is a size of 1."""
    return lambda c: c.floats(*(1 if place == "1" else c.n[place] for place in places))


def of_image(function):
    def make(c):
        x, n = c.image(), c.n
        return lambda: function(x, n)
    return make


def whole(c):
    return c.floats()


def constant(c):
    return c.constant()


def conv2d(c):
    x, w, n = c.image(), c.filters(c.n[4], c.n[1] // c.n[8], c.n[5], c.n[5]), c.n
    return lambda: f.conv2d(x, w, None, n[6], n[7], 1, n[8])


def conv_transpose2d(c):
    x, w, n = c.image(), c.filters(c.n[1], c.n[4], c.n[5], c.n[5]), c.n
    return lambda: f.conv_transpose2d(x, w, None, n[6], n[7])


def conv1d(c):
    x, w, n = c.floats(*c.n[:3]), c.floats(c.n[3], c.n[1], c.n[4]), c.n
    return lambda: f.conv1d(x, w, None, n[5], n[6])


def attention(c):
    q, k, v = (c.floats(*c.n[:4]) for _ in range(3))
    return lambda: f.scaled_dot_product_attention(q, k, v, is_causal=bool(c.n[4]))


def rotary_embedding(c):
    x, half = c.floats(), c.n[3] // 2
    cosine, sine = (torch.randn(c.n[2], half).repeat(1, 2).to(c.dtype) for _ in range(2))
    return lambda: x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def kl_div(c):
    x, y = c.leaf(torch.randn(*c.n).log_softmax(-1)), torch.randn(*c.n).softmax(-1).to(c.dtype)
    return lambda: f.kl_div(x, y)


def layer_norm(c):
    x, w, b = c.floats(), c.leaf(torch.ones(c.n[1])), c.leaf(torch.zeros(c.n[1]))
    return lambda: f.layer_norm(x, (c.n[1],), w, b)


def rms_norm(c):
    x, w = c.floats(), c.floats(c.n[1])
    return lambda: f.rms_norm(x, (c.n[1],), w, 1e-5)


def batch_norm(c):
    x, w, b = c.image(), c.leaf(torch.ones(c.n[1])), c.leaf(torch.zeros(c.n[1]))
    mean, var = torch.zeros(c.n[1]), torch.ones(c.n[1])
    return lambda: f.batch_norm(x, mean, var, w, b, True)


def group_norm(c):
    x, w, b = c.image(), c.leaf(torch.ones(c.n[1])), c.leaf(torch.zeros(c.n[1]))
    return lambda: f.group_norm(x, c.n[4], w, b)


def selected(function, index_shape):
    def make(c):
        x, i = c.floats(*c.n[:2]), index_shape(c)
        return lambda: function(x, i)
    return make


def scatter_add(dim):
    def make(c):
        shape = (c.n[0], c.n[2]) if dim else (c.n[2], c.n[1])
        x, source, i = torch.zeros(*c.n[:2]).to(c.dtype), c.floats(*shape), c.indices(c.n[dim], *shape)
        return lambda: x.scatter_add(dim, i, source)
    return make


def product_and_sum_of_thirds(x):
    a, b, c = x.chunk(3, -1)
    return a * b + c


def recurrent(kind):
    def make(c):
        net, x = kind(c.n[0], c.n[1]).to(c.dtype), c.constant(c.n[2], c.n[3], c.n[0])
        c.leaves = list(net.parameters())
        return lambda: net(x)[0]
    return make


def update(kind, **options):
    def make(c):
        return kind(c.parameters(), lr=1e-3, fused=True, **options).step
    return make


OPS = {
    "mm_nn": of(torch.matmul, sizes(0, 2), sizes(2, 1)),
    "mm_nt": of(lambda x, w: x @ w.t(), sizes(0, 2), sizes(1, 2)),
    "mm_tn": of(lambda x, w: x.t() @ w, sizes(2, 0), sizes(2, 1)),
    "linear": of(f.linear, sizes(0, 2), sizes(1, 2), sizes(1)),
    "bmm": of(torch.matmul, sizes(0, 1, 3), sizes(0, 3, 2)),
    "bmm_nt": of(lambda x, w: x @ w.transpose(1, 2), sizes(0, 1, 3), sizes(0, 2, 3)),
    "einsum_bij_bkj": of(lambda x, y: torch.einsum("bij,bkj->bik", x, y), sizes(0, 1, 3), sizes(0, 2, 3)),
    "einsum_bshd_bthd": of(lambda x, y: torch.einsum("bshd,bthd->bhst", x, y), whole, whole),
    "einsum_bi_bj": of(lambda x, y: torch.einsum("bi,bj->bij", x, y), sizes(0, 1), sizes(0, 2)),
    "outer": of(torch.outer, sizes(0), sizes(1)),
    "attention": attention, "conv2d": conv2d, "conv_transpose2d": conv_transpose2d, "conv1d": conv1d,
    "relu": of_one(torch.relu), "gelu": of_one(f.gelu), "gelu_tanh": of_one(lambda x: f.gelu(x, approximate="tanh")), "silu": of_one(f.silu),
    "exp": of_one(torch.exp), "tanh": of_one(torch.tanh), "sigmoid": of_one(torch.sigmoid), "sin": of_one(torch.sin),
    "abs": of_one(torch.abs), "log1p": of_one(lambda x: x.abs().log1p()), "pow_3": of_one(lambda x: x ** 3.0),
    "pow_2.5": of(lambda x: x ** 2.5, lambda c: torch.rand(*c.n).to(c.dtype)), "square": of_one(lambda x: x * x), "clone": of(torch.clone, constant),
    "add": of(torch.add, whole, whole), "mul": of(torch.mul, whole, whole), "div": of(torch.div, whole, whole),
    "add_row": of(torch.add, whole, sizes(-1)), "add_column": of(torch.add, whole, sizes(0, "1")), "mul_middle": of(torch.mul, whole, sizes(0, "1", 2)),
    "add_transposed": of(lambda x, y: x + y.t(), whole, sizes(1, 0)),
    "where": of(lambda x, y, flags: torch.where(flags, x, y), whole, whole, Case.flags),
    "masked_fill": of(lambda x, flags: x.masked_fill(flags, -1.0), whole, Case.flags), "gt": of(lambda x: x > 0, constant),
    "to_bfloat16": of(lambda x: x.to(torch.bfloat16), lambda c: torch.randn(*c.n)), "to_float16": of(lambda x: x.to(torch.float16), lambda c: torch.randn(*c.n)),
    "int64_to_float32": of(torch.Tensor.float, lambda c: c.indices(1000)),
    "uint8_to_float32": of(torch.Tensor.float, lambda c: c.indices(255).to(torch.uint8)),
    "dropout": of_one(lambda x: f.dropout(x, 0.1)), "glu": of_one(f.glu), "rotary_embedding": rotary_embedding,
    "sum": of_one(torch.sum), "sum_0": of_one(lambda x: x.sum(0)), "sum_1": of_one(lambda x: x.sum(1)), "sum_last": of_one(lambda x: x.sum(-1)),
    "sum_0_2": of_one(lambda x: x.sum((0, 2))), "mean_1": of_one(lambda x: x.mean(1)), "amax": of_one(torch.amax), "amax_0": of_one(lambda x: x.amax(0)),
    "amax_1": of_one(lambda x: x.amax(1)), "argmax_0": of(lambda x: x.argmax(0), constant), "argmax_1": of(lambda x: x.argmax(1), constant),
    "var_0": of_one(lambda x: x.var(0)), "var_1": of_one(lambda x: x.var(1)), "std": of_one(torch.std), "norm": of_one(torch.linalg.vector_norm),
    "prod_1": of_one(lambda x: x.prod(1)), "any_1": of(lambda x: x.any(1), Case.flags), "count_nonzero": of(torch.count_nonzero, Case.flags),
    "logsumexp_1": of_one(lambda x: x.logsumexp(1)), "softmax": of_one(lambda x: x.softmax(-1)), "softmax_0": of_one(lambda x: x.softmax(0)),
    "softmax_1": of_one(lambda x: x.softmax(1)), "log_softmax": of_one(lambda x: x.log_softmax(-1)), "cumsum_0": of_one(lambda x: x.cumsum(0)),
    "cumsum_1": of_one(lambda x: x.cumsum(1)), "cumprod_1": of_one(lambda x: x.cumprod(1)),
    "cross_entropy": of(f.cross_entropy, whole, lambda c: c.indices(c.n[1], c.n[0])), "mse_loss": of(f.mse_loss, whole, constant),
    "l1_loss": of(f.l1_loss, whole, constant), "smooth_l1_loss": of(f.smooth_l1_loss, whole, constant),
    "bce_with_logits": of(f.binary_cross_entropy_with_logits, whole, lambda c: torch.rand(*c.n).to(c.dtype)), "kl_div": kl_div,
    "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm, "group_norm": group_norm,
    "max_pool2d": of_image(lambda x, n: f.max_pool2d(x, n[4], n[5], n[6])), "avg_pool2d": of_image(lambda x, n: f.avg_pool2d(x, n[4], n[5], n[6])),
    "adaptive_avg_pool2d": of_image(lambda x, n: f.adaptive_avg_pool2d(x, n[4])),
    "bilinear": of_image(lambda x, n: f.interpolate(x, size=n[4], mode="bilinear")), "nearest": of_image(lambda x, n: f.interpolate(x, size=n[4])),
    "pad": of_image(lambda x, n: f.pad(x, (n[4],) * 4)), "pad_reflect": of_image(lambda x, n: f.pad(x, (n[4],) * 4, mode="reflect")),
    "embedding": selected(lambda w, i: f.embedding(i, w), lambda c: c.indices(c.n[0], c.n[2])),
    "index_select_0": selected(lambda x, i: x.index_select(0, i), lambda c: c.indices(c.n[0], c.n[2])),
    "index_select_1": selected(lambda x, i: x.index_select(1, i), lambda c: c.indices(c.n[1], c.n[2])),
    "gather_0": selected(lambda x, i: x.gather(0, i), lambda c: c.indices(c.n[0], c.n[2], c.n[1])),
    "gather_1": selected(lambda x, i: x.gather(1, i), lambda c: c.indices(c.n[1], c.n[0], c.n[2])),
    "scatter_add_0": scatter_add(0), "scatter_add_1": scatter_add(1),
    "masked_select": of(torch.masked_select, whole, Case.flags), "nonzero": of(torch.nonzero, Case.flags), "sort_0": of(lambda x: x.sort(0), constant),
    "sort_1": of(lambda x: x.sort(1), constant), "argsort_int64": of(lambda x: x.argsort(-1), lambda c: c.indices(1000000)),
    "topk": lambda c: of(lambda x: x.topk(c.n[2], 1), lambda c: c.constant(*c.n[:2]))(c),
    "kthvalue": lambda c: of(lambda x: x.kthvalue(c.n[2], 1), lambda c: c.constant(*c.n[:2]))(c),
    "unique": of(torch.unique, lambda c: c.indices(c.n[1], c.n[0])), "bincount": of(torch.bincount, lambda c: c.indices(c.n[1], c.n[0])),
    "searchsorted": of(torch.searchsorted, lambda c: torch.randn(c.n[0]).sort()[0], lambda c: torch.randn(c.n[1])),
    "one_hot": lambda c: of(lambda x: f.one_hot(x, c.n[1]), lambda c: c.indices(c.n[1], c.n[0]))(c),
    "tril": of_one(torch.tril), "flip_0": of_one(lambda x: x.flip(0)), "flip_1": of_one(lambda x: x.flip(1)), "roll_1": of_one(lambda x: x.roll(7, 1)),
    "repeat": of_one(lambda x: x.repeat(4, 1)), "repeat_interleave": of_one(lambda x: x.repeat_interleave(4, 1)),
    "cat_0": of(lambda x, y: torch.cat([x, y], 0), whole, whole), "cat_1": of(lambda x, y: torch.cat([x, y], 1), whole, whole),
    "stack_last": of(lambda x, y: torch.stack([x, y], -1), whole, whole), "transpose": of_one(lambda x: x.t().contiguous()),
    "permute_0213": of_one(lambda x: x.permute(0, 2, 1, 3).contiguous()), "permute_0231": of_one(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    "permute_0312": of_one(lambda x: x.permute(0, 3, 1, 2).contiguous()), "half": of_one(lambda x: x[:, :x.shape[1] // 2].contiguous()),
    "every_second": of_one(lambda x: x[:, ::2].contiguous()), "chunk_3": of_one(product_and_sum_of_thirds),
    "lstm": recurrent(torch.nn.LSTM), "gru": recurrent(torch.nn.GRU), "rnn": recurrent(torch.nn.RNN),
    "randn": lambda c: lambda: torch.randn(*c.n), "rand": lambda c: lambda: torch.rand(*c.n), "zeros": lambda c: lambda: torch.zeros(*c.n),
    "randint": lambda c: lambda: torch.randint(0, 1000, tuple(c.n)), "randperm": lambda c: lambda: torch.randperm(c.n[0]),
    "multinomial": lambda c: of(lambda w: torch.multinomial(w, c.n[2], True), lambda c: torch.rand(*c.n[:2]))(c),
    "adamw": update(torch.optim.AdamW), "sgd_momentum": update(torch.optim.SGD, momentum=0.9),
    "clip_grad_norm": of(lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0), Case.parameters),
}


def call_of(c, function):
    if not c.backward:
        def forward():
            with torch.no_grad():
                function()
        return forward
    y = function()
    gradient = torch.randn(y.shape).to(y.dtype)
    if y.dim() == 4 and not y.is_contiguous():
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    del y

    def both():
        function().backward(gradient)
        for leaf in c.leaves:
            leaf.grad = None
    return both


def time_of(line):
    op, sizes_text, dtype, direction, milliseconds = line.split()
    c = Case([int(n) for n in sizes_text.split(",")], DTYPES[dtype], direction == "fb")
    call = call_of(c, OPS[op](c))
    wanted, first = float(milliseconds) / 1e3, time.perf_counter()
    most = 10 * wanted
    call()
    if time.perf_counter() - first < most:
        call()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < (most if len(times) < 3 else wanted):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return f"{1e6 * statistics.median(times):.3f} {1e6 * min(times):.3f}"


def main():
    torch.set_num_threads(int(THREADS))
    for line in sys.stdin:
        try:
            answer = time_of(line)
        except Exception as error:
            answer = "error: " + str(error).replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
