"""What the kernels of a training step cannot be faster than: FLOPs and bytes of each from the step's shapes, rates from the same
run. A step is a list of lines; each takes the kernels whose names match, in the order in which they run."""
import dataclasses
import re

SMALL = 0.5  # microseconds: below this much work a kernel takes what a launch takes


@dataclasses.dataclass
class Line:
    what: str
    pattern: str       # of the kernel's name
    flops: float = 0   # of one kernel
    bytes: float = 0   # read and written, each once
    count: int = 1
    pooled: bool = False  # any number of kernels; flops and bytes are of all of them
    needs: float = 0   # microseconds that a plan allows all its kernels on an H100; 0: none was made


# Kernels that are not mezzo's: the library's products, and what adds up split-K's partial sums.
PRODUCT = r"^(?!.*mezzo::)(?!copy|fill)"
SPLIT_SUM = r"(?i)^(?!.*mezzo::).*split_?k.*reduce"


def product(what, m, n, k, item, result_item):
    return Line(what, PRODUCT, 2 * m * n * k, (m * k + k * n) * item + m * n * result_item)


# Work that does not grow with the sizes: host values for the graph, the scaler's and optimizer's books, scalars.
BOOKS = [
    Line("partial sums of split products", SPLIT_SUM, pooled=True),
    Line("host's numbers to the device", "^copy", pooled=True),
    Line("fills", "^fill", pooled=True),
    Line("scaler's state", r"::update_scale_kernel", pooled=True),
    Line("partial sums", r"::reduce_parts_kernel", pooled=True),
]
SCALARS = Line("scalars of the loss", r"::map_(flat_)?kernel<float, (\([\w:]+\)\d, )?\d, [^>]*(functors::mul|Constant)", pooled=True)


def optimizer(parameters, algorithm, mixed):
    """Statistics read float32 gradients; the update reads them, reads and writes parameters and moments, writes 16-bit copies."""
    moments = {"sgd": 0, "momentum": 1, "adamw": 2}[algorithm]
    update = parameters * (4 + 8 + 8 * moments + (2 if mixed else 0))
    statistics = Line("gradient statistics", r"::statistics_kernel<.*GradRef", bytes=4 * parameters, pooled=True)
    return ([statistics] if mixed else []) + [Line("optimizer update", r"::update_kernel", bytes=update, pooled=True)]


def recipe(batch, precision, width=4096):
    """3 x Linear(width, width), ReLU between, mean squared error, SGD. In 16 bit: autocast and gradient scaler."""
    mixed = precision in ("float16", "bfloat16")
    item, cells, weights = 2 if mixed else 4, batch * width, width * width
    forward = [product(f"forward {i}", width, batch, width, item, item) for i in (1, 2, 3)]
    backward = []
    for i in (3, 2, 1):
        backward += [product(f"input gradient {i}", width, batch, width, item, item)] if i > 1 else []
        backward += [product(f"weight gradient {i}", width, width, batch, item, 4)]
    own = [
        Line("loss", r"::reduce_rows_kernel<.*LoadLoss", bytes=(item + 4) * cells),
        Line("gradient of the loss", r"::map_kernel<.*ElementSlope", bytes=(2 * item + 4) * cells),
        Line("gradient of the loss and bias", r"::loss_bias_grad_kernel", bytes=(2 * item + 4) * cells),
        Line("bias gradient", r"::column_sum_kernel", bytes=item * cells, count=3),
        Line("gradient of ReLU", r"::map_flat_kernel<.*relu_grad", bytes=3 * item * cells, count=2),
        Line("gradient of ReLU and bias", r"::activation_grad_kernel", bytes=3 * item * cells, count=2),
        Line("mask of ReLU", r"::mask_kernel", bytes=(item + 1 / 8) * cells, count=2),
        Line("bias and activation behind a product", r"::epilogue_kernel", bytes=2 * item * cells, count=3),
    ]
    if mixed:
        own.insert(0, Line("input to 16 bit", r"::convert_kernel", bytes=6 * cells))
    return BOOKS + [SCALARS] + own + optimizer(3 * (weights + width), "sgd", mixed) + forward + backward


