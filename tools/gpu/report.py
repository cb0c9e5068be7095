"""The report of tools/gpu_check: one dictionary for the JSON file, the same as Markdown tables, and whether anything failed."""
import json
import re

from count import catch_counts
from gpu.parts import SANITIZER_EXIT

COLUMNS = {"median_ms": "median ms", "min_ms": "least ms", "queued_ms": "ms, queued", "launches": "launches",
           "host_syncs": "host waits", "peak_device_mb": "peak MB"}
UNJUDGED = ("ok", "time limit", "budget spent")
LOG_END = 3000  # characters of a failed command's output


def end_of(result):
    return (result["stdout"] + result["stderr"])[-LOG_END:]


def outcome(result):
    """How a command ended."""
    code = result["exit_code"]
    if code is None:
        return "budget spent" if result["budget_spent"] else "time limit"
    return "ok" if code == 0 else f"killed by signal {-code}" if code < 0 else f"exit code {code}"


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
    return {"file": result["file"], "passed": passed, "failed": failed or int(not good), "skipped": skipped, "outcome": ended,
            "seconds": result["seconds"], "log": "" if good else end_of(result)}


def sanitizer_row(result):
    """One file under one tool. `errors` is what the tool found; a failed or unfinished test is no finding."""
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", result["stdout"])
    errors = result["exit_code"] == SANITIZER_EXIT
    ended = "errors" if errors else outcome(result)
    if ended == "ok" and not summaries:
        ended = "printed no summary"
    return {"tool": result["tool"], "file": result["file"], "outcome": ended, "summary": "; ".join(summaries),
            "seconds": result["seconds"], "log": "" if ended == "ok" else end_of(result)}


def benchmark_row(result):
    """One case on one side; without numbers, and with the reason, where it failed."""
    row = {key: result[key] for key in ("case", "precision", "side")}
    try:
        measured = json.loads(result["stdout"].strip().split("\n")[-1])
        return row | {"framework": measured["framework"]} | {key: measured[key] for key in (*COLUMNS, "steps")}
    except (json.JSONDecodeError, KeyError, TypeError):
        return row | {"outcome": outcome(result), "log": end_of(result)}


def add_ratios(rows):
    """times_eager: how many times faster than PyTorch's eager step of the same case and precision."""
    eager = {(r["case"], r["precision"]): r["median_ms"] for r in rows if r["side"] == "PyTorch" and "median_ms" in r}
    for row in rows:
        base = eager.get((row["case"], row["precision"]))
        if base and "median_ms" in row:
            row["times_eager"] = base / row["median_ms"]
    return rows


def make(machine, results, left_out):
    rows = add_ratios([benchmark_row(r) for r in results["benchmark"]])
    groups = list(dict.fromkeys((r["case"], r["precision"]) for r in rows))
    rows.sort(key=lambda r: groups.index((r["case"], r["precision"])))
    return {"machine": machine, "tests": [test_row(r) for r in results["tests"]],
            "sanitizer": [sanitizer_row(r) for r in results["sanitizer"]],
            "sample": [{"outcome": outcome(r), "output": r["stdout"] + r["stderr"]} for r in results["sample"]],
            "benchmark": rows, "left_out": left_out}


def failures(report):
    """One line each. No failures are a sanitizer that met its time limit, a benchmark that met the budget, and PyTorch's."""
    lines = [f"tests: {r['file']}: {r['outcome']}" for r in report["tests"] if r["failed"]]
    lines += [f"{r['tool']}: {r['file']}: {r['outcome']}" for r in report["sanitizer"] if r["outcome"] not in UNJUDGED]
    lines += [f"sample: {r['outcome']}" for r in report["sample"] if r["outcome"] != "ok"]
    return lines + [f"benchmark: {r['case']}, {r['precision']}, {r['side']}: {r['outcome']}" for r in report["benchmark"]
                    if r.get("outcome", "budget spent") != "budget spent" and r["side"].startswith("mezzo")]


def table(header, rows):
    return ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]] + [""]


def benchmark_table(rows):
    def cells(row):
        start = [row["case"], row["precision"], row["side"]]
        if "outcome" in row:
            return start + [row["outcome"]] + [""] * len(COLUMNS)
        numbers = [f"{row[key]:.0f}" if key == "peak_device_mb" else f"{row[key]:.4g}" for key in COLUMNS]
        return start + numbers + [f"{row['times_eager']:.2f}" if "times_eager" in row else ""]

    return table(["case", "precision", "side", *COLUMNS.values(), "times PyTorch eager"], [cells(r) for r in rows])


def sanitizer_table(rows):
    tools = list(dict.fromkeys(r["tool"] for r in rows))
    cell = {(r["file"], r["tool"]): r["outcome"] + (f" ({r['summary']})" if r["outcome"] == "errors" else "") for r in rows}
    return table(["file", *tools], [[file, *(cell.get((file, tool), "") for tool in tools)]
                                    for file in dict.fromkeys(r["file"] for r in rows)])


def markdown(report):
    note = "Per step. The median and the least are of steps whose end the host awaits; queued is the mean without waiting."
    total = [sum(r[key] for r in report["tests"]) for key in ("passed", "failed", "skipped")]
    lines = ["# GPU check", "", *(f"- {key}: {value}" for key, value in report["machine"].items()), "",
             f"{total[0]} passed, {total[1]} failed, {total[2]} skipped", ""]
    lines += [*(f"- FAILED: {line}" for line in failures(report)), *(f"- left out: {line}" for line in report["left_out"]), ""]
    lines += ["## Benchmark", "", note, "", *benchmark_table(report["benchmark"])]
    if report["sanitizer"]:
        lines += ["## compute-sanitizer", "", *sanitizer_table(report["sanitizer"])]
    for sample in report["sample"]:
        lines += ["## samples/mlp --preset recipe", "", "```", sample["output"].rstrip(), "```", ""]
    logs = [(key, r) for key in ("tests", "sanitizer", "benchmark") for r in report[key] if r.get("log")]
    for key, row in logs:
        what = [row.get(name) for name in ("case", "precision", "side", "tool", "file") if name in row]
        lines += [f"## {key}: {', '.join(what)}: {row['outcome']}", "", "```", row["log"].rstrip(), "```", ""]
    return "\n".join(lines)
