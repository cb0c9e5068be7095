"""Random cases for tools/random_ops.py: inputs of all dtypes, shapes with sizes of 0 and 1, ties, and PyTorch's function of them."""
import math
import random

import torch
import torch.nn.functional as f

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
         torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8", torch.bool: "boolean"}

r = random.Random()


def shape(low=0, high=4, empty=True):
    sizes = [1, 2, 3, 4, 5, 7] + ([0] if empty and r.random() < 0.15 else [])
    return [r.choice(sizes) for _ in range(r.randint(low, high))]


def values(sizes, dtype=None, positive=False, distinct=False):
    """Numbers around 1 with ties, or all different."""
    dtype = dtype or r.choice(FLOATS)
    count = math.prod(sizes)
    if dtype == torch.bool:
        x = torch.tensor([r.random() < 0.5 for _ in range(count)], dtype=torch.bool)
    elif not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 or positive else -6
        x = torch.tensor([r.randint(low, 9) for _ in range(count)], dtype=dtype)
    elif distinct:
        x = (torch.tensor(r.sample(range(1, count + 1), count), dtype=torch.float64) / 8 - count / 16 - 0.05).to(dtype)
    else:
        x = torch.tensor([r.choice([r.uniform(-2, 2), r.randint(-4, 4) / 2]) for _ in range(count)], dtype=torch.float64)
        x = (x.abs() + 0.2 if positive else x).to(dtype)
    return x.reshape(sizes)


def any_dtype():
    return r.choice(FLOATS * 2 + INTEGERS + [torch.bool])


def dims_of(x):
    return list(range(x.dim()))


def dim_of(x):
    return r.choice(range(-x.dim(), x.dim())) if x.dim() else r.choice([0, -1])


def axes_of(x):
    if x.dim() == 0 or r.random() < 0.25:
        return []
    return [d - r.choice([0, x.dim()]) for d in r.sample(dims_of(x), r.randint(1, x.dim()))]


def words(*arguments):
    def word(a):
        if isinstance(a, bool):
            return str(int(a))
        if isinstance(a, (list, tuple)):
            return ",".join(str(v) for v in a) or "-"
        if a is None:
            return "-"
        return NAMES.get(a, str(a)) if isinstance(a, torch.dtype) else str(a)
    return [word(a) for a in arguments]


class Case:
    """inputs, words for the program, and the function on the inputs."""
    def __init__(self, inputs, arguments, function, gradients=True):
        self.inputs, self.arguments, self.function, self.gradients = inputs, arguments, function, gradients


def reduction(name):
    def make():
        x = values(shape(), any_dtype() if name in ("sum", "prod", "mean") else None)
        axes, keep, dtype = axes_of(x), r.random() < 0.5, r.choice([None, None, torch.float32, torch.float64])
        if name == "mean" and not x.dtype.is_floating_point:
            dtype = torch.float32
        if name == "prod":
            axes = axes[:1]
        function = getattr(torch, name)

        def run(x):
            if not axes:
                y = function(x, dtype=dtype)
                return y.reshape([1] * x.dim()) if keep else y
            return function(x, axes[0] if name == "prod" else axes, keepdim=keep, dtype=dtype)
        return Case([x], words(axes, keep, dtype), run)
    return make


def spread(name):
    def make():
        x = values(shape())
        axes, keep, correction = axes_of(x), r.random() < 0.5, r.choice([0, 1, 1, 2])
        options = dict(dim=axes or None, keepdim=keep, correction=correction)
        return Case([x], words(axes, keep, correction), lambda x: getattr(torch, name)(x, **options))
    return make


def truth(name):
    def make():
        x = values(shape(), any_dtype())
        axes, keep = axes_of(x), r.random() < 0.5

        def run(x):
            if name == "count_nonzero":
                return torch.count_nonzero(x, dim=axes or None)
            y = getattr(torch, name)(x, dim=axes or None, keepdim=keep)
            return y.bool()  # PyTorch keeps uint8
        return Case([x], words(axes, keep), run)
    return make


def argmin():
    x = values(shape(), r.choice(FLOATS + INTEGERS), distinct=True)
    d, keep = dim_of(x), r.random() < 0.5
    return Case([x], words(d, keep), lambda x: torch.argmin(x, d, keep))


