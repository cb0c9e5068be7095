"""Random cases of look-ups and writes by index, and of the losses that random_cases.py has no room for."""
import math

import torch
import torch.nn.functional as f
from random_cases import FLOATS, INTEGERS, Case, any_dtype, broadcast, dim_of, r, reduce_word, shape, signs, values, words


def indices(sizes, n, negative=False, dtype=None):
    low = -n if negative else 0
    x = [r.randint(low, max(n - 1, low)) for _ in range(math.prod(sizes))]
    return torch.tensor(x, dtype=dtype or r.choice([torch.int64, torch.int64, torch.int32])).reshape(sizes)


def entry(x, d, tensors, first, common):
    """A random entry for dimensions from d on: its word, its Python value or the number of its tensor, and the dimensions it takes."""
    n = x.shape[d]
    kind = r.choice("iissttttm")
    if kind == "i" and n > 0:
        i = r.randint(-n, n - 1)
        return f"i{i}", i, 1
    if kind == "t" and n > 0:
        t = indices([] if r.random() < 0.2 else broadcast(common), n, negative=r.random() < 0.5)
    elif kind == "m":
        dims = r.randint(0, min(2, x.dim() - d))
        t = values(list(x.shape[d:d + dims]), torch.bool)
    else:
        start, stop, step = r.randint(-n - 1, n + 1), r.randint(-n - 1, n + 1), r.choice([1, 1, 2])
        return f"s{start}:{stop}:{step}", slice(start, stop, step), 1
    tensors.append(t)
    number = first + len(tensors) - 1
    return f"t{number}", (number,), t.dim() if t.dtype == torch.bool else 1


def expression(x, first):
    """Words, Python entries (a tensor is a tuple of its number), and the tensors, which are inputs from `first` on."""
    tensors, parts, d, common = [], [], 0, [r.randint(1, 4) for _ in range(r.choice([1, 1, 1, 2, 0]))]
    dots = r.random() < 0.3
    while d < x.dim() and r.random() < 0.85:
        if r.random() < 0.15:
            parts.append(("x", None, 0))
        parts.append(entry(x, d, tensors, first, common))
        d += parts[-1][2]
        if dots and r.random() < 0.3:
            parts.append(("e", Ellipsis, 0))
            d, dots = r.randint(d, x.dim()), False
            skipped = x.dim()
            rest = []
            while d < skipped and r.random() < 0.7:
                rest.append(entry(x, d, tensors, first, common))
                d += rest[-1][2]
            if d != skipped:  # entries after an ellipsis are those of the last dimensions
                rest = rest if sum(p[2] for p in rest) == 0 else []
                while len(tensors) and not any(isinstance(p[1], tuple) and p[1][0] == first + len(tensors) - 1 for p in parts + rest):
                    tensors.pop()
            parts += rest
            break
    return ",".join(p[0] for p in parts) or "-", [p[1] for p in parts], tensors


def python(entries, inputs):
    return tuple(inputs[e[0]] if isinstance(e, tuple) else e for e in entries)


def getitem():
    x = values(shape(0, 4), any_dtype())
    word, entries, tensors = expression(x, 1)
    return Case([x] + tensors, [word], lambda *x: x[0][python(entries, x)].clone())


def index_put():
    x = values(shape(0, 3), any_dtype())
    word, entries, tensors = expression(x, 2)
    try:
        place = torch.arange(x.numel()).reshape(x.shape)[python(entries, [x, x] + tensors)]
    except (RuntimeError, IndexError):
        place = torch.arange(1)
    accumulate = place.unique().numel() != place.numel() or r.random() < 0.3
    if accumulate and x.dtype == torch.bool:
        x = x.to(torch.float32)
    v = values(broadcast(list(place.shape)), x.dtype)

    def run(*x):
        if not accumulate:
            y = x[0].clone()
            y[python(entries, x)] = x[1]
            return y
        where = torch.arange(x[0].numel()).reshape(x[0].shape)[python(entries, x)]
        return x[0].flatten().index_put((where.flatten(),), x[1].expand(where.shape).flatten(), True).reshape(x[0].shape)
    return Case([x, v] + tensors, words(word, accumulate), run)


