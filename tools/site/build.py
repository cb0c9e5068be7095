#!/usr/bin/env python3
"""Builds the documentation's site into a folder, which must be empty or not there, or hold an earlier site.

    python3 -m venv venv && venv/bin/pip install mkdocs-material
    venv/bin/python tools/site/build.py OUT

Warnings are errors: links that lead nowhere, pages that do not exist. Afterwards every page is searched for what it would load from
another host. Exit code 0 only if there is nothing to report."""
import argparse
import html.parser
import os
import pathlib
import subprocess
import sys
import tempfile

from pages import write_pages

HERE = pathlib.Path(__file__).resolve().parent
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
MARK = ".mezzo-site"  # in folders that this program may empty


class Assets(html.parser.HTMLParser):
    """What a page loads by itself, as opposed to links that somebody follows."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "link" and attributes.get("rel") == "canonical":
            return
        self.found.append(attributes.get(LOADED.get(tag, ""), "") or "")


def foreign_assets(out):
    for page in sorted(out.rglob("*.html")):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        yield from (f"{page.relative_to(out)}: {asset}" for asset in assets.found if asset.startswith(("http:", "https:", "//")))
    for style in sorted(out.rglob("*.css")):
        if "url(http" in style.read_text(encoding="utf-8"):
            yield f"{style.relative_to(out)}: a url() of another host"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=pathlib.Path, metavar="OUT")
    out = options.parse_args().out.resolve()
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        sys.exit(f"site: {out} is not empty, and no site that this program has built")
    with tempfile.TemporaryDirectory() as pages:
        write_pages(pathlib.Path(pages))
        code = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", HERE / "mkdocs.yml",
                               "--site-dir", out], env={**os.environ, "MEZZO_SITE_PAGES": pages, "NO_MKDOCS_2_WARNING": "1"}).returncode
    if code != 0:
        sys.exit("site: MkDocs did not build it (venv/bin/pip install mkdocs-material, if it is not there)")
    (out / MARK).touch()
    foreign = list(foreign_assets(out))
    if foreign:
        sys.exit("site: pages load from other hosts:\n" + "\n".join(foreign))
    print(f"site: {sum(1 for _ in out.rglob('*.html'))} pages in {out}")


main()