def quantile():
    x = values(shape(empty=False), r.choice(FLOATS[:2]), distinct=True)
    d, keep = (None if r.random() < 0.3 else dim_of(x)), r.random() < 0.5
    q, mode = r.choice([0.0, 1.0, 0.5, round(r.random(), 3)]), r.choice(["linear", "lower", "higher", "nearest", "midpoint"])
    return Case([x], words(q, d, keep, mode), lambda x: torch.quantile(x, q, d, keep, interpolation=mode))


def along(name):
    def make():
        x = values(shape(), any_dtype() if name.startswith("cum") else None)
        d = dim_of(x)
        if name == "softmin":
            return Case([x], words(d), lambda x: f.softmin(x, d))
        dtype = r.choice([None, torch.float32, torch.float64, torch.float16]) if name.startswith("cum") else r.choice(FLOATS)
        function = getattr(torch, name)
        return Case([x], words(d, dtype), lambda x: function(x, d, dtype=dtype))
    return make


def logsumexp():
    x = values(shape(empty=False))
    axes, keep = axes_of(x) or dims_of(x), r.random() < 0.5
    return Case([x], words(axes, keep), lambda x: torch.logsumexp(x, axes, keep) if axes else torch.logsumexp(x, [], keep))


def sort():
    x = values(shape(), any_dtype())
    d, descending = dim_of(x), r.random() < 0.5
    return Case([x], words(d, descending), lambda x: torch.sort(x, dim=d, descending=descending, stable=True))


def first(name):
    def make():
        x = values(shape(), distinct=True)
        d = dim_of(x)
        n, flag = (x.shape[d] if x.dim() else 1), r.random() < 0.5
        k = r.randint(0 if name == "topk" and x.dim() else 1, max(n, 1))
        if name == "topk":
            return Case([x], words(k, d, flag), lambda x: torch.topk(x, k, d, flag)[0])
        return Case([x], words(k, d, flag), lambda x: torch.kthvalue(x, k, d, flag)[0])
    return make


def searchsorted():
    lead, dtype, right = shape(0, 2), r.choice(FLOATS + INTEGERS), r.random() < 0.5
    x = values((lead if r.random() < 0.6 else []) + [r.randint(0, 9)], dtype)
    y = values((lead if x.dim() > 1 or not lead else shape(0, 2)) + [r.randint(0, 5)], dtype)
    return Case([x, y], words(right), lambda x, y: torch.searchsorted(x.sort(-1)[0].detach(), y.detach(), right=right), False)


def isin():
    dtype = r.choice(FLOATS[:2] + INTEGERS)
    return Case([values(shape(), dtype), values(shape(), dtype)], [], torch.isin, False)


def unique():
    x = values(shape(), any_dtype())
    return Case([x], [], lambda x: torch.unique(x.detach(), return_inverse=True, return_counts=True), False)


def bincount():
    x, least = values([r.randint(0, 20)], r.choice(INTEGERS), positive=True), r.randint(0, 12)
    if r.random() < 0.5:
        return Case([x], words(least), lambda x: torch.bincount(x, minlength=least))
    w = values([x.numel()], r.choice([torch.float32, torch.float64, torch.int64]))
    return Case([x, w], words(least), lambda x, w: torch.bincount(x, w.detach(), least), False)


def nonzero():
    return Case([values(shape(), any_dtype())], [], torch.nonzero)


def masked_select():
    sizes = shape()
    other = [r.choice([n, n, 1]) for n in sizes][r.randint(0, len(sizes)):]
    return Case([values(sizes, any_dtype()), values(other, torch.bool)], [], torch.masked_select)


def one_hot():
    x = values(shape(), torch.int64, positive=True)
    n = r.choice([10, 12, -1])
    return Case([x], words(n), lambda x: f.one_hot(x, n))


def triangle(name):
    def make():
        x, k = values(shape(2), any_dtype()), r.randint(-4, 4)
        return Case([x], words(k), lambda x: getattr(torch, name)(x, k))
    return make


def diag():
    x, k = values(shape(1, 2), any_dtype()), r.randint(-4, 4)
    return Case([x], words(k), lambda x: torch.diag(x, k))


def flip():
    x = values(shape(), any_dtype())
    axes = axes_of(x)
    return Case([x], words(axes), lambda x: torch.flip(x, axes))