def index_select():
    x = values(shape(0, 3), any_dtype())
    d = dim_of(x)
    i = indices(r.choice([[], [r.randint(0, 5)]]) if x.dim() else [1], x.shape[d] if x.dim() else 1)
    return Case([x, i], words(d), lambda x, i: torch.index_select(x, d, i))


def elements(name, dtypes, distinct=False):
    """x, dim, an index that may be smaller than x elsewhere, and a src that may be larger than index."""
    def make():
        x = values(shape(0, 3, empty=not distinct), r.choice(dtypes))
        d = dim_of(x)
        n = x.shape[d] if x.dim() else 1
        count = r.randint(0, n if distinct else 6)
        own = [count if k == d % x.dim() else r.choice([s, s, s - 1 if s > 1 else s]) for k, s in enumerate(x.shape)]
        i = indices(own if x.dim() else r.choice([[], [1]]), n, dtype=torch.int64)
        if distinct and x.dim():  # different along dim
            i = torch.rand([n if k == d % x.dim() else s for k, s in enumerate(own)]).argsort(d).narrow(d, 0, count)
        larger = [0] if x.dtype.is_floating_point else [0, 0, 1]  # PyTorch has no gradient of a larger src
        src = values([s + r.choice(larger) for s in i.shape], x.dtype)
        if name == "gather":
            return Case([x, i], words(d), lambda x, i: torch.gather(x, d, i))
        if name == "scatter_number":
            value = r.choice([0, 1, 2])
            return Case([x, i], words(d, value), lambda x, i: torch.scatter(x, d, i, value))
        if name == "scatter_reduce":
            how, self = r.choice(["sum", "prod", "mean", "amax", "amin"]), r.random() < 0.6
            if x.dtype.is_floating_point and how == "prod":
                x, src = x + (x == 0), src + (src == 0)
            if x.dtype.is_floating_point and how[0] == "a":
                x = x + 0.03  # no ties with src: PyTorch counts them for the gradient if the old value does not count, too
            return Case([x, i, src], words(d, how, self),
                        lambda x, i, s: torch.scatter_reduce(x, d, i, s, how, include_self=self))
        return Case([x, i, src], words(d), lambda x, i, s: getattr(torch, name)(x, d, i, s))
    return make


def slices(name, dtypes):
    def make():
        x = values(shape(0, 3), r.choice(dtypes))
        d = dim_of(x)
        n = x.shape[d] if x.dim() else 1
        i = torch.tensor(r.sample(range(n), r.randint(0, n)), dtype=torch.int64) if x.dim() and name == "index_copy" else \
            indices([r.randint(0, 5)] if x.dim() else r.choice([[], [1]]), n, negative=name == "index_fill" and r.random() < 0.5, dtype=torch.int64)
        if n == 0:
            i = i[:0]
        src = values([i.numel() if k == d % x.dim() else s for k, s in enumerate(x.shape)], x.dtype)
        if name == "index_fill":
            value = r.choice([0, 1, 3])
            return Case([x, i], words(d, value), lambda x, i: torch.index_fill(x, d, i, value))
        if name == "index_add":
            alpha = r.choice([1, 1, 2])
            return Case([x, i, src], words(d, alpha), lambda x, i, s: torch.index_add(x, d, i, s, alpha=alpha))
        if name == "index_reduce":
            how, self = r.choice(["prod", "mean", "amax", "amin"]), r.random() < 0.6
            if x.dtype.is_floating_point and how == "prod":
                x, src = x + (x == 0), src + (src == 0)
            if x.dtype.is_floating_point and how[0] == "a":
                x = x + 0.03
            return Case([x, i, src], words(d, how, self), lambda x, i, s: torch.index_reduce(x, d, i, s, how, include_self=self))
        return Case([x, i, src], words(d), lambda x, i, s: torch.index_copy(x, d, i, s))
    return make


def masked_scatter():
    sizes, dtype = shape(), any_dtype()
    x, mask = values(broadcast(sizes), dtype), values(broadcast(sizes), torch.bool)
    count = math.prod(sizes) + r.choice([-2, 0, 3])
    return Case([x, mask, values([max(count, 0)], dtype)], [], torch.masked_scatter)


