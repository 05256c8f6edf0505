"""pages.py: computes the pages of the site, their identifiers, and the navigation, from docs/README.md.

`python3 docs/site/pages.py LAYOUT` writes the navigation into a layout file of Doxygen.
"""

import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROJECT = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md"]
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+\.md)\)")


def page_id(path):
    """Returns the identifier of a page: how-to_gpu for docs/how-to/gpu.md, studies for docs/studies/README.md."""
    path = pathlib.Path(path)
    parts = list((path.relative_to(ROOT) if path.is_absolute() else path).with_suffix("").parts)
    if parts == ["README"]:
        return "index"
    if parts == ["docs", "README"]:
        return "documentation"
    if parts[-1] == "README":
        parts.pop()
    return "_".join(parts[1:] if parts[0] == "docs" else parts).lower()


def slug(heading):
    """Returns the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower(), flags=re.ASCII).strip().replace(" ", "-")


def title(path):
    """Returns the first heading of a page, without "Tutorial: " and backticks."""
    heading = re.search(r"^# (.+)$", path.read_text(), re.M)[1]
    heading = re.sub(r"^Tutorial: |`", "", heading)
    return heading[0].upper() + heading[1:]


def navigation():
    """Returns the sections of docs/README.md, (title, anchor, [[title, page, [pages below it]]]), and the pages of
    docs/ that are in no section."""
    sections, listed = [], set()
    for part in re.split(r"^## ", (ROOT / "docs/README.md").read_text(), flags=re.M)[1:]:
        heading = part.split("\n")[0]
        entries = []
        for row in re.findall(r"^\|.*$", part, re.M):
            for i, (words, where) in enumerate(LINK.findall(row)):
                path = (ROOT / "docs" / where).resolve()
                entries.append([words if i == 0 else title(path), path, []])
                listed.add(path)
        sections.append((heading.split(":")[0], slug(heading), entries))
    for _, _, entries in sections:  # pages next to a listed README.md, for example docs/studies/vision.md
        for entry in entries:
            if entry[1].name == "README.md":
                entry[2] += [path for path in sorted(entry[1].parent.glob("*.md")) if path not in listed]
                listed.update(entry[2])
    missing = [path for path in sorted((ROOT / "docs").rglob("*.md"))
               if path not in listed and path != ROOT / "docs/README.md"]
    return sections, missing


def tab(words, path, below=()):
    start = f'<tab type="user{"group" if below else ""}" url="@ref {page_id(path)}" title="{html.escape(words)}"'
    return start + ("/>" if not below else ">" + "".join(tab(title(p), p) for p in below) + "</tab>")


def navindex():
    sections, _ = navigation()
    out = ['<tab type="mainpage" visible="yes" title="Home"/>']
    for words, anchor, entries in sections:
        inside = [tab(*entry) for entry in entries]
        if words == "Reference":
            inside += ['<tab type="modules" visible="yes" title="Families of names"/>',
                       '<tab type="classlist" visible="yes" title="Classes"/>',
                       '<tab type="classindex" visible="yes" title="Index of classes"/>',
                       '<tab type="concepts" visible="yes" title="Concepts"/>',
                       '<tab type="filelist" visible="yes" title="Headers"/>']
        out.append(f'<tab type="usergroup" url="@ref documentation-{anchor}" title="{words}">' + "\n".join(inside) +
                   "</tab>")
    out.append('<tab type="usergroup" url="@ref contributing" title="Project">' +
               "\n".join(tab(title(ROOT / path), ROOT / path) for path in PROJECT) + "</tab>")
    return "<navindex>\n" + "\n".join(out) + "\n</navindex>"


def description_first(layout):
    """Returns the layout of a class page: equation, description and example first, then the members."""
    layout = re.sub(r"\n.*<detaileddescription.*", "", layout)
    return layout.replace('<briefdescription visible="yes"/>', '<detaileddescription title="Description"/>')


if __name__ == "__main__":
    layout = pathlib.Path(sys.argv[1])
    text = re.sub(r"<navindex>.*</navindex>", lambda _: navindex(), layout.read_text(), flags=re.S)
    layout.write_text(re.sub(r"<class>.*</class>", lambda m: description_first(m[0]), text, flags=re.S))