def roll():
    x = values(shape(1), any_dtype())
    dims = [dim_of(x) for _ in range(r.randint(1, 2))]
    shifts = [r.randint(-9, 9) for _ in dims]
    return Case([x], words(shifts, dims), lambda x: torch.roll(x, shifts, dims))


def roll_all():
    x, shift = values(shape(), any_dtype()), r.randint(-9, 9)
    return Case([x], words(shift), lambda x: torch.roll(x, shift))


def repeat():
    x = values(shape(0, 3), any_dtype())
    counts = [r.choice([1, 1, 2, 3, 0 if r.random() < 0.2 else 2]) for _ in range(x.dim() + r.randint(0 if x.dim() else 1, 1))]
    return Case([x], words(counts), lambda x: x.repeat(*counts))


def repeat_interleave():
    x = values(shape(1), any_dtype())
    d, n = dim_of(x), r.randint(0, 3)
    return Case([x], words(n, d), lambda x: torch.repeat_interleave(x, n, d))


def repeat_interleave_counts():
    x = values(shape(1), any_dtype())
    d = dim_of(x)
    counts = torch.tensor([r.randint(0, 3) for _ in range(x.shape[d])], dtype=torch.int64)
    return Case([x, counts], words(d), lambda x, n: torch.repeat_interleave(x, n, d))


def parts(name):
    def make():
        x = values(shape(1), any_dtype())
        d, n = dim_of(x), r.randint(1, 4)
        if name == "unbind":
            return Case([x], words(d), lambda x: torch.unbind(x, d))
        return Case([x], words(n, d), lambda x: getattr(torch, name)(x, n, d))
    return make


def stack():
    sizes = shape(0, 3)
    all_of = [values(sizes, any_dtype()) for _ in range(r.randint(1, 3))]
    d = r.choice(range(-len(sizes) - 1, len(sizes) + 1))
    return Case(all_of, words(d), lambda *x: torch.stack(x, d))


def unary(name, integral=True):
    def make():
        x = values(shape(), r.choice(FLOATS * 2 + (INTEGERS if integral else [])))
        return Case([x], [], getattr(torch, name, None) or getattr(f, name))
    return make


def with_numbers(name, numbers):
    def make():
        x, n = values(shape()), numbers()
        return Case([x], words(*n), lambda x: getattr(f, name)(x, *n))
    return make


def broadcast(sizes):
    kept = [r.choice([n, n, n, 1]) for n in sizes]
    return kept[r.randint(0, len(kept)):] if r.random() < 0.3 else kept


def binary(name, dtypes):
    def make():
        sizes = shape()
        b = values(broadcast(sizes), r.choice(dtypes))
        if name == "remainder":
            b = torch.where(b == 0, torch.ones_like(b), b)
        return Case([values(sizes, r.choice(dtypes)), b], [], getattr(torch, name))
    return make


def remainder_scalar():
    x, n = values(shape(), r.choice(FLOATS + INTEGERS)), r.choice([1, -2, 0.5, 3, -0.75])
    return Case([x], words(n), lambda x: torch.remainder(x, n))


def three(name):
    def make():
        sizes, dtype = shape(), r.choice(FLOATS)
        x = [values(sizes, dtype), values(broadcast(sizes), dtype), values(broadcast(sizes), dtype, positive=True)]
        if name == "lerp":
            return Case(x, [], torch.lerp)
        value = r.choice([1, 0.5, -2])
        return Case(x, words(value), lambda x, a, b: getattr(torch, name)(x, a, b, value=value))
    return make


def lerp_scalar():
    sizes, dtype, w = shape(), r.choice(FLOATS), r.choice([0, 0.25, 0.5, 0.9, 1, 1.5])
    return Case([values(sizes, dtype), values(broadcast(sizes), dtype)], words(w), lambda a, b: torch.lerp(a, b, w))


def glu():
    x = values(shape(1))
    d = dim_of(x)
    x = torch.cat([x, x.flip(d)], d)
    return Case([x], words(d), lambda x: f.glu(x, d))


def swiglu():
    sizes, dtype = shape(), r.choice(FLOATS)
    return Case([values(sizes, dtype), values(sizes, dtype)], [], lambda a, b: f.silu(a) * b)


