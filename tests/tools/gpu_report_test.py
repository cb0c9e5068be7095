#!/usr/bin/env python3
"""What tools/gpu makes of measurements: the roofline's model against the kernels that a step really launches and against figures
worked out by hand, profiles, targets.

    gpu_report_test.py path/to/source/tree [bench-emulated gemm_search-emulated]
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/support"), str(ROOT / "tests/package")]
from checks import check, finish  # noqa: E402
from gpu import parts, predict, profile, report, roofline, targets  # noqa: E402


def near(found, expected, text, tolerance=1e-3):
    check(abs(found - expected) <= tolerance * abs(expected), f"{text}: {found}, not {expected}")


def work_of(lines):
    products = [line for line in lines if line.pattern == roofline.PRODUCT]
    return sum(line.flops for line in products), sum(line.bytes for line in products)


def test_figures():
    """The recipe's and BERT's work, worked out by hand."""
    flops, _ = work_of(roofline.recipe(512, "float16"))
    near(flops, 8 * 2 * 512 * 4096**2, "FLOPs of the recipe's 8 products")
    first = next(line for line in roofline.recipe(512, "float16") if line.what == "forward 1")
    near(first.bytes, 2 * (4096 * 4096 + 512 * 4096) + 2 * 4096 * 512, "bytes of a forward product")
    weight = next(line for line in roofline.recipe(513, "float16") if line.what == "weight gradient 2")
    near(weight.bytes, 2 * 2 * 4096 * 513 + 4 * 4096**2, "bytes of a weight gradient, float32")
    update = {precision: next(line.bytes for line in roofline.recipe(512, precision) if line.what == "optimizer update")
              for precision in ("float16", "float32")}
    parameters = 3 * (4096 * 4096 + 4096)
    near(update["float16"], 14 * parameters, "SGD with a 16-bit copy")
    near(update["float32"], 12 * parameters, "SGD")
    check(roofline.bert_parameters(12, 768, 30522) == 109483778, "parameters of BERT-base with two labels")
    near(work_of(roofline.bert(16, 128, "float16"))[0], 1044e9, "FLOPs of BERT's layers")
    tokens, hidden = 2048, 768
    shapes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    by_hand = sum(12 * (3 * 2 * tokens * (i + o) + i * o * (2 + 2 + 4)) for i, o in shapes)
    near(work_of(roofline.bert(16, 128, "float16"))[1], by_hand, "bytes of BERT's products")
    own = {line.pattern: line.bytes for line in roofline.bert(16, 128, "float16")}
    wide = 12 * tokens * 4 * hidden
    near(own["::epilogue_kernel"], 4 * wide, "GELU reads and writes 2 bytes per element")
    near(own["::activation_grad_kernel"], 6 * wide, "its gradient reads two matrices and writes one")
    near(own["::column_sum_kernel"], 12 * 3 * tokens * hidden * 2, "sums for query, key and value")
    near(own["::norm_kernel"], tokens * hidden * (24 * (2 + 4 + 4 + 4 + 2) + 4 + 4 + 2), "x, residual, sum, result and its copy")
    parts = 25 * 3 * (2 * 132 + 1) * hidden * 4
    near(own["::norm_grad_kernel"], tokens * hidden * (24 * (4 + 4 + 2 + 4) + 12) + parts,
         "gradients of x and residual from two matrices, and 132 parts of three sums")
    single = {line.pattern: line.bytes for line in roofline.bert(16, 128, "float32")}
    near(single["::norm_kernel"], tokens * hidden * (24 * 16 + 8), "float32 needs no copy")
    kernels = {"norm_kernel<mezzo::WarpTeam, 8, float>(int)": "norms with dropout and residual",
               "norm_grad_kernel<mezzo::BlockTeam, float>(int)": "gradients of norms",
               "epilogue_kernel<mezzo::bfloat16_t, 8>(Pass<mezzo::bfloat16_t>)": "erf GELU behind products",
               "activation_grad_kernel<mezzo::bfloat16_t, 8, Values, gelu_grad>(int)": "gradient of GELU and bias",
               "column_sum_kernel<mezzo::bfloat16_t, 8>(int)": "bias gradients"}
    for name, line in kernels.items():
        work = [{"name": "void mezzo::cuda::(anonymous namespace)::" + name, "us": 9.0}]
        rows = roofline.explain("bert_base128", "float16", work, {"memory": 3.35e12})
        check(rows[0]["line"] == line and rows[0]["bound"] == "memory", f"{name} is {rows[0]}")


def test_convolutions():
    """ResNet50's convolutions at batch 128, by hand and by the published number of its parameters."""
    check(sum(layer[0] for layer in roofline.RESNET50) == 53, "ResNet50 has 53 convolutions")
    work = roofline.Convolutions(roofline.RESNET50, 128, 2)
    near(work.forward, 2 * 128 * 1.29781e9, "FLOPs forward, of 1.298 billion multiply-adds per image")
    near(work.gradient, work.forward - 2 * 128 * 32 * 32 * 27 * 64, "no gradient of the images")
    near(work.weights, 23520842 - 20490 - 2 * 26560, "weights: all parameters without the classifier and 26,560 pairs of the norms")
    one = roofline.Convolutions([(1, 64, 64, 3, 1, 32)], 128, 2)
    flops = 2 * 128 * 32 * 32 * 9 * 64 * 64
    near(one.planned[0], 2 * 1e6 * flops / 400e12, "a 3x3 convolution of 64 channels is bound by arithmetic")
    near(one.weight_bytes, 2 * 2 * 128 * 32 * 32 * 64 + 4 * 9 * 64 * 64, "bytes of its weight gradient")
    near(sum(work.planned), 2760, "microseconds of all convolutions in the plan", 5e-3)
    lines = roofline.resnet50(128, "float16")
    near(sum(line.needs for line in lines), 5530, "microseconds of all kernels in the plan", 2e-2)
    kernels = {"void mezzo::cuda::(anonymous namespace)::implicit_kernel<mezzo::float16_t, 128, 64, (Lines)0>(P)": "other convolutions, "
               "forward and input gradient", "void mezzo::cuda::(anonymous namespace)::implicit_weight_kernel<T, 64, 128>(P)":
               "other convolutions, weight gradient", "nvjet_hsh": "1x1 convolutions with stride 1, stem, classifier"}
    for name, what in kernels.items():
        (at,) = roofline.assign(lines, [{"name": name, "us": 1.0}])
        check(at is not None and lines[at].what == what, f"{name} is not in the line of {what}")
    rows = roofline.explain("resnet50_128", "float16", [{"name": list(kernels)[0], "us": 2000.0}], {"float16": 780e12, "memory": 3e12})
    near(rows[0]["needs_us"], 926, "what the plan allows is in the row", 5e-3)


