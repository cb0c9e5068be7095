"""The report of tools/gpu_check: one dictionary for the JSON file, the same as Markdown tables, and whether anything failed."""
import json
import pathlib
import re

from count import catch_counts
from gpu import profile, roofline, targets
from gpu.parts import SANITIZER_EXIT
from gpu.run import ends

COLUMNS = {"median_ms": "median ms", "min_ms": "least ms", "queued_ms": "ms, queued", "device_ms": "ms of kernels", "launches": "launches",
           "host_syncs": "host waits", "peak_device_mb": "peak MB"}
FALLBACKS = ("gemm_fallbacks", "gemm_invalid", "gemm_last")  # matrix products that cuBLASLt did not compute
UNJUDGED = ("ok", "time limit", "budget spent")
LOG_ENDS = 8000  # characters of a failed command's output, half of them from its begin


def ends_of(result):
    return ends(result["stdout"] + result["stderr"], LOG_ENDS)


def outcome(result):
    """How a command ended."""
    code = result["exit_code"]
    if code is None:
        return "budget spent" if result["budget_spent"] else result["stopped"]
    return "ok" if code == 0 else f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def without(what, result):
    """How a command ended that has not printed what it should."""
    ended = outcome(result)
    return f"printed no {what}" if ended == "ok" else ended


def test_row(result):
    """One file of test cases. A case that was skipped for want of a GPU has failed: there is one."""
    counts = catch_counts(result["stdout"])
    ended = outcome(result)
    if result["exit_code"] == 0 and "no CUDA device" in result["stdout"]:
        ended = "found no CUDA device"
    if result["exit_code"] == 0 and not counts:
        ended = "printed no summary"
    passed, failed, skipped = counts or (0, 0, 0)
    good = ended == "ok"
    return {"file": result["file"], "passed": passed, "failed": failed or int(ended not in ("ok", "budget spent")), "skipped": skipped, "outcome": ended,
            "seconds": result["seconds"], "log": "" if good else ends_of(result)}


def case_row(result):
    """One case of a failed file, in a process of its own."""
    row = test_row(result)
    return {"file": result["file"], "case": result["case"], **{key: row[key] for key in ("outcome", "seconds", "log")}}


def sanitizer_row(result):
    """One file under one tool. `errors` is what the tool found; a failed or unfinished test is no finding."""
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", result["stdout"])
    errors = result["exit_code"] == SANITIZER_EXIT
    ended = "errors" if errors else outcome(result)
    if ended == "ok" and not summaries:
        ended = "printed no summary"
    return {"tool": result["tool"], "file": result["file"], "outcome": ended, "summary": "; ".join(summaries),
            "seconds": result["seconds"], "log": "" if ended == "ok" else ends_of(result)}


def benchmark_row(result):
    """One case on one side; without numbers, and with the reason, where it failed."""
    row = {key: result[key] for key in ("case", "precision", "side")}
    try:
        measured = json.loads(result["stdout"].strip().split("\n")[-1])
        counted = {key: measured[key] for key in FALLBACKS if key in measured}  # PyTorch has none
        return row | {"framework": measured["framework"]} | {key: measured[key] for key in (*COLUMNS, "steps") if key in measured or key != "device_ms"} | counted
    except (json.JSONDecodeError, KeyError, TypeError):
        return row | {"outcome": without("numbers", result), "log": ends_of(result)}


def add_ratios(rows):
    """times_eager: how many times faster than PyTorch's eager step of the same case and precision."""
    eager = {(r["case"], r["precision"]): r["median_ms"] for r in rows if r["side"] == "PyTorch" and "median_ms" in r}
    for row in rows:
        base = eager.get((row["case"], row["precision"]))
        if base and "median_ms" in row:
            row["times_eager"] = base / row["median_ms"]
    return rows


def json_lines(text):
    """The JSON objects that are lines of their own."""
    found = []
    for text_line in text.split("\n"):
        try:
            value = json.loads(text_line)
        except json.JSONDecodeError:
            continue
        found += [value] if isinstance(value, dict) else []
    return found