def vectors(name):
    def make():
        n, dtype = r.randint(0, 9), r.choice(FLOATS)
        m = n if name == "dot" else r.randint(0, 5)
        return Case([values([n], dtype), values([m], dtype)], [], getattr(torch, name))
    return make


def products(name):
    def make():
        n, k, m, b, dtype = r.randint(0, 4), r.randint(0, 6), r.randint(1, 4), r.randint(0, 3), r.choice(FLOATS)
        lead = [] if name == "addmm" else [b]
        x, y = values(lead + [n, k], dtype), values(lead + [k, m], dtype)
        if name == "bmm":
            return Case([x, y], [], torch.bmm)
        beta, alpha = r.choice([0, 1, 0.5]), r.choice([1, 2])
        z = values(r.choice([lead + [n, m], [m], [n, 1], []] if name == "addmm" else [lead + [n, m], lead + [1, m], [m]]), dtype)
        return Case([z, x, y], words(beta, alpha), lambda z, x, y: getattr(torch, name)(z, x, y, beta=beta, alpha=alpha))
    return make


def einsum():
    sizes, letters = {c: r.choice([1, 2, 3, 4]) for c in "abcde"}, "abcde"
    count, dtype = r.randint(1, 3), r.choice(FLOATS[:2])
    terms = ["".join(r.choice(letters) if r.random() < 0.1 else c for c in r.sample(letters, r.randint(1, 3))) for _ in range(count)]
    used = sorted(set("".join(terms)))
    equation = ",".join(terms) + (("->" + "".join(r.sample(used, r.randint(0, min(3, len(used)))))) if r.random() < 0.7 else "")
    return Case([values([sizes[c] for c in term], dtype) for term in terms], [equation], lambda *x: torch.einsum(equation, *x))


def cosine_similarity():
    sizes, dtype = shape(1), r.choice(FLOATS[:2])  # PyTorch's eps is 0 in float16
    x, y = values(sizes, dtype), values(broadcast(sizes), dtype)
    d = dim_of(x)
    return Case([x, y], words(d), lambda x, y: f.cosine_similarity(x, y, d))


def pairwise_distance():
    sizes, dtype, p, keep = shape(1, 2, empty=False), r.choice(FLOATS), r.choice([1, 2, 3, math.inf]), r.random() < 0.5
    x = values(sizes, dtype, distinct=True), values(sizes, dtype)
    return Case(list(x), words(p, keep), lambda x, y: f.pairwise_distance(x, y, p, keepdim=keep))


def normalize():
    x, p = values(shape(1), r.choice(FLOATS[:2]), positive=True), r.choice([1, 2, 3])
    d = dim_of(x)
    return Case([x], words(p, d), lambda x: f.normalize(x, p, d))


def reduce_word():
    return r.choice(["mean", "sum", "none"])


def kl_div():
    sizes, dtype, log = shape(1, 3), r.choice(FLOATS), r.random() < 0.5
    how = r.choice(["mean", "sum", "none", "batchmean"])
    x, t = values(sizes, dtype), values(sizes, dtype, positive=not log)
    return Case([x, t], words(how, log), lambda x, t: f.kl_div(x, t, reduction=how, log_target=log))


def huber_loss():
    sizes, dtype, how, delta = shape(), r.choice(FLOATS), reduce_word(), r.choice([0.5, 1, 2])
    return Case([values(sizes, dtype), values(sizes, dtype)], words(how, delta),
                lambda x, t: f.huber_loss(x, t, reduction=how, delta=delta))


def signs(sizes, dtype):
    return torch.tensor([r.choice([-1, 1]) for _ in range(math.prod(sizes))], dtype=dtype).reshape(sizes)


def hinge_embedding_loss():
    sizes, dtype, how, margin = shape(), r.choice(FLOATS), reduce_word(), r.choice([0.3, 1.1])
    return Case([values(sizes, dtype), signs(sizes, dtype)], words(how, margin),
                lambda x, t: f.hinge_embedding_loss(x, t.detach(), margin, reduction=how))


def cosine_embedding_loss():
    sizes, dtype, how, margin = [r.randint(1, 4), r.randint(1, 5)], r.choice(FLOATS[:2]), reduce_word(), r.choice([0, 0.3, -0.2])
    x = [values(sizes, dtype, positive=True), values(sizes, dtype), signs(sizes[:1], torch.int64)]
    return Case(x, words(how, margin), lambda a, b, t: f.cosine_embedding_loss(a, b, t, margin, reduction=how))


