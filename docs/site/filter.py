"""filter.py FILE: a file as Doxygen is to see it, on standard output.

Headers: what is documented in a folder joins that folder's group, so that a family has a page. Pages: links to files
that are no part of the site become their names.
"""

import pathlib
import re
import sys

path = pathlib.Path(sys.argv[1])
text = path.read_text()
root = pathlib.Path(__file__).resolve().parent.parent.parent

if path.suffix in (".hpp", ".cuh"):
    parts = path.resolve().relative_to(root / "include/gatefold").parts
    group = "_".join(parts[:-1]) or "core"
    out, start = [], None  # first line of the doc comment before this line
    for line in text.split("\n"):
        if line.startswith("///"):
            start = len(out) if start is None else start
        elif start is not None:
            if line.startswith("namespace"):  # the text of a family
                out.insert(start, f"/// @addtogroup {group}")
            elif line and not line.startswith("#"):
                out.append(f"/// @ingroup {group}")
            start = None
        out.append(line)
    sys.stdout.write("\n".join(out))
else:
    folder = root if path.parent.name == "docs" and path.parent.parent.name == "build" else path.resolve().parent

    def link(match):
        image, words, where = match.groups()
        if re.match(r"[a-z]+:", where):
            return match.group(0)
        target = (folder / where.split("#")[0]).resolve()
        if image:
            return f"![{words}]({target.name})"
        within = target.relative_to(root)
        if where.startswith("#"):
            return words
        if within == pathlib.Path("README.md"):
            return f"[{words}](@ref index)"
        if target.suffix == ".md" and (within.parts[0] == "docs" or len(within.parts) == 1):
            return f"[{words}]({within})"
        return f"`{within}`" if words in ("header", "test") else words

    sys.stdout.write(re.sub(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)", link, text))