def search_rows(results):
    """One row per product; what a search printed before it failed or met its limit counts."""
    rows = []
    for result in results:
        found = [r for r in json_lines(result["stdout"]) if {"product", "best_us", "heuristic_us", "autotuned_us"} <= set(r)]
        rows += found
        if outcome(result) != "ok" or not found:
            rows.append({"step": result["step"], "product": f"number {result['product']}", "best_us": 0, "log": ends_of(result),
                         "outcome": without("product", result)})
    return rows


def profile_row(result, rows, rate):
    """One step's profile and its distance to the roofline. rows: of the benchmark, which has the time without a trace."""
    row = {key: result[key] for key in ("case", "precision", "side")}
    measured = next((m["profile"] for m in json_lines(result["stdout"]) if m.get("profile", {}).get("work")), None)
    if measured is None:
        return row | {"outcome": without("profile", result), "log": ends_of(result)}
    untraced = targets.of(rows, *row.values())
    return row | profile.summary(measured, 1e3 * untraced["median_ms"] if untraced else None) | {
        "roofline": roofline.explain(row["case"], row["precision"], measured["work"], rate), "work": measured["work"]}


def make(machine, results, left_out, planned):
    """planned: the number of files of tests and of tests under sanitizers, of which all must be seen, and the files that run as PTX."""
    rows = add_ratios([benchmark_row(r) for r in results["benchmark"]])
    groups = list(dict.fromkeys((r["case"], r["precision"]) for r in rows))
    rows.sort(key=lambda r: groups.index((r["case"], r["precision"])))
    rate = roofline.rates(rows)
    made = {"machine": machine, "rates": rate, "smoke": [test_row(r) for r in results["smoke"]],
            "cases": [case_row(r) for r in results["cases"]], "tests": [test_row(r) for r in results["tests"]],
            "sanitizer": [sanitizer_row(r) for r in results["sanitizer"]],
            "sample": [{"outcome": outcome(r), "output": r["stdout"] + r["stderr"]} for r in results["sample"]],
            "benchmark": rows, "search": search_rows(results["search"]),
            "profile": [profile_row(r, rows, rate) for r in results["profile"]], "left_out": left_out, "ptx": planned.get("ptx", [])}
    return {"machine": machine, "targets": targets.judge(made, planned)} | made


def failures(report):
    """One line each. No failures are a sanitizer that met its time limit, a benchmark that met the budget, and PyTorch's."""
    lines = [f"{key}: {r['file']}: {r['outcome']}" for key in ("smoke", "tests") for r in report[key] if r["failed"]]
    lines += [f"{r['tool']}: {r['file']}: {r['outcome']}" for r in report["sanitizer"] if r["outcome"] not in UNJUDGED]
    lines += [f"sample: {r['outcome']}" for r in report["sample"] if r["outcome"] != "ok"]
    lines += [f"{key}: {', '.join(r[k] for k in ('step', 'product', 'case', 'side') if k in r)}: {r['outcome']}"
              for key in ("search", "profile") for r in report[key] if r.get("outcome", "budget spent") != "budget spent"]
    lines += [f"not built: {', '.join(report['machine']['not built'])}"] if report["machine"].get("not built") else []
    lines += [f"benchmark: {r['case']}, {r['precision']}, {r['side']}: {r['gemm_fallbacks']} products without cuBLASLt, "
              f"{r['gemm_invalid']} calls that it called invalid; the last: {r['gemm_last']}" for r in report["benchmark"]
              if r.get("gemm_fallbacks", 0) + r.get("gemm_invalid", 0) > 0]
    return lines + [f"benchmark: {r['case']}, {r['precision']}, {r['side']}: {r['outcome']}" for r in report["benchmark"]
                    if r.get("outcome", "budget spent") != "budget spent" and r["side"].startswith("mezzo")]


def table(header, rows):
    return ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]] + [""]