def test_floors():
    rate = {"float16": 800e12, "memory": 4e12}
    line = roofline.Line("", "", flops=800e6, bytes=2e6)
    check(roofline.floor_us(line, "float16", rate) == (1.0, "arithmetic"), "bound by arithmetic")
    line.bytes = 8e6
    check(roofline.floor_us(line, "float16", rate) == (2.0, "memory"), "bound by memory")
    check(roofline.floor_us(roofline.Line("", "", bytes=4e5), "float16", rate) == (0.0, "launch"), "bound by its launch")
    check(roofline.floor_us(line, "tf32", rate) == (None, "rate of tf32 not measured"), "an unknown rate")
    rows = [{"case": "matmul8192", "precision": "float16", "queued_ms": ms} for ms in (2.0, 1.0)]
    rows += [{"case": "copy", "precision": "float16", "queued_ms": 0.5}, {"case": "copy", "precision": "float32"}]
    near(roofline.rates(rows)["float16"], 2 * 8192**3 / 1e-3, "rate of products")
    near(roofline.rates(rows)["memory"], 2 * 2 * 2**29 / 0.5e-3, "rate of copies")


def test_explain():
    """Kernels find their lines by name and order; what has none is not lost."""
    names = ["copy to the device", "void mezzo::cuda::(anonymous namespace)::convert_kernel<mezzo::float16_t, float>(long)",
             *["nvjet_hsh_128x256_64x4_1x2_h_bz_TNT"] * 4, "void cublasLt::splitKreduce_kernel<32, 16, int>(int)", "mezzo::other(int)"]
    rows = roofline.explain("recipe512", "float16", [{"name": n, "us": 10.0} for n in names], {"float16": 780e12, "memory": 4.3e12})
    found = {r["line"]: r for r in rows}
    *rows, together = rows
    check(sum(r["us"] for r in rows) == 80 and sum(r["kernels"] for r in rows) == 8, "a kernel is lost or counted twice")
    check(together["kernels"] == 7 and together["us"] == 70, f"all with a floor: {together}")
    near(together["floor_us"], sum(r["floor_us"] for r in rows if r["floor_us"]), "their floor")
    near(together["above_us"], 70 - together["floor_us"], "time above the floor")
    check({"forward 1", "forward 2", "forward 3", "input gradient 3"} <= set(found), "products in the order of a step")
    near(found["forward 1"]["floor_us"], 2 * 512 * 4096**2 / 780e12 * 1e6, "floor of a product")
    near(found["forward 1"]["ratio"], 10 / 22.03, "distance of a product", 1e-2)
    near(found["input to 16 bit"]["floor_us"], 6 * 512 * 4096 / 4.3e12 * 1e6, "floor of a conversion")
    check(found["input to 16 bit"]["bound"] == "memory", "what bounds a conversion")
    check(found["partial sums of split products"]["kernels"] == 1, "split-K's sums")
    unknown = roofline.explain("recipe512", "float16", [{"name": names[2], "us": 10.0}], {"memory": 4e12})
    check([(r["floor_us"], r["bound"]) for r in unknown] == [(None, "rate of float16 not measured"), (0.0, "")], f"no rate: {unknown}")
    bert = [{"name": f"void mezzo::cuda::{name}", "us": 5.0}
            for name in ("attention_kernel<float, 2>(int)", "map_flat_kernel<float, 3, mezzo::functors::mul>(int)")]
    check(roofline.explain("bert_base128", "float16", bert, {})[0]["line"] == "without a model", "attention is no bookkeeping")
    small = [{"name": f"void mezzo::cuda::{name}<float>(float const*)", "us": 2.0}
             for name in ("reduce_parts_kernel", "update_scale_kernel")]
    rows = roofline.explain("recipe512", "float16", small, {})
    check([(r["bound"], r["floor_us"]) for r in rows] == [("launch", 0.0)] * 2 + [("", 0.0)], "kernels that take what a launch takes")
    check(found["without a model"]["kernels"] == 1 and found["without a model"]["floor_us"] is None, "a kernel without a line")


