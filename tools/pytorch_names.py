#!/usr/bin/env python3
"""Writes the tables of docs/reference/not_here.md from tools/pytorch_names.txt, the list of PyTorch's public names and of what mezzo has for each.

    tools/pytorch_names.py            compare the page with the list, and the list with the headers (needs no PyTorch)
    tools/pytorch_names.py --write    write the page
    tools/pytorch_names.py --update   bring the list up to the installed PyTorch; new names get the answer "?"
A line of the list has names that mezzo has too, or is `name = expression`, `name - reason`, or `name ?`."""
import argparse
import inspect
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST, PAGE = ROOT / "tools/pytorch_names.txt", ROOT / "docs/reference/not_here.md"
FIRST = "## torch\n"  # what stands above it on the page is written by hand


def read():
    """[(module, {name: answer})]; the answer is "", "= expression" or "- reason"."""
    modules = []
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            modules.append((line[1:-1], {}))
        elif answered := re.fullmatch(r"(\w+) ([=?-].*)", line):
            modules[-1][1][answered[1]] = answered[2]
        else:
            modules[-1][1].update({name: "" for name in line.split()})
    return modules


def declared():
    """Names that the public headers declare: functions, classes and their aliases."""
    names = set()
    for path in (ROOT / "include/mezzo").rglob("*"):
        if path.suffix in (".h", ".def"):
            text = re.sub(r"//.*", "", path.read_text())
            names |= set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", text))
            names |= set(re.findall(r"\b(?:struct|class|using|enum class)\s+(?:\[\[[^]]*\]\]\s*)?(\w+)", text))
            names |= set(re.findall(r"\bMEZZO_\w+\(\s*(\w+)", text))
    return names


def problems(modules):
    names = declared()
    for module, answers in modules:
        for name, answer in answers.items():
            if answer == "?":
                yield f"{module}.{name} has no answer"
            elif not answer and name not in names:
                yield f"{module}.{name}: no public header declares {name}"
            for called in re.findall(r"([a-z_]\w*)\(", answer) if answer.startswith("=") else []:
                if called not in names:
                    yield f"{module}.{name}: {answer[2:]} names {called}, which no public header declares"


def page(modules):
    parts = [PAGE.read_text().partition(FIRST)[0].rstrip() + "\n"]
    for module, answers in modules:
        same = [name for name, answer in answers.items() if not answer]
        other, missing = {}, {}
        for name, answer in answers.items():
            if answer.startswith("= "):
                other.setdefault(answer[2:], []).append(name)
            elif answer.startswith("- "):
                missing.setdefault(answer[2:], []).append(name)
        parts.append(f"## {module}\n")
        parts.append(textwrap.fill(f"{len(same)} names are the same: " + ", ".join(f"`{name}`" for name in same) + ".", 110,
                                   break_long_words=False, break_on_hyphens=False) + "\n")
        rows = [(names, f"`{answer}`".replace("|", "\\|")) for answer, names in other.items()] + [(names, reason) for reason, names in missing.items()]
        if rows:
            parts.append("| PyTorch | mezzo |\n| --- | --- |\n" + "".join(f"| {', '.join(f'`{name}`' for name in names)} | {what} |\n" for names, what in rows))
    return "\n".join(parts)


def functions(module):
    return [name for name in sorted(dir(module)) if not name.startswith("_") and callable(getattr(module, name)) and
            not inspect.isclass(getattr(module, name)) and (getattr(module, name).__doc__ or "").strip() and not name.endswith("_")]


def classes(module):
    return [name for name in sorted(dir(module)) if not name.startswith("_") and inspect.isclass(getattr(module, name)) and
            getattr(module, name).__module__.startswith(module.__name__)]


def of_torch():
    import torch
    import torch.nn.utils.parametrizations
    return [("torch", functions(torch)), ("torch.nn", classes(torch.nn)), ("torch.nn.functional", functions(torch.nn.functional)),
            ("torch.optim", classes(torch.optim)), ("torch.optim.lr_scheduler", classes(torch.optim.lr_scheduler)),
            ("torch.utils.data", [name for name in torch.utils.data.__all__ if name[0] != "_"]), ("torch.amp", list(torch.amp.__all__)),
            ("torch.nn.init", sorted(name for name in dir(torch.nn.init) if name.endswith("_") and name[0] != "_")),
            ("torch.nn.utils", sorted(name for name in dir(torch.nn.utils) if callable(getattr(torch.nn.utils, name)) and name[0] != "_")),
            ("torch.nn.utils.parametrizations", functions(torch.nn.utils.parametrizations))]


def update():
    known, names = dict(read()) if LIST.exists() else {}, declared()
    write_list([(module, {name: known.get(module, {}).get(name, "" if name in names else "?") for name in public}) for module, public in of_torch()])


def write_list(modules):
    parts = []
    for module, answers in modules:
        same = " ".join(name for name, answer in answers.items() if not answer)
        parts.append(f"[{module}]\n" + textwrap.fill(same, 110, break_on_hyphens=False) + "\n")
        parts.append("".join(f"{name} {answer}\n" for name, answer in answers.items() if answer))
    LIST.write_text("".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    if args.update:
        update()
    modules = read()
    found = list(problems(modules))
    if args.write:
        PAGE.write_text(page(modules))
    elif PAGE.read_text() != page(modules):
        found.append(f"{PAGE.relative_to(ROOT)} is not what tools/pytorch_names.py --write writes")
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