def benchmark_table(rows):
    def cells(row):
        start = [row["case"], row["precision"], row["side"]]
        if "outcome" in row:
            return start + [row["outcome"]] + [""] * len(COLUMNS)
        numbers = [f"{row[key]:.0f}" if key == "peak_device_mb" else f"{row[key]:.4g}" if key in row else "" for key in COLUMNS]
        return start + numbers + [f"{row['times_eager']:.2f}" if "times_eager" in row else ""]

    return table(["case", "precision", "side", *COLUMNS.values(), "times PyTorch eager"], [cells(r) for r in rows])


def sanitizer_table(rows):
    tools = list(dict.fromkeys(r["tool"] for r in rows))
    cell = {(r["file"], r["tool"]): r["outcome"] + (f" ({r['summary']})" if r["outcome"] == "errors" else "") for r in rows}
    return table(["file", *tools], [[file, *(cell.get((file, tool), "") for tool in tools)]
                                    for file in dict.fromkeys(r["file"] for r in rows)])


def case_lines(rows):
    """Which cases of the failed files fail on their own."""
    lines = []
    for file in dict.fromkeys(r["file"] for r in rows):
        own = [r for r in rows if r["file"] == file]
        ran = [r for r in own if r["outcome"] != "budget spent"]
        told = "; ".join(f"{r['case']} ({r['outcome']})" for r in ran if r["outcome"] != "ok")
        told = told or ("none, so the failure needs several cases in one process" if ran == own else "none so far")
        lines.append(f"- {file}: {len(ran)} of {len(own)} cases ran alone, with blocking launches; failed: {told}")
    return ["## Failed files, case by case", "", *lines, ""] if lines else []


def target_table(rows):
    return table(["target", "measured", "", "detail"], [[r["target"], r["measured"], r["state"], r["detail"]] for r in rows])


def search_table(rows):
    def cells(r):
        if "outcome" in r:
            return [r["step"], r["product"], r["outcome"]] + [""] * 7
        sizes, best = f"{r['m']} x {r['n']} x {r['k']}", r["best_us"]
        ratios = [f"{r[key] / best:.3f}" if best and r[key] else "" for key in ("heuristic_us", "autotuned_us")]
        return [r["step"], r["product"], sizes, str(r["per_step"]), f"{r['heuristic_us']:.2f}", f"{r['autotuned_us']:.2f}",
                f"{best:.2f}", " / ".join(ratios), f"{r['accepted']}; {r['tried']} of {r['configurations']}", r["best"]]

    return table(["step", "product", "m x n x k", "per step", "heuristic, us", "autotuned, us", "best, us", "ratios",
                  "run; tried of all", "best algorithm"], [cells(r) for r in rows])