def test_profile():
    work = [{"name": "a", "begin_us": 0.0, "us": 10.0}, {"name": "b", "begin_us": 5.0, "us": 10.0},
            {"name": "a", "begin_us": 18.0, "us": 2.0}, {"name": "c", "begin_us": 21.0, "us": 4.0}]
    made = profile.summary({"work": work, "wall_us": 40.0}, 30.0)
    check((made["span_us"], made["busy_us"], made["gaps_us"], made["kernels_us"]) == (25, 21, 4, 26), f"kernels side by side: {made}")
    check((made["longest_gap_us"], made["longest_gap_after"], made["rest_us"]) == (3, "b", 9), f"gaps: {made}")
    check([(r["kernel"], r["count"], r["us"]) for r in made["kernels"]] == [("a", 2, 12), ("b", 1, 10), ("c", 1, 4)], "kernels by name")
    near(sum(r["share"] for r in made["kernels"]), 1, "shares")
    name = "void mezzo::cuda::(anonymous namespace)::update_kernel<mezzo::cuda::(anonymous namespace)::SgdStep>(mezzo::StepArgs, int)"
    check(profile.short_name(name) == "update_kernel<SgdStep>", f"short name: {profile.short_name(name)}")


def row(case, side, median, precision="float16", peak=100.0):
    return {"case": case, "precision": precision, "side": side, "median_ms": median, "peak_device_mb": peak}


