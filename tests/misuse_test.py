#!/usr/bin/env python3
"""What must not compile: statements that look as if they did something and do nothing. Beside each stands its neighbour that
must. Usage: misuse_test.py SOURCE_ROOT -- COMPILER..."""
import re
import subprocess
import sys

ROOT = sys.argv[1]
COMPILER = sys.argv[3:]
HEAD = """#include <mezzo/mezzo.h>
using namespace mezzo;
void use(Tensor a, Tensor b, Tensors list, nn::Linear layer, nn::Sequential net, amp::GradScaler& scaler,
         optim::SGD& optimizer, nn::Module& module, data::WordPiece words, io::SafeTensors file) {
"""
GOOD = """
    a = b;
    a = a[0];
    a = std::move(b);
    a += b;
    a *= 2;
    a = where((a > 0) & !(b == 1), a, 0.0);
    list[0] = a;
    using namespace mezzo::data;
    (void)a[Slice(0, 2)];
    (void)a[list.size()];
    layer.weight = nn::Parameter(a);
    layer = nn::Linear(2, 3);
    net = nn::Sequential(layer);
    words = data::WordPiece("x");
    file = io::SafeTensors("x");
    a[0].copy_(b[0]);
    a.fill_(1);
    a.zero_();
    a.add_(b).mul_(2).mul_(a);
    a.uniform_(0, 1);
    a.normal_(0, 1);
    a.set_requires_grad();
    a.set_grad(b);
    a.backward();
    nn::clip_grad_norm_(list, 1.0);
    nn::clip_grad_value_(list, 1.0);
    autograd::add_hook(a, [](const Tensor& g) { return g; });
    scaler.scale(a).backward();
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    scaler.update();
    optimizer.step();
    module.to(float16);
    module.eval();
    const NoGrad plain;
    EnableGrad recorded;
    amp::Autocast scope({.dtype = bfloat16});
    (void)a.to(float16);
"""
BAD = [
    "a[0] = b[0];",
    "a.t() = b;",
    "a[0] += b;",
    "a[{0, Slice(1)}] = b;",
    "layer.weight += a;",
    "layer.weight *= 2;",
    "a == b;",
    "a > 0;",
    "!a;",
    "a.sum();",
    "if (a) {}",
    "(void)(a == b ? 1 : 0);",
    "a.slice(0, 0, 1) = Tensor();",
    "zeros({2}) = a;",
    "(a + b) = a;",
    "nn::Parameter(a) = layer.weight;",
    "nn::Buffer(a) = nn::Buffer(b);",
    "data::WordPiece(words) = words;",
    "NoGrad();",
    "NoGrad{};",
    "EnableGrad();",
    "amp::Autocast();",
    "amp::Autocast({.dtype = bfloat16});",
    "amp::Autocast{{.enabled = false}};",
    "a.to(cpu_device);",
    "a.to(float16);",
    "a.clone();",
    "a.contiguous();",
    "a.detach();",
    "a.reshape({1});",
    "a.permute({0, 1});",
    "a.t();",
    "a.squeeze(0);",
    "a.unsqueeze(0);",
    "a.expand({2, 2});",
    "a.flatten();",
    "a[0];",
    "(void)a[1.7];",
    "(void)a[true];",
    "(void)a[{1.7}];",
    "(void)module.state_dict().find(\"weight\");",
    "a.grad();",
    "a.requires_grad();",
    "a.defined();",
    "a.numel();",
    "a + b;",
    "a * 2.0;",
    "-a;",
    "relu(a);",
    "add(a, b);",
    "eq(a, b);",
    "sum(a);",
    "cat(list);",
    "matmul(a, b);",
    "linear(a, b);",
    "softmax(a);",
    "dropout(a);",
    "cross_entropy(a, b);",
    "zeros({2});",
    "randn({2});",
    "Tensor::from({1, 2});",
    "all_close(a, b);",
    "autograd::grad({a}, {b});",
    "layer(a);",
    "net(a);",
    "scaler.scale(a);",
    "scaler.state_dict();",
    "optimizer.state_dict();",
    "module.state_dict();",
    "module.parameters();",
    "io::load_checkpoint(\"x\");",
    "data::read_idx(\"x\");",
    "words.encode(\"x\");",
    "memory_stats(cpu_device);",
]


def diagnostics(body):
    """The lines of `body` that the compiler complains about, counted from 0; its whole text."""
    run = subprocess.run(COMPILER + ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", "-x", "c++", "-"],
                         input=HEAD + body + "\n}\n", text=True, capture_output=True, check=False)
    first = HEAD.count("\n") + 1
    lines = {int(number) - first for number in re.findall(r"<stdin>:(\d+):\d+: (?:fatal )?error", run.stderr)}
    return lines, run.stderr


def main():
    lines, text = diagnostics(GOOD)
    if lines or text:
        print("FAILED: what is right does not compile\n" + text)
        return 1
    # clang 14 does not look at a conversion from one braced list.
    unseen = ["amp::Autocast({.dtype = bfloat16});"] if "clang" in " ".join(COMPILER) else []
    missed = []
    for begin in range(0, len(BAD), 15):  # clang stops after 20 errors
        part = BAD[begin:begin + 15]
        lines, _ = diagnostics("\n".join(part))
        missed += [snippet for number, snippet in enumerate(part) if number not in lines and snippet not in unseen]
    for snippet in missed:
        print(f"FAILED: compiles without a word: {snippet}")
    print(f"{len(BAD) - len(missed)} of {len(BAD)} are refused")
    return 1 if missed else 0


sys.exit(main())
