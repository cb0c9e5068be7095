"""Runs the parts of tools/gpu/parts.py within a time budget. Each result is on disk before the next command starts, so that a run
which is cut off goes on from there."""
import concurrent.futures
import hashlib
import json
import pathlib
import re
import threading
import time

from gpu.parts import KINDS, SMOKE, Command, Part, cases_of
from gpu.run import Patience, run, stopping

CASES = "cases"  # the kind of the parts that run failed files case by case
CASE_LIMIT = 40
NOTHING_WORKS = "no case of the smoke part passes on this device"


def identity(result):
    """What a command is, in this run and another one."""
    about = {key: value for key, value in result.items() if key in ("file", "case", "tool", "precision", "side", "step", "product")}
    return json.dumps([result["part"], about], sort_keys=True)


def digest(path):
    """Of a program; nothing where it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


class Results:
    """Results by kind; each is a line of a file as soon as it is there. A result of later takes the place of an earlier one.
    go_on: begins with those of an earlier run, as far as they are of the programs that are there now. Those of the smoke part are
    not taken over, because this may be another machine."""

    def __init__(self, path=None, go_on=False):
        self.path, self.lock, self.found, self.programs = path, threading.RLock(), {}, {}
        if path and go_on and path.exists():
            for line in path.read_text(encoding="utf-8").split("\n"):
                try:
                    result = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the end of a run that was cut off in the middle of a line
                name, made = result["program"]
                if not result["budget_spent"] and result.get("file") != SMOKE and self.program(name)[1] == made:
                    self.found[identity(result)] = result
        if path:
            lines = [json.dumps(result) + "\n" for result in self.found.values()]
            path.with_suffix(".part").write_text("".join(lines), encoding="utf-8")
            path.with_suffix(".part").replace(path)

    def program(self, name):
        """What a result says of the program that made it."""
        if self.path and name not in self.programs:
            self.programs[name] = digest(self.path.parent / name) if name else ""
        return [name, self.programs.get(name, "")]

    def add(self, result, words=()):
        names = [word for word in map(pathlib.PurePosixPath, words) if self.path and word.parent == self.path.parent]
        result = {**result, "program": self.program(names[0].name if names else "")}
        with self.lock:
            self.found[identity(result)] = result
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")

    def done(self, part, command):
        found = self.found.get(identity({**command.about, "part": part.name}))
        return found is not None and not found["budget_spent"]

    def of(self, part):
        """In the order of the part's commands."""
        names = [identity({**command.about, "part": part.name}) for command in part.commands]
        with self.lock:
            return [self.found[name] for name in names if name in self.found]

    def by_kind(self):
        with self.lock:
            found = list(self.found.values())
        return {kind: [result for result in found if result["kind"] == kind] for kind in [*KINDS, CASES]}


def failed(result):
    return result["exit_code"] != 0 and not result["budget_spent"]


def case_names(program, file):
    """The names of a file's test cases, as Catch2 lists them; it exits with their number. None where it hangs."""
    listed = run([*cases_of(program, file), "--list-test-names-only"], 20)
    return None if listed["stopped"] else [line.strip() for line in listed["stdout"].split("\n") if line.strip()]


def case_command(program, file, name):
    """One case in a process of its own. The host waits for each kernel, so that an error names the one that made it."""
    pattern = re.sub(r"([\\,\[\]\"*])", r"\\\1", name)
    return Command([program, pattern], CASE_LIMIT, {"file": file, "case": name}, {"CUDA_LAUNCH_BLOCKING": "1"})


def case_by_case(part, results):
    """The part that finds out which cases of a part's failed files fail: an error that a device does not forget fails all cases
    behind the first. Nothing where no file has failed."""
    if part.kind not in ("smoke", "tests"):
        return []
    programs = {command.about["file"]: command.words[0] for command in part.commands}
    files = [result["file"] for result in results if failed(result)]
    commands = []
    for file in files:
        names = case_names(programs[file], file)
        if names is None:
            break
        commands += [case_command(programs[file], file, name) for name in names]
    return [Part(f"failed files of {part.name}, case by case", CASES, 5, commands, part.jobs, within=120)] if commands else []


class Run:
    """end: time.monotonic() at which nothing may run any more. missing: names of programs that did not link."""

    def __init__(self, end, results, say, missing=(), logs=None, after_command=lambda left_out: None):
        self.end, self.results, self.say, self.missing, self.logs = end, results, say, missing, logs
        self.after_command, self.patience, self.left_out = after_command, Patience(), []
        self.nothing_works = ""

    def command(self, part, number, command, end):
        left = end - time.monotonic()
        limit = self.patience.limit(part.kind, command.limit)
        if left <= 0:
            ended = {"exit_code": None, "stopped": "time limit", "seconds": 0, "stdout": "", "stderr": ""}
        else:
            log = self.logs and self.logs / re.sub(r"[^\w.]+", "_", f"{part.name}_{number + 1}")
            ended = run(command.words, min(limit, left), log, command.environment)
        if stopping.is_set():
            return  # how it has ended says nothing
        spent = ended["stopped"].startswith("time limit") and left < limit
        self.patience.saw(part.kind, ended["stopped"].startswith("time limit") and not spent)
        self.results.add({**command.about, **ended, "part": part.name, "kind": part.kind, "limit": limit, "budget_spent": spent},
                         command.words)
        self.after_command(self.left_out)

    def not_built(self, part):
        """The programs that a part lacks, or nothing."""
        names = {pathlib.PurePosixPath(word).name for command in part.commands for word in command.words}
        return ", ".join(sorted(names & set(self.missing)))

    def why_not(self, part, share):
        """Why a part is left out, of whose commands a share is to be done; or nothing."""
        left = self.end - time.monotonic()
        if lacking := self.not_built(part):
            return f"{lacking} was not built"
        if self.nothing_works:
            return self.nothing_works
        return f"takes {part.seconds * share:.0f} s, {max(left, 0):.0f} s were left" if left < part.seconds * share else ""

    def part(self, part):
        """Runs what is to be done of a part; whether all of it is done."""
        waiting = [(n, command) for n, command in enumerate(part.commands) if not self.results.done(part, command)]
        if not waiting:
            return True
        if why := self.why_not(part, len(waiting) / len(part.commands)):
            self.left_out.append(f"{part.name}: {why}")
            self.say(f"left out: {self.left_out[-1]}")
            return False
        start = time.monotonic()
        end = min(self.end, start + part.within)
        with concurrent.futures.ThreadPoolExecutor(part.jobs) as pool:
            list(pool.map(lambda one: self.command(part, *one, end), waiting))
        self.say(f"{part.name}: {time.monotonic() - start:.0f} s")
        return True

    def all(self, planned):
        """Runs the parts, and failed files case by case; the lines of what was left out."""
        for part in planned:
            if not self.part(part):
                continue
            for cases in case_by_case(part, self.results.of(part)) if time.monotonic() < self.end else []:
                if self.part(cases) and part.kind == "smoke" and all(failed(r) for r in self.results.of(cases)):
                    self.nothing_works = NOTHING_WORKS
        return self.left_out