def judged(benchmark=(), search=(), tests=(), sanitizer=(), files=(2, 1)):
    made = {"benchmark": list(benchmark), "search": list(search), "tests": list(tests), "sanitizer": list(sanitizer)}
    return {t["target"]: t for t in targets.judge(made, dict(zip(("tests", "sanitizer"), files)))}


def test_speeds():
    nothing = judged()
    check({t["state"] for t in nothing.values()} == {"not measured"}, "targets without measurements")
    eager, compiled = "recipe MLP (3 x 4096, batch 512): at least 1.75x PyTorch", \
        "recipe MLP (3 x 4096, batch 512): at least 1.6x PyTorch, compiled and PyTorch, reduce-overhead"
    rows = [row("recipe512", "mezzo", 2.0), row("recipe512", "mezzo, captured", 1.0, peak=90), row("recipe512", "PyTorch", 1.75),
            row("recipe512", "PyTorch, compiled", 1.7)]
    check((judged(rows)[eager]["measured"], judged(rows)[eager]["state"]) == ("1.75x", "met"), "the fastest variant meets the target")
    check(judged(rows)[compiled]["state"] == "not measured", "one mode of torch.compile is not both")
    rows.append(row("recipe512", "PyTorch, reduce-overhead", 1.5))
    check((judged(rows)[compiled]["measured"], judged(rows)[compiled]["state"]) == ("1.50x", "not met"), "the faster mode counts")
    check(judged(rows)["recipe MLP: peak memory below PyTorch's"]["measured"] == "0.90x", "memory of the fastest variant")
    equal = [row("recipe512", "mezzo", 2.0), row("recipe512", "PyTorch", 2.0)]
    check(judged(equal)["recipe MLP: peak memory below PyTorch's"]["state"] == "not met", "equal memory is not below")
    check(judged([row(*r[:3], "tf32") for r in (("recipe512", "mezzo", 2.0), ("recipe512", "PyTorch", 2.0))])
          ["recipe MLP, TF32: at least 1x PyTorch"]["state"] == "met", "equal speed is at least 1x")
    small = [row("mlp64", "mezzo", 0.01), row("mlp64", "mezzo, captured", 0.02), row("mlp64", "PyTorch", 0.2)]
    check(judged(small)["64-wide MLP, captured: at least 10x PyTorch"]["measured"] == "10.00x", "captured steps only")
    odd = [row("recipe512", "mezzo", 1.0), row("recipe513", "mezzo", 1.1), row("recipe512", "mezzo, captured", 0.8),
           row("recipe513", "mezzo, captured", 1.2)]
    check((judged(odd)["recipe MLP: batch 513 at most 1.25x the time of 512"]["measured"],
           judged(odd)["recipe MLP: batch 513 at most 1.25x the time of 512"]["state"]) == ("1.50x", "not met"), "the same variant twice")


def test_properties():
    product = {"step": "recipe512", "product": "p", "per_step": 1, "best_us": 10.0, "heuristic_us": 11.5, "autotuned_us": 10.5,
               "complete": True, "tried": 5, "configurations": 5}
    best = "batch 512: products within 10 % of the best cuBLASLt algorithm, "
    found = judged(search=[product, product | {"per_step": 3, "heuristic_us": 10.0, "complete": False, "tried": 1}])
    check((found[best + "heuristic"]["measured"], found[best + "heuristic"]["state"]) == ("1.038x", "met"), "products by their number")
    failed = judged(search=[product, product | {"best_us": 0}])[best + "autotuned"]
    check(failed["state"] == "not measured" and "1 products without" in failed["detail"], "a product that was not searched")
    check("6 of 10 configurations" in found[best + "autotuned"]["detail"], "a search cut short says so")
    check(judged(search=[product])[best + "heuristic"]["state"] == "not met", "15 % above the best")
    ok = {"file": "a", "passed": 3, "failed": 0, "skipped": 0}
    suite = "test suite passes on the GPU"
    check(judged(tests=[ok])[suite]["state"] == "not measured", "a suite of which a file is lacking")
    check(judged(tests=[ok, ok])[suite]["state"] == "met", "a suite that passes")
    check(judged(tests=[ok | {"failed": 1}])[suite]["state"] == "not met", "a suite that fails")
    seen = {"tool": "racecheck", "file": "a", "outcome": "ok", "summary": ""}
    for outcome, state in {"ok": "met", "errors": "not met", "time limit": "not measured", "exit code 1": "not measured"}.items():
        found = judged(sanitizer=[seen | {"outcome": outcome}])["racecheck is clean"]["state"]
        check(found == state, f"racecheck ended with {outcome}: {found}")