def bert_parameters(layers, hidden, vocabulary, positions=512, labels=2):
    layer = 12 * hidden * hidden + 13 * hidden  # weights; biases 9, two norms 4
    embeddings = (vocabulary + positions + 2 + 2) * hidden  # two segments, norm
    return layers * layer + embeddings + hidden * hidden + hidden + labels * (hidden + 1)  # pooler, classifier


def bert(batch, length, precision, layers=12, hidden=768, vocabulary=30522):
    """BERT with a classifier: products, optimizer, GELU, norms, gradients of biases; other kernels are listed without a floor."""
    mixed = precision in ("float16", "bfloat16")
    item, tokens = 2 if mixed else 4, batch * length
    encoder = layers * 12 * hidden * hidden
    # Input and result of a layer's four products. Each is in all three passes, the weight in two, and the third writes the
    # weight's gradient in float32.
    cells = layers * tokens * hidden * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1))
    products = Line("products of the layers", PRODUCT, 6 * tokens * encoder, 3 * cells * item + encoder * (2 * item + 4),
                    pooled=True)
    wide, norms, copy = layers * tokens * 4 * hidden, 2 * layers + 1, 2 if mixed else 0
    own = [
        # reads what the product has left and writes the activation's result
        Line("erf GELU behind products", r"::epilogue_kernel", bytes=2 * item * wide, pooled=True),
        Line("gradient of GELU and bias", r"::activation_grad_kernel", bytes=3 * item * wide, pooled=True),
        # of query, key and value; those of the other biases come with the gradients of GELU and of the norms
        Line("bias gradients", r"::column_sum_kernel", bytes=item * layers * tokens * 3 * hidden, pooled=True),
        # read x and the residual, write their sum, the result and, in 16 bit, the result once more; the embeddings' has neither
        # residual nor sum
        Line("norms with dropout and residual", r"::norm_kernel",
             bytes=tokens * hidden * (2 * layers * (item + 12 + copy) + 8 + copy), pooled=True),
        # read the gradient and the sum, write the gradients of x and of the residual; write and read a part per multiprocessor (132) of the sums for
        # weight, bias and the bias before the norm
        Line("gradients of norms", r"::norm_grad_kernel",
             bytes=tokens * hidden * (2 * layers * (12 + item) + 12) + norms * 3 * hidden * 4 * (2 * min(tokens / 8, 132) + 1), pooled=True),
    ]
    return BOOKS + own + optimizer(bert_parameters(layers, hidden, vocabulary), "adamw", mixed) + [products]


# ResNet50 with CIFAR's stem: (number, input channels, output channels, kernel, stride, size of the input).
RESNET50 = [
    (1, 3, 64, 3, 1, 32), (1, 64, 64, 1, 1, 32), (3, 64, 64, 3, 1, 32), (4, 64, 256, 1, 1, 32), (2, 256, 64, 1, 1, 32),
    (1, 256, 128, 1, 1, 32), (1, 128, 128, 3, 2, 32), (4, 128, 512, 1, 1, 16), (1, 256, 512, 1, 2, 32), (3, 512, 128, 1, 1, 16),
    (3, 128, 128, 3, 1, 16), (1, 512, 256, 1, 1, 16), (1, 256, 256, 3, 2, 16), (6, 256, 1024, 1, 1, 8), (1, 512, 1024, 1, 2, 16),
    (5, 1024, 256, 1, 1, 8), (5, 256, 256, 3, 1, 8), (1, 1024, 512, 1, 1, 8), (1, 512, 512, 3, 2, 8), (3, 512, 2048, 1, 1, 4),
    (1, 1024, 2048, 1, 2, 8), (2, 2048, 512, 1, 1, 4), (2, 512, 512, 3, 1, 4)]
