"""Pages of the public headers: what each declares, with links to the lines, and its text, whose comments are the reference."""
import re

# In the text of a header without its comments: classes, and functions and aliases of a namespace. Members stand below their class.
CLASS = re.compile(r"^(?:template <[^;{]*> )?(?:class|struct|enum class) (\w+)\b(?![^;{]*;)")
ALIAS = re.compile(r"^using (\w+) =")
FUNCTION = re.compile(r"^(?!return\b|else\b|namespace\b|using\b|friend\b)[\w\[\]:<>,&*~ .]*?\b(\w+|operator\W{1,3})(?:\(| MEZZO_OF_)")
NOT_NAMES = {"static_assert", "alignas", "operator", "if", "for", "while", "switch", "requires"}


def without_comments(line):
    return re.sub(r'//.*|"(?:\\.|[^"\\])*"', "", line)


def without_attributes(code):
    """`class X {` of `class [[nodiscard]] X {`."""
    return re.sub(r"\[\[.*?\]\] ?|alignas\([^()]*\) ?|__attribute__\(\(.*?\)\) ?", "", code)


def declared(text):
    """(name, number of its line) of what a header declares in its namespaces, in order; `detail` is nobody's business."""
    names, scopes = [], []
    for number, line in enumerate(text.split("\n"), 1):
        code = without_attributes(without_comments(line))
        if line.startswith("#"):
            continue
        if all(scope == "namespace" for scope in scopes):
            for pattern in (CLASS, ALIAS, FUNCTION):
                if match := pattern.match(code):
                    name = match.group(1).strip()
                    if name not in NOT_NAMES and not name.startswith("MEZZO_"):
                        names.append((name, number))
                    break
        for token in re.findall(r"namespace[\w: ]*\{|extern \{|[{}]", code):
            if token == "}":
                scopes = scopes[:-1]
            else:
                scopes.append("namespace" if token.startswith("namespace") and "detail" not in token else "{")
    return names


def about(text):
    """The comment with which a header begins, as one line."""
    first = re.match(r"(?://[^\n]*\n)+", text)
    return " ".join(line.removeprefix("//").strip() for line in first.group().splitlines()) if first else ""


def first_sentence(text):
    return re.match(r".*?[.:](?=\s|$)|.*", text).group().rstrip(".:")


def name_of(header):
    """The name by which a program includes a header, without mezzo/: tensor.h, data/loader.h."""
    return header.as_posix().rpartition("include/mezzo/")[2]


def escaped(text):
    return re.sub(r"([*_|\[\]])", r"\\\1", text.replace("<", "&lt;"))


def unique(names):
    """The first line of each name: overloads follow one another."""
    first = {}
    for name, number in names:
        first.setdefault(name, number)
    return first.items()


def header_page(header):
    text = header.read_text(encoding="utf-8")
    links = [f'<a href="#__codelineno-0-{number}"><code>{name}</code></a>' for name, number in unique(declared(text))]
    return (f"# mezzo/{name_of(header)}\n\n{escaped(about(text))}\n\n" + (f"Declares {', '.join(links)}.\n\n" if links else "") +
            f'````cpp linenums="1"\n{text}````\n')


def header_index(headers):
    rows, names = [], []
    for header in headers:
        text = header.read_text(encoding="utf-8")
        name = name_of(header)
        rows.append(f"| [{name}]({name}) | {escaped(first_sentence(about(text)))} |")
        names += [(declaration, f'<a href="{name}.html#__codelineno-0-{number}"><code>{declaration}</code></a>')
                  for declaration, number in unique(declared(text))]
    letters = {}
    for name, link in sorted(names, key=lambda entry: (entry[0].lower(), entry)):
        letters.setdefault(name[0].upper() if name[0].isalpha() else "#", []).append(link)
    listed = "\n\n".join(f"**{letter}** {' '.join(links)}" for letter, links in letters.items())
    return ("# The headers\n\nThe comment at each declaration says shapes, dtypes, units and errors. One header has core's, one all:\n\n"
            "```cpp\n#include <mezzo/mezzo.h>\n#include <mezzo/everything.h>  // and those of the components\n```\n\n| header | what it has |\n| --- | --- |\n" + "\n".join(rows) +
            f"\n\n## Names\n\n{listed}\n")