def take_along_dim():
    sizes = shape(1, 3, empty=False)
    x = values(sizes if r.random() < 0.6 else [r.choice([s, 1]) for s in sizes], any_dtype())
    if r.random() < 0.3:
        return Case([x, indices(shape(0, 2), x.numel(), True, torch.int64)], ["-"], lambda x, i: torch.take_along_dim(x, i))
    d = dim_of(x)
    own = [r.randint(0, 4) if x.dim() and k == d % x.dim() else r.choice([s, 1]) for k, s in enumerate(sizes)]
    i = indices(own, x.shape[d], r.random() < 0.5, torch.int64)
    return Case([x, i], words(d), lambda x, i: torch.take_along_dim(x, i, d))


def take():
    x = values(shape(0, 3, empty=False), any_dtype())
    return Case([x, indices(shape(0, 2), x.numel(), True, torch.int64)], [], torch.take)


def put():
    x = values(shape(0, 3, empty=False), r.choice(FLOATS + INTEGERS))
    accumulate = r.random() < 0.5
    i = indices([r.randint(0, 5)], x.numel(), True, torch.int64) if accumulate else \
        torch.tensor(r.sample(range(x.numel()), r.randint(0, x.numel())), dtype=torch.int64)
    return Case([x, i, values([i.numel()], x.dtype)], words(accumulate), lambda x, i, s: torch.Tensor.put(x, i, s, accumulate))


def probabilities(sizes, dtype):
    return torch.sigmoid(values(sizes, torch.float64)).to(dtype)


def binary_cross_entropy(name):
    def make():
        sizes, how = shape(), reduce_word()
        dtype = r.choice(FLOATS)
        x = values(sizes, dtype) if "logits" in name else probabilities(sizes, dtype)
        inputs, weight, pos = [x, probabilities(sizes, dtype)], r.random() < 0.5, "logits" in name and r.random() < 0.6
        for wanted in (weight, pos):
            inputs += [values(broadcast(sizes), dtype, positive=True).abs()] if wanted else []

        def run(x, t, *w):
            options = {"weight": w[0].detach()} if weight else {}  # PyTorch has no gradient of weights
            if pos:
                options["pos_weight"] = w[-1].detach()
            return getattr(f, name)(x, t, reduction=how, **options)
        return Case(inputs, words(how, weight, pos) if "logits" in name else words(how), run)
    return make


def multi_margin_loss():
    lead, n, dtype = r.choice([[], [r.randint(1, 5)]]), r.randint(1, 6), r.choice(FLOATS[:2])
    how, p, margin = reduce_word(), r.choice([1, 2]), r.choice([1, 0.3])
    inputs = [values(lead + [n], dtype), indices(lead, n, dtype=torch.int64)] + ([values([n], dtype, True)] if r.random() < 0.5 else [])
    return Case(inputs, words(how, p, margin),
                lambda x, t, w=None: f.multi_margin_loss(x, t, p=p, margin=margin, weight=None if w is None else w.detach(), reduction=how))


def multilabel_margin_loss():
    lead, n, dtype, how = r.choice([[], [r.randint(1, 5)]]), r.randint(1, 6), r.choice(FLOATS[:2]), reduce_word()
    target = torch.tensor([r.choice([-1, *range(n)]) for _ in range(math.prod(lead) * n)], dtype=torch.int64).reshape(lead + [n])
    return Case([values(lead + [n], dtype), target], words(how), lambda x, t: f.multilabel_margin_loss(x, t, reduction=how))


def multilabel_soft_margin_loss():
    sizes, dtype, how = shape(1, 3, empty=False), r.choice(FLOATS[:2]), reduce_word()
    inputs = [values(sizes, dtype), probabilities(sizes, dtype).detach()] + ([values(sizes[-1:], dtype, True)] if r.random() < 0.5 else [])
    return Case(inputs, words(how), lambda x, t, w=None: f.multilabel_soft_margin_loss(x, t, w, reduction=how))


def soft_margin_loss():
    sizes, how, dtype = shape(), reduce_word(), r.choice(FLOATS)
    return Case([values(sizes, dtype), signs(sizes, torch.int64)], words(how),
                lambda x, t: f.soft_margin_loss(x, t.detach().to(x.dtype), reduction=how))


