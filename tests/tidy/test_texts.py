"""What no file of the project may contain, and what the documents must."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePath

#: A name of what is banned -> how to find it. Written so that this file does not find itself.
BANNED = {
    "a leftover": re.compile(r"\b(?:FIX[M]E|TO[D]O|XX[X])\b"),
    "a registry's host": re.compile(
        r"pypi\.org|pythonhosted\.org|maven\.org|maven\.apache\.org|sonatype\.org"
        r"|docker\.io|quay\.io|anaconda\.org|npmjs\.(?:com|org)"
    ),
    "a path of somebody's machine": re.compile(
        r"(?<![\w.}~-])/(?:root|work|(?:home|Users)/\w+)/\w"
    ),
}


def test_nothing_banned_is_written_anywhere(texts):
    found = [
        f"{name}:{number}: {what}: {line.strip()[:80]}"
        for name, text in texts.items()
        for what, pattern in BANNED.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_lock_names_no_host(texts):
    assert re.findall(r"https?:\S+|--(?:extra-)?index\S*", texts["requirements.lock"]) == []


def test_links_lead_somewhere(documents, root):
    broken = [
        f"{name}: {target}"
        for name, text in documents.items()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        if "://" not in target and not (root / name).parent.joinpath(target).exists()
    ]
    assert broken == []


def slugs(text: str) -> set[str]:
    """Return what headings are called in the site's addresses."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", heading))
        found.add(re.sub(r"[-\s]+", "-", words.strip().lower()))
    return found


def test_links_lead_to_headings_that_there_are(documents):
    """`make docs` would say so too, and fetches what builds the site."""
    broken = []
    for name, text in documents.items():
        for page, heading in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), page))
            if heading not in slugs(documents[target if page else name]):
                broken.append(f"{name}: {page}#{heading}")
    assert broken == []


def test_the_site_has_a_place_for_every_page(texts, documents):
    """One that the navigation forgot stands behind everything else, under "More"."""
    named = re.findall(r"^ +- (\S+\.md)$", texts["mkdocs.yml"], re.MULTILINE)
    pages = {name.removeprefix("docs/") for name in documents} - {"README.md"} | {"index.md"}
    assert [page for page in named if not any(PurePath(one).match(page) for one in pages)] == []
    assert {one for one in pages if not any(PurePath(one).match(page) for page in named)} == set()


def rows(text: str, heading: str) -> list[list[str]]:
    """Read the first table below a heading, without its first two lines."""
    lines = text.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_layer_table_names_every_file_and_no_other(documents, library, root):
    """A newcomer finds the file for any responsibility from ARCHITECTURE.md alone."""
    layers = rows(documents["docs/ARCHITECTURE.md"], "Layers")
    named = [path for row in layers for path in re.findall(r"`([^`]+)`", row[1])]
    assert named, "docs/ARCHITECTURE.md has no table below its heading Layers"
    gone = [path for path in named if not list(root.glob(path))]
    covered = {found for path in named for found in expanded(root, path)}
    missing = [source.name for source in library if source.path not in covered]
    assert (gone, missing) == ([], [])


def expanded(root: Path, path: str) -> set[Path]:
    """Give the files that a path of the layer table stands for: a directory covers what it holds."""
    found = set(root.glob(path))
    return found | {inner for one in found if one.is_dir() for inner in one.rglob("*.py")}


def test_the_change_log_speaks_of_this_version(documents, project):
    version = project["project"]["version"]
    entry = documents["CHANGELOG.md"].partition(f"\n## {version}")[2].partition("\n## ")[0]
    assert re.search(r"^- \w", entry, re.MULTILINE), f"CHANGELOG.md says nothing below ## {version}"


def test_every_decision_has_a_number_of_its_own_and_is_listed(documents):
    notes = {
        name.removeprefix("docs/"): text.partition("\n")[0].removeprefix("# ")
        for name, text in documents.items()
        if re.match(r"docs/design/\d", name)
    }
    listed = re.findall(
        r"^- \[(\d{4} .*)\]\((design/.*)\)$", documents["docs/ARCHITECTURE.md"], re.MULTILINE
    )
    assert [(title, name) for name, title in sorted(notes.items())] == listed
    numbers = [name.partition("/")[2][:4] for name in sorted(notes)]
    assert numbers == [f"{number:04}" for number in range(1, len(notes) + 1)]
    assert [name for name, title in notes.items() if f"/{title[:4]}-" not in name] == []
