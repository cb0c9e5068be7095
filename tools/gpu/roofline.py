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
SCALARS = Line("scalars of the loss", r"::map_(flat_)?kernel<float, \d, [^>]*(functors::mul|Constant)", pooled=True)


def optimizer(parameters, algorithm, mixed):
    """Statistics read float32 gradients; the update reads them, reads and writes parameters and moments, writes 16-bit copies."""
    moments = {"sgd": 0, "adamw": 2}[algorithm]
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
        Line("bias gradient", r"::reduce_columns_kernel", bytes=item * cells, count=3),
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
    """Products and optimizer of BERT with a classifier; attention and element-wise kernels are listed without a floor."""
    mixed = precision in ("float16", "bfloat16")
    item, tokens = 2 if mixed else 4, batch * length
    encoder = layers * 12 * hidden * hidden
    # Input and result of a layer's four products. Each is in all three passes, the weight in two, and the third writes the
    # weight's gradient in float32.
    cells = layers * tokens * hidden * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1))
    products = Line("products of the layers", PRODUCT, 6 * tokens * encoder, 3 * cells * item + encoder * (2 * item + 4),
                    pooled=True)
    return BOOKS + optimizer(bert_parameters(layers, hidden, vocabulary), "adamw", mixed) + [products]


STEPS = {
    "recipe512": lambda precision: recipe(512, precision),
    "recipe513": lambda precision: recipe(513, precision),
    "bert_base128": lambda precision: bert(16, 128, precision),
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


def row(line, pieces, floor, bound):
    measured = sum(p["us"] for p in pieces)
    return {"line": line, "kernels": len(pieces), "us": measured, "floor_us": floor, "bound": bound,
            "above_us": None if floor is None else measured - floor, "ratio": measured / floor if floor else None}


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
            rows.append(row(line.what, pieces, floor, bound))
        if pieces and floor is not None:
            known += pieces
            least += floor
    other = [p for p, at in zip(work, taken) if at is None]
    if other:
        rows.append(row("without a model", other, None, ""))
    return sorted(rows, key=lambda r: -r["us"]) + [row("all with a floor", known, least, "")]
