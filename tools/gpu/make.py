"""Carries out a plan of tools/gpu/build.py: finds the headers of every source, compiles what has changed, links. Each command has a
time limit, and what was compiled before the time was up is there for the next run."""
import concurrent.futures
import hashlib
import json
import pathlib
import re
import time

from gpu import run
from gpu.build import ROOT

COMPILE_LIMIT = 400  # seconds
LINK_LIMIT = 120


def source_of(command):
    return command[command.index("-c") + 1] if "-c" in command else ""


def preprocessing(command):
    """The command that names all files which a compile command reads."""
    at = command.index("-c")
    return [*command[:at], "-M", source_of(command)]


def slow_first(command):
    """Kernels, those of attention ahead of all, then by the size of the source."""
    source = ROOT / source_of(command)
    return not source.name.endswith(".cu"), "attention" not in source.name, -source.stat().st_size


class Make:
    """end: time.monotonic() at which nothing may run any more."""

    def __init__(self, plan, end=float("inf")):
        self.plan, self.end, self.patience = plan, end, run.Patience()
        self.digests, self.reads = {}, {}  # of files; the files that each source reads, or nothing where that is not known
        self.compilers = None

    def limit(self, kind, seconds):
        return min(self.patience.limit(kind, seconds), self.end - time.monotonic())

    def try_command(self, command, kind, seconds):
        """Runs a command; what went wrong, or nothing, and what it printed."""
        limit = self.limit(kind, seconds)
        if limit <= 0:
            return "the time was up\n", ""
        ended = run.run(command, limit)
        self.patience.saw(kind, ended["stopped"] == "time limit" and time.monotonic() < self.end)
        why = f"{ended['stopped']}, {limit:.0f} s\n" if ended["stopped"] else ""
        error = f"{' '.join(command)}\n{why}{run.ends(ended['stderr'], 6000)}" if ended["exit_code"] != 0 else ""
        return error, ended["stdout"]

    def scan(self, command):
        """Finds the files that a source reads; what went wrong."""
        error, printed = self.try_command(preprocessing(command), "preprocess", 60)
        words = printed.replace("\\\n", " ").partition(":")[2].split()
        self.reads[command[-1]] = sorted({source_of(command), *words}) if not error else []
        return error

    def headers(self):
        """Preprocesses every source by its own command. The lines say what the sources need and this machine lacks."""
        with concurrent.futures.ThreadPoolExecutor(self.plan.args.jobs) as pool:
            errors = list(pool.map(self.scan, self.plan.compiles))
        found = {}
        for command, error in zip(self.plan.compiles, errors):
            lines = error.strip().split("\n")[1:]
            if error:
                what = next((m.group(1) for m in (re.search(r"fatal error: (.*?): No such file", line) for line in lines) if m), "")
                found.setdefault(f"header {what}" if what else "\n".join(lines[:5]), []).append(source_of(command))
        return [f"{what}, for {sources[0]}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
                for what, sources in found.items()]

    def write_needs(self, path):
        """What each source reads, as JSON."""
        path.write_text(json.dumps({source_of(c): self.reads.get(c[-1], []) for c in self.plan.compiles}, indent=1), encoding="utf-8")

    def digest(self, path):
        """Of a file's content; not of its time, which changes when a tree is copied."""
        if path not in self.digests:
            file = ROOT / path
            self.digests[path] = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
        return self.digests[path]

    def stamp(self, command, files):
        """Of all that the result of a command depends on; nothing where that is not known."""
        if not files:
            return ""
        if self.compilers is None:
            self.compilers = [run.output(*self.plan.cxx, "--version"), run.output(self.plan.nvcc, "--version")]
        text = json.dumps([self.compilers, command, [[f, self.digest(f)] for f in files]])
        return hashlib.sha256(text.encode()).hexdigest()

    def make(self, command, kind, limit, stamp):
        """(seconds, what went wrong). Does nothing where the file is there and was made of the same. A file that is there is whole:
        it gets its name in the end."""
        start, target = time.monotonic(), pathlib.Path(command[-1])
        kept = pathlib.Path(f"{target}.stamp")
        if stamp and target.exists() and kept.exists() and kept.read_text(encoding="utf-8") == stamp:
            return 0.0, ""
        target.unlink(missing_ok=True)  # one of an earlier run would stand for this one
        kept.unlink(missing_ok=True)
        part = f"{target}.part" + target.suffix
        error, _ = self.try_command([*command[:-1], part], kind, limit)
        if not error and not pathlib.Path(part).exists():
            error = f"{' '.join(command)}\nhas made no file\n"
        if not error:
            pathlib.Path(part).replace(target)
            kept.write_text(stamp, encoding="utf-8")
        self.digests.pop(str(target), None)
        return time.monotonic() - start, error

    def compile(self, command):
        return self.make(command, "compile", COMPILE_LIMIT, self.stamp(command, self.reads.get(command[-1])))

    def link(self, command):
        objects = [word for word in command if word.endswith((".o", ".a"))]
        return self.make(command, "link", LINK_LIMIT, self.stamp(command, objects))

    def run(self):
        """Compiles everything in parallel, the slow kernels first, then links what has all its objects. Gives the seconds it took,
        those of each source, and what went wrong with which program."""
        start, broken, seconds = time.monotonic(), {}, {}
        with concurrent.futures.ThreadPoolExecutor(self.plan.args.jobs) as pool:
            compiles = sorted(self.plan.compiles, key=slow_first)
            for command, (took, error) in zip(compiles, pool.map(self.compile, compiles)):
                seconds[source_of(command)] = max(took, seconds.get(source_of(command), 0))
                if error:
                    broken[command[-1]] = error
            failed = {link[-1]: "\n".join(broken[o] for o in link if o in broken) for link in self.plan.links}
            for program in (pathlib.Path(p) for p, error in failed.items() if error):
                program.unlink(missing_ok=True)
            whole = [link for link in self.plan.links if not failed[link[-1]]]
            for link, (_, error) in zip(whole, pool.map(self.link, whole)):
                failed[link[-1]] = error
        return time.monotonic() - start, seconds, {pathlib.Path(p).name: error for p, error in failed.items() if error}
