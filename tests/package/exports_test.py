#!/usr/bin/env python3
"""What a shared library exports is what include/mezzo declares, and under the version MEZZO_INTERNAL what MEZZO_INTERNAL marks in src:
every exported symbol belongs to such a name, and every function of the public headers that a library defines is exported. Nothing is defined in a source file and inline as well: the linker would take the
former for both. Inline variables that two libraries have are exported, so that there is one of each. Usage: exports_test.py SOURCE_ROOT SHARED STATIC [SHARED STATIC...] -- COMPILER..."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = sys.argv[1]
LIBRARIES = list(zip(*[iter(sys.argv[2:sys.argv.index("--")])] * 2))
COMPILER = sys.argv[sys.argv.index("--") + 1:]
HEADERS = pathlib.Path(ROOT, "include/mezzo").resolve()
# What stands between _Z and the name: type information, virtual tables, thunks, guards and wrappers, static objects of a function.
PREFIX = re.compile(r"_Z(?:T[ISVTHWC]|Tc?[hv]n?\d+_(?:n?\d+_)?|Tch?v?.*?(?=N5mezzo)|GV|GR|Z)*")
OPERATOR = "operator"


def preprocessed():
    """The lines of the public headers' own text, with macros replaced. fmt.h has templates only, and needs fmt."""
    includes = "".join(f'#include "{h.relative_to(HEADERS.parent)}"\n' for h in sorted(HEADERS.rglob("*.h")) if h.name != "fmt.h")
    text = subprocess.run(COMPILER + ["-std=c++20", "-E", "-I" + str(HEADERS.parent), "-x", "c++", "-"], input=includes, text=True,
                          capture_output=True, check=True).stdout
    own = False
    for line in text.split("\n"):
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            own = "/include/mezzo/" in marker.group(1)
        elif own and not line.startswith("#"):
            yield line


class Declared:
    """The names that the headers declare: by namespace those of its functions, variables and types, and the types without definition."""

    def __init__(self, text):
        self.names = collections.defaultdict(set)
        self.opaque, self.defined = set(), set()
        text = re.sub(r"\[\[.*?\]\]", "", text)
        text = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'', "0", text)
        self.tokens = re.findall(r"\w+|::|[^\w\s]", text)
        self.position = 0
        self.scope(())
        self.opaque -= self.defined

    def scope(self, path, namespace=True):
        """Reads statements up to the end of the scope, whose names they declare."""
        while self.position < len(self.tokens) and self.tokens[self.position] != "}":
            self.statement(path, namespace)
        self.position += 1

    def statement(self, path, namespace):
        """One declaration: up to its semicolon, or the end of its body."""
        head, depth = [], 0  # its tokens outside of parentheses
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            if depth == 0 and token == "}":
                break
            self.position += 1
            if depth == 0 and token == "{":
                self.body(path, head)
                if head[:1] == ["namespace"] or (self.is_function(head) and self.tokens[self.position:self.position + 1] != [";"]):
                    break
                continue
            if depth == 0 and token == ";":
                break
            if depth == 0:
                head.append(token)
            depth += (token == "(") - (token == ")")
        if namespace or self.type_name(head):
            self.declare(path, head, namespace)

    @staticmethod
    def is_function(head):
        return "(" in head and not ({"=", "enum"} & set(head))

    @staticmethod
    def without_template(head):
        """The declaration behind template <...>."""
        while head[:1] == ["template"] and head[1:2] == ["<"]:
            depth = 0
            for end, token in enumerate(head):
                depth += (token == "<") - (token == ">")
                if end > 0 and depth == 0:
                    break
            head = head[end + 1:]
        return head

    def type_name(self, head):
        head = self.without_template(head)
        if not head or head[0] not in ("class", "struct", "union", "enum"):
            return None
        rest = [t for t in head[1:] if t not in ("class", "struct", "final", "alignas", "(", ")")]
        return rest[0] if rest and re.match(r"[A-Za-z_]", rest[0]) else None

    def body(self, path, head):
        """What stands between braces; the first one has been read."""
        if head[:1] == ["namespace"] or head[:2] == ["inline", "namespace"]:
            inner = [t for t in head if t not in ("inline", "namespace", "::")]
            return self.scope(path + tuple(inner))
        name = self.type_name(head)
        if name and not self.is_function(head) and self.without_template(head)[0] != "enum":
            self.defined.add(path + (name,))
            return self.scope(path + (name,), namespace=False)
        depth = 1
        while depth > 0:
            depth += (self.tokens[self.position] == "{") - (self.tokens[self.position] == "}")
            self.position += 1
        return None

    def declare(self, path, head, namespace):
        if "namespace" in head[:2]:
            return
        name = self.type_name(head)
        if name and (len(head) == 2 or (path + (name,)) in self.defined):
            self.names[path].add(name)
            if len(head) == 2:
                self.opaque.add(path + (name,))
            return
        if not namespace:
            return
        if "operator" in head:
            self.names[path].add(OPERATOR)
        for token, following in zip(head, head[1:] + [";"]):
            if re.match(r"[A-Za-z_]\w*$", token) and following in ("(", "=", ";", "[", "<", ","):
                self.names[path].add(token)
        if name:
            self.names[path].add(name)


