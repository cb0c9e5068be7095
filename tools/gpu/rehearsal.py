"""A run of tools/gpu_check's parts over a stand-in for every program: whether each part's output reaches the report, and every
target is judged. What the stand-in prints has the form of the real programs' output, and numbers that meet the targets."""
import json
import pathlib
import tempfile
import time

from gpu import carry_out, parts, report, targets

WORK = [("copy to the device", 1.5), ("void mezzo::cuda::(anonymous namespace)::convert_kernel<mezzo::float16_t, float>(long)", 4.0),
        *[("nvjet_hsh_128x256_64x4_1x2_h_bz_TNT", 24.0)] * 8, ("void cublasLt::splitKreduce_kernel<32, 16, int>(int)", 2.0),
        ("void mezzo::cuda::(anonymous namespace)::update_kernel<SgdStep>(mezzo::StepArgs)", 160.0),
        ("void mezzo::cuda::a_new_kernel(int)", 1.0)]


def benchmark(median, peak):
    return json.dumps({"framework": "stand-in", "median_ms": median, "min_ms": median, "queued_ms": median, "launches": 1,
                       "host_syncs": 0, "steps": 9, "peak_device_mb": peak})


def profile():
    work, at = [], 0.0
    for name, us in WORK:
        work.append({"name": name, "begin_us": at, "us": us})
        at += us + 1
    return json.dumps({"profile": {"steps": 20, "wall_us": at + 20, "work": work}})


def product(step):
    return json.dumps({"step": step, "product": "forward", "per_step": 2, "m": 8, "n": 8, "k": 8, "heuristic_us": 10.5,
                       "autotuned_us": 10.2, "best_us": 10.0, "best": "family 66", "configurations": 9, "tried": 9, "accepted": 3,
                       "wrong": 0, "complete": True})


def script():
    """The stand-in: a shell script that is given a part's whole command, and answers as the program in it would."""
    answers = {
        "*--tool*": "========= ERROR SUMMARY: 0 errors",
        **{f"*gemm_search*--step?{step}*": product(step) for step in ("recipe512", "recipe513", "bert_base128")},
        "*bench*--profile*": profile(),
        "*mezzo-tests*": "All tests passed (9 assertions in 4 test cases)",
        "*torch_bench.py*--case?mlp64*": benchmark(20, 900),
        "*torch_bench.py*": benchmark(4, 900),
        "*bench*": benchmark(1, 800),
    }
    cases = "".join(f"  {pattern}) cat <<'END'\n{answer}\nEND\n;;\n" for pattern, answer in answers.items())
    return f'#!/bin/sh\ncase "$*" in\n{cases}  *) echo done;;\nesac\n'


def faults(planned, files, complete):
    """What went wrong, one line each. complete: the plan has parts of every kind, so that every target can be judged."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in = pathlib.Path(folder) / "stand_in"
        stand_in.write_text(script(), encoding="utf-8")
        stand_in.chmod(0o755)
        for part in planned:
            part.commands = [parts.Command([str(stand_in), *c.words], c.limit, c.about) for c in part.commands]
        results = carry_out.Results()
        left_out = carry_out.Run(time.monotonic() + 10000, results, lambda line: None).all(planned)
    made = report.make({"machine": "none"}, results.by_kind(), left_out, files)
    found = report.failures(made) + [f"left out: {line}" for line in left_out]
    for kind in parts.KINDS:
        commands = sum(len(part.commands) for part in planned if part.kind == kind)
        if commands != len(made[kind]):
            found.append(f"{kind}: {commands} commands, {len(made[kind])} rows")
    if complete:
        found += [f"target {t['state']}: {t['target']}: {t['detail']}" for t in made["targets"] if t["state"] != targets.MET]
    text = report.markdown(made)
    return found + [f"Markdown lacks '{line['target']}'" for line in made["targets"] if line["target"] not in text]
