"""Writes the Markdown from which the site is made: docs/ as it stands, the README as its first page, CONTRIBUTING, a
page per public header, and a page for every other file of the tree that a page links to."""
import os
import pathlib
import posixpath
import re
import shutil

from headers import header_page, header_index

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTRIBUTING = ".github/CONTRIBUTING.md"
# The search shows pages for users before those about the inside. Other pages have 1.
BOOST = {"docs/guide/mixed_precision": 8, "docs/guide/": 4, "docs/start/": 4, "docs/reference/": 3, "include/": 2}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".def": "cpp", ".py": "python", ".build": "meson", ".sh": "sh"}


def outside_of_code(text, replace):
    """replace(part) for the parts of a Markdown text that are not blocks of code."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else replace(part) for part in parts)


def page_of(target):
    """The page that shows a file or folder of the tree, as a path in the site's folder of pages."""
    if target == "README.md":
        return "index.md"
    if target == CONTRIBUTING:
        return "project/contributing.md"
    if target.startswith("docs/") and target.endswith((".md", ".svg")):
        return target.removeprefix("docs/")
    if target.startswith("include/mezzo/"):
        return f"api/{target.removeprefix('include/mezzo/')}.md"
    return f"source/{target.lstrip('.')}" + ("" if target.endswith(".md") else ".md")


def with_links_to_pages(text, source, wanted):
    """Links of `source` (a path in the tree) lead to the pages that show the files; these are added to `wanted`."""
    here = posixpath.dirname(page_of(source)) or "."

    def place(match):
        target, hash_mark, anchor = match.group().partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            return match.group()  # MkDocs reports it
        if not path.endswith(".svg"):
            wanted.add(path)
        return posixpath.relpath(page_of(path), here) + hash_mark + anchor

    return outside_of_code(text, lambda part: LINK.sub(place, part))


def file_page(path):
    """A page that shows a file, or lists a folder with links to its files."""
    full = ROOT / path
    if full.is_dir():
        return f"# {path}\n\n" + "".join(f"- [{f.name}]({os.path.relpath(f, full.parent)})\n" for f in sorted(full.iterdir()))
    text = full.read_text(encoding="utf-8")
    return text if path.endswith(".md") else f"# {path}\n\n````{LANGUAGES.get(full.suffix, 'text')}\n{text}````\n"


def write_page(folder, source, text, wanted):
    page = folder / page_of(source)
    page.parent.mkdir(parents=True, exist_ok=True)
    boost = next((value for begin, value in BOOST.items() if source.startswith(begin)), 1)
    head = f"---\nsearch:\n  boost: {boost}\n---\n\n"
    page.write_text(head + with_links_to_pages(text, source, wanted), encoding="utf-8")


def write_pages(folder):
    """Writes all pages into an empty folder."""
    headers = sorted(path for path in (ROOT / "include/mezzo").rglob("*") if path.is_file())
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", CONTRIBUTING)}
    sources |= {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*/*.md")}
    sources |= {str(header.relative_to(ROOT)): header_page(header) for header in headers}
    sources["include/mezzo/index"] = header_index(headers)
    wanted = set()
    for source, text in sources.items():
        write_page(folder, source, text, wanted)
    while new := wanted - set(sources):
        for source in new:
            sources[source] = file_page(source)
            write_page(folder, source, sources[source], wanted)
    for picture in ROOT.glob("docs/*/*.svg"):
        shutil.copy(picture, folder / picture.parent.name)
    shutil.copy(pathlib.Path(__file__).with_name("site.css"), folder)