def margin_ranking_loss():
    sizes, how, dtype, margin = shape(), reduce_word(), r.choice(FLOATS), r.choice([0.03, 0.7])
    return Case([values(sizes, dtype), values(sizes, dtype), signs(sizes, torch.int64)], words(how, margin),
                lambda a, b, t: f.margin_ranking_loss(a, b, t, margin, reduction=how))


def triplet_margin_with_distance_loss():
    sizes, dtype, how, swap = shape(2, 2, False), r.choice(FLOATS[:2]), reduce_word(), r.random() < 0.5
    x = [values(sizes, dtype) for _ in range(3)]
    return Case(x, words(how, 0.7, swap),
                lambda a, b, c: f.triplet_margin_with_distance_loss(a, b, c, margin=0.7, swap=swap, reduction=how))


def gaussian_nll_loss():
    sizes, dtype, how, full, eps = shape(1, 3, empty=False), r.choice(FLOATS[:2]), reduce_word(), r.random() < 0.5, r.choice([1e-6, 0.5])
    var = values(r.choice([sizes, sizes[:-1], sizes[:-1] + [1]]), dtype, positive=True)
    return Case([values(sizes, dtype), values(sizes, dtype), var], words(how, full, eps),
                lambda x, t, v: f.gaussian_nll_loss(x, t, v, full=full, eps=eps, reduction=how))


def poisson_nll_loss():
    sizes, dtype, how, log, full = shape(), r.choice(FLOATS), reduce_word(), r.random() < 0.5, r.random() < 0.5
    return Case([values(sizes, dtype, positive=not log), values(sizes, dtype, positive=True)], words(how, log, full),
                lambda x, t: f.poisson_nll_loss(x, t, log_input=log, full=full, reduction=how))


def ctc_loss():
    time, batch, n, width, dtype = r.randint(1, 8), r.randint(1, 4), r.randint(2, 5), r.randint(0, 4), r.choice(FLOATS[:2])
    batched, blank, how, zero = r.random() < 0.8, r.choice([0, 0, n - 1]), reduce_word(), r.random() < 0.5
    batch = batch if batched else 1
    x = values([time, batch, n] if batched else [time, n], dtype)
    inputs, lengths = indices([batch], time + 1), indices([batch], width + 1)
    labels = torch.tensor([r.choice([c for c in range(n) if c != blank]) for _ in range(batch * width)]).reshape(batch, width).long()
    if not batched or r.random() < 0.4:
        labels = torch.cat([labels[b, :lengths[b]] for b in range(batch)])
    if not batched:
        inputs, lengths = inputs.reshape([]), lengths.reshape([])

    def run(x, t, i, n):
        y = f.ctc_loss(f.log_softmax(x, -1), t, i.long(), n.long(), blank, how, zero)
        return y
    return Case([x, labels, inputs, lengths], words(how, blank, zero), run)


REAL = FLOATS + INTEGERS
INDEX_MAKERS = {
    "getitem": getitem, "index_put": index_put, "index_select": index_select, "gather": elements("gather", REAL + [torch.bool]),
    "scatter_add": elements("scatter_add", REAL), "scatter": elements("scatter", REAL + [torch.bool], True),
    "scatter_number": elements("scatter_number", REAL), "scatter_reduce": elements("scatter_reduce", REAL),
    "index_copy": slices("index_copy", REAL + [torch.bool]), "index_add": slices("index_add", REAL),
    "index_fill": slices("index_fill", REAL), "index_reduce": slices("index_reduce", REAL), "masked_scatter": masked_scatter,
    "take_along_dim": take_along_dim, "take": take, "put": put,
    **{name: binary_cross_entropy(name) for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits")},
    "multi_margin_loss": multi_margin_loss, "multilabel_margin_loss": multilabel_margin_loss,
    "multilabel_soft_margin_loss": multilabel_soft_margin_loss, "soft_margin_loss": soft_margin_loss,
    "margin_ranking_loss": margin_ranking_loss, "triplet_margin_with_distance_loss": triplet_margin_with_distance_loss,
    "gaussian_nll_loss": gaussian_nll_loss, "poisson_nll_loss": poisson_nll_loss, "ctc_loss": ctc_loss,
}