def number(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def profile_lines(row):
    """One step's tables."""
    lines = [f"## Profile: {row['case']}, {row['precision']}, {row['side']}", ""]
    if "outcome" in row:
        return lines + [row["outcome"], ""]
    lines += [f"- {row['launched']} pieces of work, {row['kernels_us']:.1f} us of them; something runs for {row['busy_us']:.1f} us "
              f"of {row['span_us']:.1f} us from the first begin to the last end",
              f"- gaps {row['gaps_us']:.1f} us, the longest {row['longest_gap_us']:.1f} us after "
              f"{row['longest_gap_after'] or 'nothing'}; tracing makes gaps longer",
              f"- one step, the host waiting for its end: {number(row['untraced_wall_us']) or 'not measured'} us without trace, "
              f"{row['traced_wall_us']:.1f} us with it"]
    if "rest_us" in row:
        lines.append(f"- not covered by kernels in the step without trace: {row['rest_us']:.1f} us")
    lines += ["", *table(["line", "kernels", "measured, us", "floor, us", "above it, us", "ratio", "bound by", "planned, us"],
                         [[r["line"], str(r["kernels"]), number(r["us"]), number(r["floor_us"]), number(r["above_us"]),
                           number(r["ratio"], 2), r["bound"], number(r["needs_us"])] for r in row["roofline"]])]
    return lines + table(["kernel", "count", "us", "share"], [[f"`{r['kernel']}`".replace("|", "\\|"), str(r["count"]),
                                                              number(r["us"]), f"{100 * r['share']:.1f} %"] for r in row["kernels"]])


def compared(report):
    """The files that pass over the PTX that nvcc has made, on an interpreter: do they pass here?"""
    ran = {r["file"]: r for r in report["tests"] if r["file"] in report["ptx"]}
    differ = [f"{pathlib.PurePosixPath(file).stem} ({row['outcome']})" for file, row in ran.items() if row["failed"]]
    return f"Of {len(report['ptx'])} files of cases that pass over interpreted PTX {len(ran)} have run here; " + \
        ("all pass." if not differ else f"{len(differ)} fail: {', '.join(differ)}.")


def page(report, lines=20, width=200):
    """The report on one page, for whoever wants to send it in."""
    bad = [line if len(line) <= width else line[:width] + " ..." for line in failures(report)]
    more = [f"- and {len(bad) - lines} more"] if len(bad) > lines else []
    machine = [f"- {key}: {value}" for key, value in report["machine"].items() if isinstance(value, str)]
    return "\n".join(["# mezzo on a GPU", "", *machine, "", compared(report), "", "All tests: " + total(report["tests"]) + ".", "",
                      *(f"- FAILED: {line}" for line in bad[:lines]), *more, f"- {len(report['left_out'])} parts were left out", "",
                      *target_table([r | {"detail": ""} for r in report["targets"]])])


def anonymous(text, folders):
    """A report without names of folders and of the user. folders: what stands for each path, the longest paths first."""
    for path, name in sorted(folders.items(), key=lambda item: -len(item[0])):
        text = text.replace(path, name)
    return text


def total(rows):
    passed, bad, skipped = (sum(r[key] for r in rows) for key in ("passed", "failed", "skipped"))
    return f"{passed} passed, {bad} failed, {skipped} skipped"


def markdown(report):
    note = ("Per step. The median and the least are of steps whose end the host awaits; queued is the mean without waiting; the time of the "
            "kernels, without gaps, is that of PyTorch's profiler, and mezzo's is in the profiles below.")
    lines = ["# GPU check", "", *(f"- {key}: {', '.join(value) if isinstance(value, dict) else value}"
                                    for key, value in report["machine"].items()), "",
             *([f"Smoke part: {total(report['smoke'])}", ""] if report["smoke"] else []), total(report["tests"]), "", compared(report), ""]
    lines += [*(f"- FAILED: {line}" for line in failures(report)), *(f"- left out: {line}" for line in report["left_out"]), ""]
    lines += [*case_lines(report["cases"]), "## Targets", "", *target_table(report["targets"])]
    lines += ["## Benchmark", "", note, "", *benchmark_table(report["benchmark"])]
    if report["rates"]:
        told = [f"{name} {rate / 1e12:.{2 if name == 'memory' else 0}f} {'TB/s' if name == 'memory' else 'TFLOP/s'}"
                for name, rate in report["rates"].items()]
        lines += ["Best rates of large products and a large copy (read and written): " + ", ".join(told) + ".", ""]
    if report["search"]:
        lines += ["## Products against the best cuBLASLt algorithm", "", *search_table(report["search"])]
    for row in report["profile"]:
        lines += profile_lines(row)
    if report["sanitizer"]:
        lines += ["## compute-sanitizer", "", *sanitizer_table(report["sanitizer"])]
    for sample in report["sample"]:
        lines += ["## samples/mlp", "", "```", sample["output"].rstrip(), "```", ""]
    logs = [(key, r) for key in ("smoke", "cases", "tests", "sanitizer", "benchmark", "search", "profile") for r in report[key] if r.get("log")]
    for key, row in logs:
        what = [row.get(name) for name in ("case", "precision", "side", "tool", "file", "step", "product") if name in row]
        lines += [f"## {key}: {', '.join(what)}: {row['outcome']}", "", "```", row["log"].rstrip(), "```", ""]
    return "\n".join(lines)