def path_of(symbol):
    """The names of a mangled symbol, from the outermost on, as far as no template arguments come: ("mezzo", "nn", "Linear"). An operator,
    constructor or destructor ends them. None for what is in no namespace."""
    rest = PREFIX.sub("", symbol, count=1)
    nested = re.match(r"N[rVK]*[RO]?", rest)
    if not symbol.startswith("_Z") or not nested:
        return None
    rest, names = rest[nested.end():], []
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length.group())
        names.append(rest[length.end():end])
        rest = rest[end:]
    return tuple(names) if re.match(r"[ICDEBL]", rest) else (*names, OPERATOR)


def fault(symbol, declared):
    """Why a symbol must not be exported, or None."""
    path = path_of(symbol)
    if not path or path[0] != "mezzo":
        return "not of namespace mezzo"
    hidden = next((path[:n] for n in range(2, len(path) + 1) if path[:n] in declared.opaque), None)
    if hidden:
        return f"{'::'.join(hidden)} is declared only"
    for n in range(1, len(path)):
        if path[n] in declared.names.get(path[:n], ()):
            return None
        if path[:n + 1] not in declared.names:
            return f"no public header declares {'::'.join(path[:n + 1])}"
    return f"no public header declares {'::'.join(path)}"


def symbols(kinds, *command):
    """The defined symbols of these kinds, by the version that they are exported with."""
    text = subprocess.run(["nm", "--defined-only", "--extern-only", *command], capture_output=True, text=True, check=True).stdout
    found = collections.defaultdict(set)
    for kind, name, version in re.findall(r"^[0-9a-f]+ (\w) ([^\s@]+)(?:@@?(\S+))?$", text, re.M):
        if kind in kinds:
            found[version].add(name)
    return found


def marked():
    """The functions, classes and variables that MEZZO_INTERNAL marks."""
    text = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path(ROOT, "src").rglob("*.h"))
    classes = re.findall(r"(?:class|struct) MEZZO_INTERNAL (\w+)", text)
    others = re.findall(r"^ *(?:template <[^>]*> |\[\[noreturn\]\] )?MEZZO_INTERNAL [^({;=]*?(\w+)(?:\(|\{| = )", text, re.M)
    return set(classes) | set(others)


def readable(names):
    names = sorted(names)
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(names, shown))


def check_library(shared, static, declared, internal):
    """Prints the faults of a library. Returns how many there are, and the internal names that it exports."""
    versions = symbols("TDBRVWGSui", "-D", shared)
    own = {s for v, names in versions.items() if v.startswith("MEZZO_INTERNAL") for s in names}
    exported = {s for v, names in versions.items() if not v.startswith("MEZZO_INTERNAL") for s in names}
    faults = {s: fault(s, declared) for s in exported}
    faults |= {s: "no MEZZO_INTERNAL marks it" for s in own if not internal & set(path_of(s) or ())}
    faults = {s: text for s, text in faults.items() if text}
    # Functions and variables that are defined in a source file; inline ones and templates are the caller's as well.
    defined, inline = symbols("TDBR", static)[""], symbols("WV", static)[""]
    missing = {s for s in defined - exported - own if not fault(s, declared)}
    text = readable(set(faults) | missing | (defined & inline))
    for symbol in sorted(faults, key=text.get):
        print(f"exported: {text[symbol]}: {faults[symbol]}")
    for symbol in sorted(missing, key=text.get):
        print(f"not exported: {text[symbol]}")
    for symbol in sorted(defined & inline, key=text.get):
        print(f"defined in a source file, and inline in a header: {text[symbol]}")
    wrong = len(faults) + len(missing) + len(defined & inline)
    print(f"{pathlib.Path(shared).name}: {len(exported)} public symbols, {len(own)} internal ones, {wrong} wrong")
    return wrong + (len(exported) < 20), set(re.findall(r"\w+", " ".join(readable(own).values())))


def doubled():
    """The inline variables that several libraries have, and none exports."""
    copies = collections.Counter(s for _, static in LIBRARIES for s in symbols("u", static)[""] if (path_of(s) or "-")[0] == "mezzo")
    exported = {s for shared, _ in LIBRARIES for names in symbols("VuB", "-D", shared).values() for s in names}
    return {s for s, count in copies.items() if count > 1} - exported


def main():
    declared, internal = Declared("\n".join(preprocessed())), marked()
    results = [check_library(*library, declared, internal) for library in LIBRARIES]
    unused = internal - set.union(*(names for _, names in results))
    for name in sorted(unused):
        print(f"marked MEZZO_INTERNAL, and not exported: {name}")
    for name in readable(twice := doubled()).values():
        print(f"inline in a header, and not exported, so that two libraries have their own: {name}")
    known = sum(map(len, declared.names.values()))
    sys.exit(1 if unused or twice or any(wrong for wrong, _ in results) or known < 500 or len(internal) < 50 else 0)


main()
