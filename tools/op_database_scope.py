"""Which functions of PyTorch's operator database mezzo is compared with, and where it differs on purpose."""
import re

# Names, as regular expressions, and why they are left out.
OUT = {
    "complex numbers": r"H|mH|angle|cdouble|cfloat|chalf|complex|conj|conj_physical|imag|isreal|polar|real|resolve_.*|view_as_(complex|real)",
    "8 and 16 bit integers": r"char|short",
    "arithmetic of bits and whole numbers": r"bitwise_.*|__r(and|or|xor)__|gcd|lcm|frexp|nextafter|ldexp|hash_tensor",
    "linear algebra": r"linalg\.(?!diagonal$|vecdot$|vector_norm$|multi_dot$|cross$|norm$|matrix_norm$).*|cholesky.*|lu|lu_.*|geqrf|ormqr|svd|svd_lowrank|pca_lowrank|pinverse|logdet|triangular_solve|matrix_exp",
    "Fourier transforms and windows": r"fft\..*|stft|istft|signal\..*",
    "special functions": r"special\..*|i0|igamma|igammac|polygamma|mvlgamma|digamma_special",
    "sparse and jagged tensors": r"sparse\..*|to_sparse|masked\..*|_segment_reduce",
    "strides and memory": r"as_strided.*|(?!index_).*_copy|empty.*|new_empty.*|resize_.*|nonzero_static",
    "statistics of tables": r"hist.*|corrcoef|cov|gradient|trapz|trapezoid|cumulative_trapezoid|combinations|cartesian_prod|block_diag",
    "internal functions": r"_.*(?<!__)|torch\..*|ops\..*|jiterator.*|native_.*|max_pool2d_with_indices_backward|grid_sampler_.*|(diagonal|select|slice)_scatter|broadcast_shapes|item|unravel_index",
    "random draws, whose numbers differ": r"bernoulli|cauchy|exponential|geometric|log_normal|multinomial|normal|rand_like|randint|randint_like|randn|randn_like|uniform|"
    r"nn\.functional\.(alpha_dropout|dropout2d|dropout3d|feature_alpha_dropout|fractional_max_pool.*|rrelu)",
}


def out_of_scope(name):
    return next((why for why, pattern in OUT.items() if re.fullmatch(pattern, name)), None)


# Errors that are rules of mezzo, and what they are.
ERRORS = {
    r"no arithmetic on boolean|(input|an operand|the first operand|x) is boolean": "booleans have no arithmetic",
    r"is int64, but must be floating": "products, norms and losses of integers are refused",
    r"eps -[\d.]+ is negative": "a negative eps is refused",
    r"more than 8 dimensions": "tensors have at most 8 dimensions",
    r"p is -1; it must not be negative": "negative norms are refused",
    r"batch_norm: (input .* single value|momentum is -1)": "statistics of a single value, and negative momentum, are refused",
    r"instance_norm: momentum is -1": "negative momentum is refused",
    r"updated in place and must be contiguous": "running statistics are contiguous",
    r"index is uint8": "indices are int64 or int32",
    r"must be \[batch, heads, length, dim\]|has 4 heads and k \[1, 0": "attention has one dimension of batches, and a head at least",
    r"operands are 0-dim": "numbers have no cosine",
    r"mode must be bilinear or nearest, or, of images": "bicubic sampling is for images",
    r"not > 0; use l1_loss": "smooth_l1_loss of 0 is l1_loss",
}
# Indices of equal elements: PyTorch's are those of whichever algorithm ran.
ORDERS = "sort argsort msort kthvalue topk median mode".split()


def within_reason(name, line, dtype, error, problem):
    """Why a sample that is refused, that differs or that is taken is right all the same, or None."""
    if error:
        return next((why for pattern, why in ERRORS.items() if re.search(pattern, error)), None)
    if problem and "result 1" in problem and name in ORDERS or problem and name == "argsort":
        return "which of equal elements comes first"
    if problem and name in ("msort", "fmax", "fmin") and "gradient" in problem:
        return "which of equal elements comes first"
    if problem and re.search("torch.int64 instead of torch.bool|torch.float32 instead of torch.int64", problem):
        return "sums of booleans count, and powers of integers are float32"
    if problem and name in ("arange", "linspace", "logspace", "copysign", "sum_to_size"):
        return "of integers and booleans: start and step are rounded one by one, the dtype is kept"
    if problem and name == "quantile" and "gradient of input 1" in problem:
        return "the probability is a number here"
    if problem and name == "poisson_nll_loss" and "nan" in problem:
        return "Stirling's term of a target of 0 has a gradient of 0 here, NaN in PyTorch"
    if problem and name == "index_fill" and "gradient of input 2" in problem:
        return "a number to fill with has no gradient"
    if not problem and re.match("(adaptive_)?(max|avg)_(un)?pool", name):
        return "of windows: 0 stands for the default, and a batch may have size 0"
    if not problem and name in ("gelu", "movedim", "rot90", "flipud", "masked_fill", "linalg.cross"):
        return "the expression here does not check its arguments"
    if not problem and any(isinstance(x, (int, float)) for x in line["args"]):
        return "a number is taken on either side"
    return None


# Layers and optimizers that are left out: no sparse gradients, no layer of unknown sizes, no fractional or power-average pools, and what is one expression.
MODULES_OUT = r"nn\.(Lazy.*|Fractional.*|LPPool.*|LinearCrossEntropyLoss|Softmax2d)|optim\.SparseAdam"
