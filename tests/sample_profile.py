"""What a sample prints and writes with --profile FILE, for the tests of the samples."""
import json
import re


def profile_problems(output, path, module, last_step):
    """Texts about what is wrong: `module` is one of the model's, `last_step` the last that is profiled, counted from 1."""
    tables = re.search(rf"^profile of steps (\d+) to {last_step}\n\n(op .*?)\n\n(module .*?)\n\n(\S+): the trace", output, re.M | re.S)
    if tables is None:
        return [f"no tables up to step {last_step}:\n{output}"]
    first, ops, modules = int(tables[1]), tables[2], tables[3]
    problems = [] if tables[4] == str(path) else [f"the trace is said to be in {tables[4]}"]
    if not re.search(r"^(?:Optimizer|GradScaler)\.step +[1-9]", ops, re.M):
        problems.append(f"no row of the optimizer:\n{ops}")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    known = {event.get("args", {}).get("module") for event in events}
    # A large model has more modules than the table has rows, and which take most time is not said.
    rows = set(re.findall(r"^(\S+) +[1-9]\d* ", modules, re.M))
    if not rows & known or module not in known:
        problems.append(f"{module} is not in the trace, or no row of its modules is in the table:\n{modules}")
    steps = [event for event in events if event.get("cat") == "step"]
    if len(steps) != last_step - first + 1:
        problems.append(f"steps {first} to {last_step}, and {len(steps)} in the trace")
    for kind in ("op", "backward", "range"):
        if not any(event.get("cat") == kind for event in events):
            problems.append(f"no {kind} in the trace")
    return problems
