"""What the site needs beyond `docs/`: the pages at the root of the project, and their links.

What it is: two hooks of MkDocs. The README is the site's first page; a link that leaves `docs/` is
turned to where its page stands in the site; pages that the navigation does not name are added to it.
What it must not know: what any page says.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
#: Pages at the root, and what they are called in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_config(config: Any) -> Any:
    """Name the pages that the navigation means by a pattern, and those that it forgot."""
    docs = Path(config.docs_dir)
    there = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    named: set[str] = set()

    def expand(entries: list[Any]) -> list[Any]:
        found: list[Any] = []
        for entry in entries:
            if isinstance(entry, dict):
                found += [{title: expand(inner)} for title, inner in entry.items()]
            elif "*" in entry:
                found += [page for page in there if PurePosixPath(page).match(entry)]
            else:
                found.append(entry)
        named.update(entry for entry in found if isinstance(entry, str))
        return found

    config.nav = expand(config.nav)
    rest = [page for page in there if page not in named]
    if rest:
        config.nav.append({"More": rest})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages at the root."""
    for source, name in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, name, content=turned(text, PurePosixPath(source))))
    for page in list(files.documentation_pages()):
        source = Path(config.docs_dir, page.src_uri)
        if source.is_file():
            place = source.relative_to(ROOT).as_posix()
            _carry(files, config, source.read_text(), PurePosixPath(place))
    for source in PAGES:
        _carry(files, config, (ROOT / source).read_text(), PurePosixPath(source))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of the pages in docs/."""
    del files
    source = Path(config.docs_dir, page.file.src_uri)
    if not source.is_file():
        return markdown
    return turned(markdown, PurePosixPath(source.relative_to(ROOT).as_posix()))


def turned(text: str, page: PurePosixPath) -> str:
    """Return a page whose links lead to where their pages stand in the site."""
    here = _in_site(page.as_posix())

    def turn(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(page.parent.as_posix(), found[1]))
        if not (ROOT / target).is_file():
            return found[1]
        return posixpath.relpath(_in_site(target), posixpath.dirname(here) or ".")

    return _LINK.sub(turn, text)


def _in_site(path: str) -> str:
    """Return where a file of the project stands in the site."""
    return PAGES.get(path, path.removeprefix("docs/"))


def _carry(files: Any, config: Any, text: str, page: PurePosixPath) -> None:
    """Take along the files that are no pages and that a page links to."""
    for target in _LINK.findall(text):
        path = posixpath.normpath(posixpath.join(page.parent.as_posix(), target))
        outside = not path.startswith("docs/") and path not in PAGES
        if outside and (ROOT / path).is_file() and files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=(ROOT / path).read_text()))