def triplet_margin_loss():
    sizes, dtype, how, margin, p, swap = shape(2, 2, False), r.choice(FLOATS[:2]), reduce_word(), 0.7, r.choice([1, 2]), r.random() < 0.5
    x = [values(sizes, dtype) for _ in range(3)]
    return Case(x, words(how, margin, p, swap),
                lambda a, b, c: f.triplet_margin_loss(a, b, c, margin, p, swap=swap, reduction=how))


def classes(name):
    def make():
        lead, n, dtype, how = shape(0, 3), r.randint(1, 6), r.choice(FLOATS), reduce_word()
        x = values(lead + [n], dtype)
        soft = name == "cross_entropy" and r.random() < 0.3 and lead
        t = values(lead + [n], dtype, positive=True) if soft else torch.tensor(
            [r.choice([-100, *range(n)]) for _ in range(math.prod(lead))], dtype=torch.int64).reshape(lead)
        w = values([n], dtype, positive=True) if r.random() < 0.5 else None
        smoothing = r.choice([0, 0.2]) if name == "cross_entropy" else 0

        def run(x, t, w=None):
            flat_t = t.reshape(-1, n) if soft else t.reshape(-1)
            w, x = (None if w is None else w.detach()), x.reshape(-1, n)
            y = f.cross_entropy(x, flat_t, w, reduction=how, label_smoothing=smoothing) if name == "cross_entropy" else \
                f.nll_loss(f.log_softmax(x, -1), flat_t, w, reduction=how)
            return y.reshape(lead) if how == "none" else y
        return Case([x, t] + ([w] if w is not None else []), words(how, smoothing), run)
    return make


MAKERS = {
    **{name: reduction(name) for name in ("sum", "mean", "prod")}, **{name: spread(name) for name in ("var", "std", "var_mean")},
    **{name: truth(name) for name in ("any", "all", "count_nonzero")}, "argmin": argmin, "quantile": quantile,
    **{name: along(name) for name in ("cumsum", "cumprod", "softmax", "log_softmax", "softmin")}, "logsumexp": logsumexp,
    "sort": sort, "topk": first("topk"), "kthvalue": first("kthvalue"), "searchsorted": searchsorted, "isin": isin, "unique": unique,
    "bincount": bincount, "nonzero": nonzero, "masked_select": masked_select, "one_hot": one_hot, "tril": triangle("tril"),
    "triu": triangle("triu"), "diag": diag, "flip": flip, "roll": roll, "roll_all": roll_all, "repeat": repeat,
    "repeat_interleave": repeat_interleave, "repeat_interleave_counts": repeat_interleave_counts,
    **{name: parts(name) for name in ("split", "chunk", "unbind")}, "stack": stack,
    **{name: unary(name) for name in ("floor", "ceil", "round", "trunc", "isnan", "isinf")}, "mish": unary("mish", False),
    "elu": with_numbers("elu", lambda: [r.choice([1, 0.5, 2])]),
    "leaky_relu": with_numbers("leaky_relu", lambda: [r.choice([0.01, 0.3])]),
    "hardtanh": with_numbers("hardtanh", lambda: [-r.choice([1, 0.5]), r.choice([1, 0.5])]),
    "remainder": binary("remainder", FLOATS + INTEGERS), "remainder_scalar": remainder_scalar,
    "atan2": binary("atan2", FLOATS * 2 + INTEGERS), "lerp": three("lerp"), "lerp_scalar": lerp_scalar, "addcmul": three("addcmul"),
    "addcdiv": three("addcdiv"), "glu": glu, "swiglu": swiglu, "outer": vectors("outer"), "dot": vectors("dot"),
    **{name: products(name) for name in ("bmm", "addmm", "baddbmm")}, "einsum": einsum, "cosine_similarity": cosine_similarity,
    "pairwise_distance": pairwise_distance, "normalize": normalize, "kl_div": kl_div, "huber_loss": huber_loss,
    "hinge_embedding_loss": hinge_embedding_loss, "cosine_embedding_loss": cosine_embedding_loss,
    "triplet_margin_loss": triplet_margin_loss, "cross_entropy": classes("cross_entropy"), "nll_loss": classes("nll_loss"),
}
