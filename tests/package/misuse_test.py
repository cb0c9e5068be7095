#!/usr/bin/env python3
"""What must not compile: statements that look as if they did something and do nothing. Beside each stands its neighbour that
must. Usage: misuse_test.py SOURCE_ROOT -- COMPILER..."""
import re
import subprocess
import sys

ROOT = sys.argv[1]
COMPILER = sys.argv[3:]
HEAD = """#include <mezzo/everything.h>
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
    (void)a.sum({});
    (void)a.sum({1});
    (void)a.var({1, 0});
    (void)a.var({.correction = 0});
    (void)var(a, {.correction = 0});
    (void)var(a, {}, {.correction = 0});
    (void)a.sum({.keepdim = true});
    (void)any(a, {.keepdim = true});
    (void)a.argmax({.keepdim = true});
    (void)argmax(a, 1, {.keepdim = true});
    (void)kthvalue(a, 1, 0, {.keepdim = true});
    (void)mse_loss(a, b, {.reduction = Reduction::sum});
    (void)binary_cross_entropy(a, b, {.reduction = Reduction::none});
    (void)a.reshape({2, -1});
    (void)a.reshape({int(list.size()), 3u, 4L});
    (void)a.item<long long>();
    (void)a.item<unsigned>();
    *a.mutable_data<float>() = *b.data<float>();
    (void)optim::SGD({a, b}, {.lr = 1});
    (void)optim::SGD(list, {.lr = 1});
    (void)optim::SGD({{.params = list}});
    (void)optim::SGD({{.params = {a}, .options = {.lr = 1}}, {.named_params = module.named_parameters()}});
    (void)optim::SGD({optim::SGDGroup{.params = list}});
    (void)optim::SGD(std::vector<optim::SGDGroup>{{.params = list}});
    (void)optim::LAMB({{.params = list}});
    (void)optim::LAMB({{.params = {a}}, {.params = {b}}});
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
    # A list with names is no shape and no list of axes, whatever g++ 12 makes of initializer lists.
    "(void)a.reshape({.nonsense = 6});",
    "(void)a.reshape({.nonsense = 6, .more = 2});",
    "(void)zeros({.x = 2});",
    "(void)full({.x = 2}, 1.0);",
    "(void)a.permute({.x = 0});",
    "(void)a.expand({.x = 2});",
    "(void)a.flip({.x = 0});",
    "(void)a.repeat({.x = 2});",
    "(void)roll(a, {1}, {.x = 0});",
    "(void)Tensor::from({1, 2}, {.x = 2});",
    "Shape shape{.x = 1};",
    "Shape shape({.x = 1});",
    "(void)norm(a, {.p = 1});",
    "(void)a.norm({.p = 1});",
    "(void)a.norm({.p = 1}, {});",
    "(void)sum(a, {.axis = 1});",
    "(void)a.sum({.correction = 0});",
    "(void)a.var({.p = 0});",
    "(void)a.argmax({.dim = 1});",
    "(void)quantile(a, {.keepdim = true});",
    "(void)a.topk(2, {.largest = false});",
    "(void)interpolate(a, {.height = 4, .width = 3});",
    "(void)a[{.start = 1, .stop = 2}];",
    # A group is an element of a list, with one compiler as with the other.
    "(void)optim::SGD({.params = list});",
    "(void)optim::SGD({.params = list, .options = {.lr = 1}});",
    "(void)optim::SGD(optim::SGDGroup{.params = list});",
    "(void)optim::LAMB({.params = list});",
    # No flag without its name.
    "(void)argmax(a, -1, true);",
    "(void)argmin(a, -1, true);",
    "(void)any(a, {1}, true);",
    "(void)all(a, {1}, true);",
    "(void)sort(a, 0, true);",
    "(void)kthvalue(a, 1, 0, true);",
    "(void)mse_loss(a, b, Reduction::none);",
    "(void)l1_loss(a, b, Reduction::none);",
    "(void)binary_cross_entropy(a, b, Reduction::none);",
    # data() is for reading, and no type but those of elements has a function.
    "*a.data<float>() = 1;",
    "(void)a.data<long double>();",
    "(void)a.item<std::string>();",
]


def diagnostics(body):
    """The lines of `body` that the compiler complains about, counted from 0; its whole text."""
    run = subprocess.run(COMPILER + ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", "-x", "c++", "-"],
                         input=HEAD + body + "\n}\n", text=True, capture_output=True, check=False)
    first = HEAD.count("\n") + 1
    lines = {int(number) - first for number in re.findall(r"<stdin>:(\d+):\d+: (?:fatal )?error", run.stderr)}
    return lines, run.stderr


def undocumented():
    """The declarations that an editor shows nothing for: clang attaches the comment that stands before one."""
    if "clang" not in " ".join(COMPILER):
        return []
    missing = []
    for prefix, wanted in (("mezzo::Tensor::", None), ("mezzo::optim::", {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Lion"}),
                           ("mezzo::amp::Autocast", {""})):
        if wanted is None:
            wanted = set()
            for table in "methods", "ops":
                with open(f"{ROOT}/include/mezzo/{table}.def", encoding="utf-8") as methods:
                    wanted |= set(re.findall(r"\[\[nodiscard\]\] \S+ (\w+)(?:\(| MEZZO_OF_)", methods.read()))
        run = subprocess.run(COMPILER + ["-std=c++20", "-fsyntax-only", "-fparse-all-comments", f"-I{ROOT}/include", "-Xclang", "-ast-dump",
                                         "-Xclang", f"-ast-dump-filter={prefix}", "-x", "c++", "-"],
                             input="#include <mezzo/mezzo.h>\n", text=True, capture_output=True, check=False)
        dumps = [dump for dump in run.stdout.split("Dumping ") if any(dump.startswith(f"{prefix}{name}:\n") for name in wanted)]
        if len(dumps) < len(wanted):
            missing.append(f"one of {len(wanted)} in {prefix}")
        missing += [dump.partition(":\n")[0] for dump in dumps if not re.search(r"^[| ]{0,2}[|`]-FullComment", dump, re.M)]
    return missing


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
    plain = undocumented()
    for name in plain:
        print(f"FAILED: no comment before {name}")
    return 1 if missed or plain else 0


sys.exit(main())
