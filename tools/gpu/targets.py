"""The speeds and properties that mezzo is to show on a GPU, judged by what one run has measured."""

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"
SUITE_PROBLEM = "no results"


def line(target, measured, met, detail):
    return {"target": target, "measured": measured, "state": NOT_MEASURED if met is None else MET if met else NOT_MET,
            "detail": detail}


def own(rows, case, precision, captured=None):
    """mezzo's measured rows of a case; captured: only those that are, or are not."""
    return [r for r in rows if r["case"] == case and r["precision"] == precision and r["side"].startswith("mezzo") and
            "median_ms" in r and (captured is None or captured == ("captured" in r["side"]))]


def of(rows, case, precision, side):
    return next((r for r in rows if (r["case"], r["precision"], r["side"]) == (case, precision, side) and "median_ms" in r), None)


def fastest(rows):
    return min(rows, key=lambda r: r["median_ms"], default=None)


def speed(rows, name, case, precision, peers, least, captured=None):
    """How many times faster mezzo's fastest variant is than the fastest of the peers."""
    target = f"{name}: at least {least:g}x {' and '.join(peers)}"
    best = fastest(own(rows, case, precision, captured))
    found = [of(rows, case, precision, peer) for peer in peers]
    if best is None or None in found:
        lacking = [peer for peer, row in zip(peers, found) if row is None] + ([] if best else ["mezzo"])
        return line(target, "", None, f"no time of {', '.join(lacking)}")
    peer = fastest(found)
    ratio = peer["median_ms"] / best["median_ms"]
    plain = of(rows, case, precision, "mezzo")
    default = f"; without any option {peer['median_ms'] / plain['median_ms']:.2f}x" if plain and plain is not best else ""
    return line(target, f"{ratio:.2f}x", ratio >= least,
                f"{best['side']}: {best['median_ms']:.4g} ms, {peer['side']}: {peer['median_ms']:.4g} ms{default}")


def odd_batch(rows):
    target = "recipe MLP: batch 513 at most 1.25x the time of 512"
    pairs = [(r, of(rows, "recipe512", "float16", r["side"])) for r in own(rows, "recipe513", "float16")]
    pairs = [(odd, even) for odd, even in pairs if even]
    if not pairs:
        return line(target, "", None, "no variant of mezzo has both times")
    odd, even = min(pairs, key=lambda pair: pair[1]["median_ms"])
    ratio = odd["median_ms"] / even["median_ms"]
    others = "; ".join(f"{o['side']} {o['median_ms'] / e['median_ms']:.2f}x" for o, e in pairs if o is not odd)
    return line(target, f"{ratio:.2f}x", ratio <= 1.25, f"{odd['side']}: {odd['median_ms']:.4g} against {even['median_ms']:.4g} ms"
                + (f"; {others}" if others else ""))


def memory(rows, name, case):
    target = f"{name}: peak memory below PyTorch's"
    best, peer = fastest(own(rows, case, "float16")), of(rows, case, "float16", "PyTorch")
    if best is None or peer is None:
        return line(target, "", None, "no measurement of " + ("mezzo" if best is None else "PyTorch"))
    ratio = best["peak_device_mb"] / peer["peak_device_mb"]
    every = ", ".join(f"{r['side']} {r['peak_device_mb']:.0f}" for r in own(rows, case, "float16"))
    return line(target, f"{ratio:.2f}x", ratio < 1, f"MB: {every}; PyTorch {peer['peak_device_mb']:.0f}")


def products(found, name, step, key):
    """The step's products together: mezzo's choice against the best algorithm of the search."""
    target = f"{name}: products within 10 % of the best cuBLASLt algorithm, {key}"
    rows = [r for r in found if r["step"] == step and r["best_us"] > 0 and r[f"{key}_us"] > 0]
    failed = sum(r["step"] == step for r in found) - len(rows)
    if not rows:
        return line(target, "", None, "no product was searched")
    chosen, best = (sum(r["per_step"] * r[k] for r in rows) for k in (f"{key}_us", "best_us"))
    worst = max(rows, key=lambda r: r[f"{key}_us"] / r["best_us"])
    cut = [r for r in rows if not r["complete"]]
    detail = f"{chosen:.1f} against {best:.1f} us per step; worst: {worst['product']} {worst[f'{key}_us'] / worst['best_us']:.3f}x"
    if failed:
        detail += f"; {failed} products without a time"
    if cut:
        tried, all_of_them = sum(r["tried"] for r in rows), sum(r["configurations"] for r in rows)
        detail += f"; {tried} of {all_of_them} configurations tried"
    close = chosen <= 1.10 * best
    return line(target, f"{chosen / best:.3f}x", None if close and failed else close, detail)


def suite(rows, files):
    target = "test suite passes on the GPU"
    rows = [r for r in rows if r.get("outcome") != "budget spent"]
    if not rows:
        return line(target, "", None, SUITE_PROBLEM)
    failed = [r["file"] for r in rows if r["failed"]]
    passed, skipped = sum(r["passed"] for r in rows), sum(r["skipped"] for r in rows)
    detail = ", ".join(failed) or f"{skipped} skipped"
    if not failed and len(rows) < files:
        return line(target, "", None, f"{len(rows)} of {files} files ran")
    return line(target, f"{passed} cases passed, {sum(r['failed'] for r in rows)} failed", not failed, detail)


def clean(rows, tool, files):
    """An error is an answer; that there is none only where every file was seen to its end."""
    target = f"{tool} is clean"
    rows = [r for r in rows if r["tool"] == tool]
    errors = [r for r in rows if r["outcome"] == "errors"]
    done = [r for r in rows if r["outcome"] in ("ok", "errors")]
    if errors:
        return line(target, f"errors in {len(errors)} files", False, ", ".join(f"{r['file']}: {r['summary']}" for r in errors))
    if not rows or len(done) < files:
        return line(target, "", None, ", ".join(f"{r['file']}: {r['outcome']}" for r in rows if r not in done) or SUITE_PROBLEM)
    return line(target, f"no errors in {len(done)} files", True, "")


def judge(report, planned):
    """All targets. planned: how many files of tests, and of tests under sanitizers, there are."""
    rows, half = report["benchmark"], "float16"
    mlp = "recipe MLP (3 x 4096, batch 512)"
    lines = [
        speed(rows, mlp, "recipe512", half, ["PyTorch"], 1.75),
        speed(rows, mlp, "recipe512", half, ["PyTorch, compiled", "PyTorch, reduce-overhead"], 1.6),
        odd_batch(rows),
        speed(rows, "64-wide MLP, captured", "mlp64", half, ["PyTorch"], 10, captured=True),
        speed(rows, "ResNet50, CIFAR stem, batch 128", "resnet50_128", half, ["PyTorch"], 1.4),
        memory(rows, "recipe MLP", "recipe512"),
        memory(rows, "BERT-base, length 128", "bert_base128"),
        memory(rows, "BERT-base, length 512", "bert_base512"),
        speed(rows, "recipe MLP, default float32", "recipe512", "float32", ["PyTorch"], 1.0),
        speed(rows, "recipe MLP, TF32", "recipe512", "tf32", ["PyTorch"], 1.0),
    ]
    for name, step in (("batch 512", "recipe512"), ("batch 513", "recipe513"), ("BERT-base", "bert_base128")):
        lines += [products(report["search"], name, step, key) for key in ("heuristic", "autotuned")]
    lines.append(suite(report["tests"], planned["tests"]))
    return lines + [clean(report["sanitizer"], tool, planned["sanitizer"])
                    for tool in ("memcheck", "racecheck", "initcheck", "synccheck")]
