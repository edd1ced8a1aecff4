"""Writes the static site: the documents of the project as pages, and the reference of the Python package.

build.py FOLDER: pages that tools/site.sh has written there before (live.html, families.html, accuracy.html) are linked.
Fails if a link leads nowhere.
"""

import html
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pdoc
import pdoc.render
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
# Beside the documents: title, page. Those that were not made are left out.
PAGES = {
    "Overview": "index.html",
    "Simulate here": "live.html",
    "Schedules": "families.html",
    "Accuracy": "accuracy.html",
    "Guide": "docs/guide.html",
    "Formats": "docs/formats.html",
    "Python": "python/sluice.html",
    "Results": "docs/results.html",
    "Architecture": "docs/architecture.html",
    "All pages": "pages.html",
}
MADE_BEFORE = {"live.html", "families.html", "accuracy.html"}


def page_of(document):
    """Returns the path of the page of a document, relative to the site."""
    return Path("index.html") if document == Path("README.md") else document.with_suffix(".html")


def anchor_of(folder):
    return str(folder).replace("/", "-")


def heading_of(tokens):
    """Returns the first heading of a document."""
    return next(tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open")


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.documents = sorted(
            Path(name)
            for name in subprocess.run(
                ["git", "ls-files", "--", "*.md", ":!tests"], cwd=ROOT, check=True, capture_output=True, text=True
            ).stdout.split()
        )
        self.anchors = {}  # of each document
        self.broken = []
        self.markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).use(anchors_plugin, max_level=6)
        self.markdown.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
        self.markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")

    def navigation(self, page):
        """Returns the links of all pages, of which `page` is the one that is shown."""
        out = ""
        for title, target in PAGES.items():
            if target in MADE_BEFORE and not (self.folder / target).exists():
                continue
            here = ' aria-current="page"' if Path(target) == page else ""
            out += f'<a href="{relative(Path(target), page)}"{here}>{title}</a>\n'
        return out

    def write(self, document):
        tokens = self.markdown.parse((ROOT / document).read_text(encoding="utf-8"))
        for token in tokens:
            for child in token.children or ():
                for name in ("href", "src"):
                    if name in child.attrs:
                        child.attrs[name] = self.target(document, child.attrs[name])
        body = self.markdown.renderer.render(tokens, self.markdown.options, {})
        self.write_page(page_of(document), heading_of(tokens), body)

    def write_page(self, page, title, body):
        values = {
            "policy": POLICY,
            "title": html.escape(title.replace("`", "")),
            "style": style(),
            "navigation": self.navigation(page),
            "body": body,
        }
        text = (FOLDER / "page.html").read_text(encoding="utf-8")
        out = self.folder / page
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text), encoding="utf-8")

    def write_list(self):
        """Writes the page of all documents, by folder."""
        body = "<h1>All pages</h1>\n"
        for folder in sorted({document.parent for document in self.documents}):
            body += f'<h2 id="{anchor_of(folder)}">{"The project" if folder == Path(".") else folder}</h2>\n<ul>\n'
            for document in self.documents:
                if document.parent == folder:
                    title = heading_of(self.markdown.parse((ROOT / document).read_text(encoding="utf-8")))
                    body += f'<li><a href="{page_of(document)}">{html.escape(title.replace("`", ""))}</a></li>\n'
            body += "</ul>\n"
        self.write_page(Path("pages.html"), "All pages", body)

    def target(self, document, link):
        """Returns where a link of a document leads on the site. Files of the project are copied, folders not linked."""
        if re.match(r"[a-z]+:", link):
            return link
        path, _, anchor = link.partition("#")
        to = Path(os.path.normpath(document.parent / path)) if path else document
        if to in self.documents:
            if anchor and anchor not in self.anchors_of(to):
                self.broken.append(f"{document}: {link}: no such heading")
            return str(relative(page_of(to), page_of(document))) + ("#" + anchor if anchor else "")
        if not (ROOT / to).exists():
            self.broken.append(f"{document}: {link}: no such file")
        elif (ROOT / to).is_file():
            copy = self.folder / to
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / to).read_bytes())
            return str(relative(to, page_of(document)))
        else:
            if any(each.parent == to for each in self.documents):
                return f"{relative(Path('pages.html'), page_of(document))}#{anchor_of(to)}"
        return ""

    def anchors_of(self, document):
        if document not in self.anchors:
            tokens = self.markdown.parse((ROOT / document).read_text(encoding="utf-8"))
            self.anchors[document] = {token.attrs.get("id") for token in tokens if token.type == "heading_open"}
        return self.anchors[document]

    def write_python(self):
        pdoc.render.configure(
            docformat="google", template_directory=FOLDER / "python", search=False, show_source=False, footer_text="Sluice"
        )
        pdoc.render.env.globals.update(policy=POLICY)
        modules = ["sluice"]
        if importlib.util.find_spec("torch"):
            module = importlib.import_module("sluice.torch")
            for name in module.__all__:  # some are imported when they are first read
                setattr(module, name, getattr(module, name))
            modules.append("sluice.torch")
        else:
            print("without sluice.torch, because PyTorch is missing", file=sys.stderr)
        warnings.filterwarnings("ignore", module="pdoc.doc_types")  # names that only a type checker imports
        pdoc.pdoc(*modules, output_directory=self.folder / "python")
        (self.folder / "python/index.html").unlink()  # leads to sluice.html


def style():
    """The colours and tables of reports, and what documents have besides."""
    return "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "traces/report/report.css", FOLDER / "page.css")
    )


def relative(target, page):
    return os.path.relpath(target, page.parent)


def main(folder):
    site = Site(Path(folder))
    for document in site.documents:
        site.write(document)
    site.write_list()
    site.write_python()
    for line in site.broken:
        print(f"broken link: {line}", file=sys.stderr)
    print(f"{len(site.documents)} documents and the reference of the Python package")
    return 1 if site.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