def test_fallbacks():
    """Products that cuBLASLt did not compute are a failure, however fast the step was."""
    measured = {"framework": "mezzo", "median_ms": 1, "min_ms": 1, "queued_ms": 1, "launches": 1, "host_syncs": 0, "steps": 1,
                "peak_device_mb": 1}
    counted = {"gemm_fallbacks": 0, "gemm_invalid": 0, "gemm_last": "float32: CUBLAS_STATUS_NOT_SUPPORTED (15)"}

    def failed(numbers):
        result = {"case": "c", "precision": "p", "side": "mezzo", "stdout": json.dumps(numbers), "stderr": "", "exit_code": 0}
        return report.failures(collections.defaultdict(list, machine={}, benchmark=[report.benchmark_row(result)]))

    check(failed(measured | counted) == [] and failed(measured) == [], "a step without fallbacks")
    for key in ("gemm_fallbacks", "gemm_invalid"):
        found = failed(measured | counted | {key: 3})
        check(len(found) == 1 and "3 " in found[0] and "NOT_SUPPORTED" in found[0], f"{key}: {found}")


def test_bench(bench):
    """What bench prints has all that the report reads, and its steps run on the library alone."""
    for case in ("recipe513", "mlp64"):
        run = subprocess.run([bench, "--case", case, "--divide", "64", "--device", "cuda", "--precision", "float16", "--seconds",
                              "0.01"], capture_output=True, text=True, timeout=300)
        found = report.benchmark_row({"case": case, "precision": "float16", "side": "mezzo", "stdout": run.stdout,
                                      "stderr": run.stderr, "exit_code": run.returncode})
        check([found.get(key) for key in report.FALLBACKS] == [0, 0, ""], f"{case}: {found}")


def test_steps(bench):
    """The model has a line for each kernel that the recipe's step launches, and each of its lines a kernel."""
    for precision in ("float16", "float32"):
        alone = ([], ["--fuse-bias-gradients"], ["--fuse-layers"], ["--fuse-layers", "--relu-masks"])
        for options in (["--fast-paths", "automatic"], *(["--fast-paths", "off", *switches] for switches in alone)):
            command = [bench, "--case", "recipe513", "--divide", "64", "--device", "cuda", "--precision", precision, "--capture",
                       "--profile", "3", *options]
            run = subprocess.run(command, capture_output=True, text=True, timeout=300)
            work = report.json_lines(run.stdout)[0]["profile"]["work"] if run.returncode == 0 else []
            check(work, f"no profile: {run.stderr}")
            lines = roofline.recipe(9, precision, width=64)
            taken = roofline.assign(lines, work)
            unknown = [profile.short_name(piece["name"]) for piece, at in zip(work, taken) if at is None]
            check(not unknown, f"{precision} {options}: kernels without a line in tools/gpu/roofline.py: {unknown}")
            optional = {line.what for line in lines if line.pooled} | {
                "gradient of the loss", "gradient of the loss and bias", "gradient of ReLU", "gradient of ReLU and bias", "bias gradient", "mask of ReLU", "bias and activation behind a product"}
            unused = [line.what for i, line in enumerate(lines) if line.what not in optional and taken.count(i) != line.count]
            check(not unused, f"{precision} {options}: lines without their kernels: {unused}")
            for piece, at in zip(work, taken):
                if at is not None and piece["name"].startswith("product"):
                    m, n, k = map(int, piece["name"].split()[1].split("x"))
                    check(lines[at].flops == 2 * m * n * k, f"{lines[at].what} has {lines[at].flops} FLOPs, not those of {m}x{n}x{k}")
            relu = [sum(1 for at in taken if at is not None and lines[at].what == what)
                    for what in ("gradient of ReLU", "gradient of ReLU and bias", "mask of ReLU")]
            fused, masks = any("fuse" in option or option == "automatic" for option in options), "--relu-masks" in options
            check(relu == [0 if fused else 2, 2 if fused else 0, 2 if masks else 0], f"{precision} {options}: ReLU: {relu}")