RESNET50_BLOCKS = [(3, 256, 32), (4, 512, 16), (6, 1024, 8), (3, 2048, 4)]  # number, channels and size of the results
# What the plan for 1.4 times PyTorch's eager mixed precision counts on, on an H100 with 3.0 TB/s: own convolutions reach 400 TFLOP/s,
# cuBLASLt's 650, every other kernel the speed of a copy. A step then takes 6.15 ms, of which 0.35 are launches; PyTorch's is
# calculated to take 8.7 ms. None of these numbers is measured.
PLAN = {"own": 400e12, "library": 650e12, "memory": 3.0e12}


class Convolutions:
    """Work of the convolutions of some kind in all passes: forward and input gradient, and weight gradient (float32)."""

    def __init__(self, layers, batch, item):
        self.forward = self.gradient = self.weight = 0.0  # FLOPs
        self.image_bytes = self.weight_bytes = self.windows = self.weights = 0.0
        self.planned = [0.0, 0.0]  # microseconds of the two lines
        for count, inputs, outputs, kernel, stride, size in layers:
            pixels = batch * (size // stride)**2
            flops, taps = 2 * pixels * kernel**2 * inputs * outputs, kernel**2
            x, y, w = batch * size**2 * inputs, pixels * outputs, taps * inputs * outputs
            first = inputs == 3  # images get no gradient
            rate = PLAN["library" if (kernel, stride) == (1, 1) else "own"]
            one = (x + y + w) * item
            two = (x + y) * item + 4 * w
            self.forward += count * flops
            self.gradient += 0 if first else count * flops
            self.weight += count * flops
            self.image_bytes += count * one * (1 if first else 2)
            self.weight_bytes += count * two
            self.windows += count * pixels * taps * inputs
            self.weights += count * w
            self.planned[0] += 1e6 * count * (1 if first else 2) * max(flops / rate, one / PLAN["memory"])
            self.planned[1] += 1e6 * count * max(flops / rate, two / PLAN["memory"])


def resnet50(batch, precision):
    """Convolutions, normalisation and optimizer; the loss, pooling and the classifier are listed without a floor. Convolutions by
    matrices of windows have their products in the line of the 1x1 ones, which then is far above its floor."""
    mixed = precision in ("float16", "bfloat16")
    item, layers = 2 if mixed else 4, RESNET50
    plain = Convolutions([layer for layer in layers if layer[3:5] == (1, 1)], batch, item)
    stem = Convolutions([layer for layer in layers if layer[1] % 8 != 0], batch, item)
    others = Convolutions([layer for layer in layers if layer[3:5] != (1, 1) and layer[1] % 8 == 0], batch, item)
    outputs = sum(count * batch * (size // stride)**2 * o for count, _, o, _, stride, size in layers)
    ends = batch * sum(blocks * channels * size**2 for blocks, channels, size in RESNET50_BLOCKS)  # with a residual
    parameters = sum(count * (i * o * k * k + 2 * o) for count, i, o, k, _, _ in layers)
    memory = 1e6 / PLAN["memory"]
    norms = [
        ("statistics of batch norm", r"::moments_kernel", item * outputs),
        ("batch norm, ReLU and residual", r"::normalise_(any_)?kernel", 2 * item * outputs + outputs / 8 + item * ends),
        ("sums of batch norm's gradient", r"::grad_sums_kernel", 2 * item * outputs + outputs / 8 + item * ends),
        ("gradient of batch norm", r"::normalise_grad_kernel", 3 * item * outputs),
    ]
    own = [
        Line("other convolutions, forward and input gradient", r"::implicit_kernel", others.forward + others.gradient,
             others.image_bytes, pooled=True, needs=others.planned[0]),
        Line("other convolutions, weight gradient", r"::implicit_weight_kernel", others.weight, others.weight_bytes, pooled=True,
             needs=others.planned[1]),
        Line("sums of weight gradients' parts", r"::sum_parts_kernel", bytes=8 * others.weights, pooled=True,
             needs=memory * 8 * others.weights),
        # the stem's windows, in two passes; of all windows where no convolution is implicit
        Line("matrices of windows", r"::im2col_kernel", bytes=2 * item * stem.windows, pooled=True,
             needs=memory * 2 * item * stem.windows),
        Line("input gradients from products", r"::col2im_kernel", pooled=True),
        Line("1x1 convolutions with stride 1, stem, classifier", PRODUCT,
             plain.forward + plain.gradient + plain.weight + stem.forward + stem.weight,
             plain.image_bytes + plain.weight_bytes + stem.image_bytes + stem.weight_bytes, pooled=True,
             needs=sum(plain.planned) + sum(stem.planned)),
        *[Line(what, pattern, bytes=moved, pooled=True, needs=memory * moved) for what, pattern, moved in norms],
    ]
    return BOOKS + own + optimizer(parameters, "momentum", mixed)


STEPS = {
    "recipe512": lambda precision: recipe(512, precision),
    "recipe513": lambda precision: recipe(513, precision),
    "bert_base128": lambda precision: bert(16, 128, precision),
    "resnet50_128": lambda precision: resnet50(128, precision),
}


def rates(rows):
    """The best rates in benchmark rows: FLOP/s by precision, and bytes per second of a large copy under 'memory'."""
    found = {}
    for row in rows:
        if "queued_ms" not in row:
            continue
        seconds = 1e-3 * row["queued_ms"]
        if row["case"] == "matmul8192":
            found[row["precision"]] = max(found.get(row["precision"], 0), 2 * 8192**3 / seconds)
        if row["case"] == "copy":
            item = 2 if row["precision"] in ("float16", "bfloat16") else 4
            found["memory"] = max(found.get("memory", 0), 2 * 512 * 2**20 * item / seconds)
    return found


def floor_us(line, precision, rate):
    """(microseconds, what bounds it) of a line's work; (None, reason) where a rate was not measured."""
    times = {}
    for what, amount, name in (("arithmetic", line.flops, precision), ("memory", line.bytes, "memory")):
        if amount and not rate.get(name):
            return None, f"rate of {name} not measured"
        if amount:
            times[what] = 1e6 * amount / rate[name]
    if not times or max(times.values()) < SMALL:
        return 0.0, "launch"
    bound = max(times, key=times.get)
    return times[bound], bound


def assign(lines, work):
    """Each kernel's line: the first with a matching name and kernels left to take, or None."""
    left = [line.count for line in lines]
    taken = []
    for piece in work:
        free = (i for i, line in enumerate(lines) if line.pooled or left[i])
        found = next((i for i in free if re.search(lines[i].pattern, piece["name"])), None)
        if found is not None:
            left[found] -= 1
        taken.append(found)
    return taken


def row(line, pieces, floor, bound, needs=0):
    measured = sum(p["us"] for p in pieces)
    return {"line": line, "kernels": len(pieces), "us": measured, "floor_us": floor, "bound": bound,
            "above_us": None if floor is None else measured - floor, "ratio": measured / floor if floor else None,
            "needs_us": needs or None}


def explain(case, precision, work, rate):
    """Rows: line, kernels, measured microseconds, floor, time above it, ratio, what bounds it; the longest first, then all lines
    with a floor together. Lines without a kernel are left out, and what no line takes comes as 'without a model'."""
    lines = STEPS[case](precision)
    taken = assign(lines, work)
    rows, known, least = [], [], 0.0
    for i, line in enumerate(lines):
        pieces = [p for p, at in zip(work, taken) if at == i]
        each, bound = floor_us(line, precision, rate)
        floor = each if each is None or line.pooled else each * len(pieces)
        if pieces:
            rows.append(row(line.what, pieces, floor, bound, line.needs))
        if pieces and floor is not None:
            known += pieces
            least += floor
    other = [p for p, at in zip(work, taken) if at is None]
    if other:
        rows.append(row("without a model", other, None, ""))
    return sorted(rows, key=lambda r: -r["us"]) + [row("all with a floor", known, least, "")]
