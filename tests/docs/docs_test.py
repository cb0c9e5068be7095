#!/usr/bin/env python3
"""Checks the pages in docs/, the README and CONTRIBUTING: every link leads to a file and a heading that exist, every
C++ block is code that the suite compiles and runs, every block that a case marks for a page is on one, every quote is
in a file that its page names, every source that a page names exists, every page in docs/ shows code on its first
screen and links to pages by their titles, and the site's navigation has every page under the name of its folder.

    docs_test.py ROOT          checks that tree
    docs_test.py ROOT --check  checks that damaged pages are found"""
import pathlib
import re
import sys
import textwrap

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FIRST_SCREEN = 1800  # characters, the table of a wide page included
PROGRAMS = re.compile(r"foreach page : \[(.*?)\]", re.S)  # in tests/meson.build: the pages whose program is built and run


def slug(heading):
    """The anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def anchors(text):
    text = FENCE.sub("", text)
    return {slug(heading) for heading in re.findall(r"^#+ +(.*)$", text, re.M)} | set(re.findall(r'<a id="([^"]+)">', text))


def link_problems(root, name, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        file = (root / name).parent / path if path else root / name
        if not file.exists():
            yield f"{name}: there is no {target}"
        elif anchor and anchor not in anchors(text if not path else file.read_text(encoding="utf-8")):
            yield f"{name}: there is no heading #{anchor} in {path or name}"


def blocks_of(source):
    blocks = re.findall(r"^ *// begin\n(.*?)^ *// end$", source.read_text(encoding="utf-8"), re.M | re.S)
    return [textwrap.dedent(block) for block in blocks]


def compiled_blocks(root):
    sources = [*root.glob("tests/**/*_test.cpp"), *root.glob("samples/gallery/*.cpp")]
    return {block for source in sources for block in blocks_of(source)}


def code_problems(name, text, compiled, programs):
    for language, block in FENCE.findall(text):
        if language != "cpp" or block in compiled or ("int main(" in block and f"'{name}'" in programs):
            continue
        yield f"{name}: a block that no test compiles:\n{textwrap.indent(block, '    ')}"


def block_problems(root, texts):
    """Blocks that the cases for the pages and the gallery mark, and no page shows."""
    shown = {block for text in texts.values() for _, block in FENCE.findall(text)}
    for source in [*sorted(root.glob("tests/docs/*_test.cpp")), *sorted(root.glob("samples/gallery/*.cpp"))]:
        for block in blocks_of(source):
            if block not in shown:
                yield f"{source.relative_to(root)}: a block that no page shows:\n{textwrap.indent(block, '    ')}"


def quote_problems(root, name, text):
    """Blocks marked as C are quotes: each line stands in a file that the page names."""
    files = [root / path for path in set(re.findall(r"`([\w./]+\.\w+)`", text)) if (root / path).is_file()]
    lines = {line.strip() for file in files for line in file.read_text(encoding="utf-8").split("\n")}
    for language, block in FENCE.findall(text):
        if language == "c":
            yield from (f"{name}: no file that it names has the line {line}" for line in block.strip().split("\n") if line.strip() not in lines)


def path_problems(root, name, text):
    """Sources that a page names by their path from the root."""
    for path in re.findall(r"`((?:src|include|cuda|tests|tools|samples)/[\w./-]+\.\w+)`", FENCE.sub("", text)):
        if not (root / path).is_file():
            yield f"{name}: there is no file {path}"


def first_screen_problems(name, text):
    first = FENCE.search(text)
    if first is None or first.start() > FIRST_SCREEN:
        yield f"{name}: no code on the first screen"


def navigation_problems(root, pages):
    text = (root / "tools/site/mkdocs.yml").read_text(encoding="utf-8")
    sections = re.findall(r"^  - (\w+):\n((?: {6}- .*\n)+)", text, re.M)
    listed = {(name.lower(), page) for name, lines in sections for page in re.findall(r"- (\S+)$", lines, re.M)}
    for name in pages:
        folder, _, page = name.removeprefix("docs/").rpartition("/")
        if (folder, f"{folder}/{page}") not in listed:
            yield f"{name}: tools/site/mkdocs.yml has no {folder}/{page} below {folder.capitalize()}"


def title_problems(name, text):
    for words in re.findall(r"\[`?([\w/]+\.md)`?\]\(", FENCE.sub("", text)):
        yield f"{name}: the text of a link is {words}, not the page's title"


def problems(root, changed=None):
    """All that is wrong; `changed` are texts in place of those of the tree."""
    pages = sorted(str(page.relative_to(root)) for page in root.glob("docs/**/*.md"))
    names = ["README.md", *pages, ".github/CONTRIBUTING.md"]
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names} | (changed or {})
    programs = PROGRAMS.search((root / "tests/meson.build").read_text(encoding="utf-8")).group(1)
    compiled = compiled_blocks(root)
    yield from navigation_problems(root, pages)
    yield from block_problems(root, texts)
    for name, text in texts.items():
        yield from link_problems(root, name, text)
        yield from code_problems(name, text, compiled, programs)
        yield from quote_problems(root, name, text)
        yield from path_problems(root, name, text)
        if name.startswith("docs/"):
            yield from first_screen_problems(name, text)
            yield from title_problems(name, text)


def check(root):
    """Each damage must be found, and found alone."""
    page = "docs/guide/mixed_precision.md"
    text = (root / page).read_text(encoding="utf-8")
    last_block = [f"```{language}\n{block}```" for language, block in FENCE.findall(text) if language == "cpp"][-1]
    damages = {"no none.md": text + "\n[a](none.md)\n", "no heading #none in numerics.md": text + "\n[a](numerics.md#none)\n",
               "no heading #nowhere in docs/guide/mixed_precision.md": text + "\n[a](#nowhere)\n",
               "not the page's title": text + "\n[numerics.md](numerics.md)\n",
               "no file src/core/none.h": text + "\n`src/core/none.h`\n",
               "no page shows": text.replace(last_block, ""),
               "no test compiles": text + "\n```cpp\nint i;\n```\n",
               "has the line int i;": text + "\n```c\nint i;\n```\n",
               "no code on the first screen": text.replace("\n", "\n" + 2000 * " ", 1)}
    for words, damaged in damages.items():
        found = list(problems(root, {page: damaged}))
        if len(found) != 1 or words not in found[0]:
            sys.exit(f"a damaged page, {words!r}: {found}")
    print(f"{len(damages)} damages are found")


def main():
    root = pathlib.Path(sys.argv[1])
    if "--check" in sys.argv:
        return check(root)
    found = list(problems(root))
    if found:
        sys.exit("\n".join(found))
    print("links, blocks and navigation are right")


main()