def test_predicted(bench):
    """The model of BERT-base's step has the launches that a step has today."""
    run = subprocess.run([bench, "--case", "bert_base128", "--divide", "64", "--device", "cuda", "--precision", "bfloat16", "--profile", "1"],
                         capture_output=True, text=True, timeout=300)
    work = [piece["name"] for piece in report.json_lines(run.stdout)[0]["profile"]["work"]] if run.returncode == 0 else []
    check(work, f"no profile: {run.stderr}")
    rows = predict.rows()
    left = collections.Counter({row.pattern: 0 for row in rows})
    for name in work:
        left[next((row.pattern for row in rows if row.pattern and re.search(row.pattern, name)), "")] += 1
    wanted = collections.Counter({row.pattern: 0 for row in rows})
    for row in rows:
        wanted[row.pattern] += predict.total([row], "after")[0]
    once = {roofline.PRODUCT: 6, r"::convert_kernel<.*float16_t, float>": 1, r"::(column_sum_kernel|reduce_columns_kernel<.*float16_t)": 2}
    for pattern, count in once.items():  # of pooler, classifier and embeddings, which are in the line without a pattern
        wanted[pattern] += count
        wanted[""] -= count
    check(left == wanted, f"launches of a step: {left - wanted} more, {wanted - left} less than the model has")
    check(predict.total(rows, "before")[0] == 528, "528 launches before")


def test_search(program):
    """The search's lines are what the report reads, and its products add up to a step's."""
    run = subprocess.run([program, "--divide", "64", "--seconds", "0.1"], capture_output=True, text=True, timeout=300)
    rows = report.search_rows([{"stdout": run.stdout, "stderr": run.stderr, "exit_code": run.returncode, "step": "all",
                                "product": 0}])
    check(run.returncode == 0 and not any("outcome" in r for r in rows), f"gemm_search: {run.stderr}")
    for step, flops in (("recipe512", work_of(roofline.recipe(8, "float16", width=64))[0]),
                        ("recipe513", work_of(roofline.recipe(9, "float16", width=64))[0]),
                        ("bert_base128", work_of(roofline.bert(32, 1, "float16", hidden=12))[0])):
        found = sum(r["per_step"] * 2 * r["m"] * r["n"] * r["k"] for r in rows if r["step"] == step)
        check(found == flops, f"{step}: products of {found} FLOPs, not {flops}")
    for step, count in parts.PRODUCTS.items():
        check(sum(r["step"] == step for r in rows) == count, f"{step}: not the number of products in tools/gpu/parts.py")
    one = subprocess.run([program, "--divide", "64", "--seconds", "0", "--step", "recipe513", "--product", "4"], capture_output=True,
                         text=True, timeout=300)
    found = [r["product"] for r in report.json_lines(one.stdout)]
    check(found == ["weight gradient"], f"one product: {found}")
    check(len(report.search_table(rows)) == len(rows) + 3, "a row per product")
    json.dumps(judged(search=rows))


def main():
    for test in (test_figures, test_convolutions, test_floors, test_explain, test_profile, test_speeds, test_properties,
                 test_fallbacks):
        test()
    if len(sys.argv) > 2:
        test_bench(sys.argv[2])
        test_steps(sys.argv[2])
        test_predicted(sys.argv[2])
        test_search(sys.argv[3])
    finish()


main()
