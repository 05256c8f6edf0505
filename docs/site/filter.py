"""filter.py FILE: prints a file in the form that Doxygen reads.

In headers, every documented name joins the group of its folder, so that each family has a page. A class gets an example
from a program or test, which examples.py wrote to $OUT/examples.json. In pages, every heading gets an identifier. Links
to files that are not part of the site become the names of these files. In both, equations become MathML.
"""

import json
import os
import pathlib
import re
import sys

import equations
import examples
import pages

path = pathlib.Path(sys.argv[1]).resolve()
text = path.read_text()
root = pages.ROOT
found_examples = json.loads(pathlib.Path(os.environ["OUT"], "examples.json").read_text())


def header():
    parts = path.relative_to(root / "include/gatefold").parts
    group = "_".join(parts[:-1]) or "core"
    lines = text.split("\n")
    for first, block in reversed(list(equations.blocks(text))):
        markup = equations.block(block)
        if markup:
            lines[first:first + len(block)] = [f"/// \\htmlonly[block]{markup}\\endhtmlonly"]
    own = found_examples.get(str(path.relative_to(root)), {})
    for _, name, _, last in reversed(list(examples.public_classes("\n".join(lines)))):
        if name in own:
            file, _, code = own[name]
            words = "A use" if file.startswith("include") else "An example"
            lines[last:last] = ["///", f"/// @par {words}, from {file}", "/// @code{.cpp}"] + \
                [f"/// {line}".rstrip() for line in code] + ["/// @endcode"]
    out, start = [], None  # first line of the doc comment before this line
    for line in lines:
        if line.startswith("///"):
            start = len(out) if start is None else start
        elif start is not None:
            if line.startswith("namespace"):  # this comment describes a family
                out.insert(start, f"/// @addtogroup {group}")
            elif line and not line.startswith("#"):
                out.append(f"/// @ingroup {group}")
            start = None
        out.append(line)
    return "\n".join(out)


def with_equations(page_text, mathematical):
    """Returns a page with equations as MathML: indented blocks and, if `mathematical`, paragraphs and items."""
    out = []
    for i, paragraph in enumerate(re.split(r"(\n{2,}|^```.*?^```\n)", page_text, flags=re.S | re.M)):
        lines = paragraph.split("\n")
        markup = None
        if i % 2 or not paragraph:
            pass
        elif all(line.startswith("    ") for line in lines):
            if re.search("[Σ·√]", paragraph):
                try:
                    markup = equations.table([(line, "") for line in lines])
                except equations.Unsure:
                    pass
            paragraph = f"\\htmlonly[block]{markup}\\endhtmlonly" if markup else paragraph
        elif mathematical and not lines[0].startswith("#"):
            markup = equations.formula(re.sub(r"\n\s*", " ", paragraph))
            if markup and not paragraph.startswith("- "):
                paragraph = f'\\htmlonly[block]<div class="equations">{markup}</div>\\endhtmlonly'
            else:
                items = re.split(r"^- ", paragraph, flags=re.M)
                for k, item in enumerate(items):
                    markup = equations.formula(re.sub(r"\n\s*", " ", item.strip())) if k else None
                    items[k] = f"\\htmlonly {markup}\\endhtmlonly\n" if markup else equations.scripts_in_prose(item)
                paragraph = "- ".join(items)
        out.append(paragraph)
    return "".join(out)


def row_with_equation(row, column):
    """Returns a row of a table with the equations of one column as MathML. Doubtful equations stay code."""
    def converted(match):
        try:
            markup = equations.flow(match[1].replace("\\|", "|"))
        except equations.Unsure:
            return match[0]
        return "\\htmlonly " + markup.replace("|", "&#124;") + "\\endhtmlonly"

    cells = re.split(r"(?<!\\)\|", row)
    cells[column] = re.sub("`([^`]*)`", converted, cells[column])
    return "|".join(cells)


def page():
    source = root / "README.md" if path.parent == root / "build/docs" else path
    name, used = pages.page_id(source), {}

    def link(match):
        image, words, where = match.groups()
        if re.match(r"[a-z]+:", where):
            return match[0]
        file, _, place = where.partition("#")
        target = (source.parent / file).resolve() if file else source
        if image:
            return f"![{words}]({target.name})"
        within = target.relative_to(root)
        if target.suffix == ".md" and (within.parts[0] == "docs" or str(within) in ["README.md"] + pages.PROJECT):
            return f"[{words}](@ref {pages.page_id(target)}{'-' + place if place else ''})"
        return f"`{within}`" if words in ("header", "test") else words

    def heading(match):
        marks, words = match.groups()
        anchor = pages.slug(words)
        if len(marks) == 1:
            return match[0] if name == "index" else f"{match[0]} {{#{name}}}"
        if name == "index":  # headings of the index are HTML, so that the navigation does not list them
            return f"@anchor index-{anchor}\n<h{len(marks)}>{words}</h{len(marks)}>"
        used[anchor] = used.get(anchor, -1) + 1
        return f"{match[0]} {{#{name}-{anchor}{'-' + str(used[anchor]) if used[anchor] else ''}}}"

    out, fenced, joined, column = [], False, "", None
    for line in with_equations(text, "docs/explanation/math" in str(path)).split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            # Joins lines, because Doxygen does not find the end of code or of a link on the next line.
            if joined and line.strip():
                line, joined = joined + " " + line, ""
            if line.count("`") % 2 or re.search(r"\[[^\[\]]*$", line):
                joined = line
                continue
            if joined:
                out.append(joined)
                joined = ""
            column = column if line.startswith("|") else None  # the column of the equations in this table
            if column:
                line = row_with_equation(line, column)
            elif line.startswith("|") and "| equation |" in line:
                column = [cell.strip() for cell in line.split("|")].index("equation")
            line = re.sub(r"^(#+) (.+)$", heading, line)
            line = re.sub(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)", link, line)
        out.append(line)
    return "\n".join(out)


sys.stdout.write(header() if path.suffix in (".hpp", ".cuh") else page())
