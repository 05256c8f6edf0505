"""check.py OUT: lists the mistakes of the site, and fails if there is one.

Mistakes are warnings of Doxygen that matter, broken links, public classes without an example, equations that Doxygen
changed, and pages of docs/ that the navigation does not list.
"""

import collections
import html.parser
import pathlib
import re
import sys
import urllib.parse
import xml.etree.ElementTree

import examples
import pages as pages_of_docs

out = pathlib.Path(sys.argv[1])
site = out / "html"
mistakes = []

# Members of policies are documented on the page of their family. Deduction guides are documented by their class.
CONTRACT = r"::(Params|Saved|Extra|ExtraGrad|Carry|Grad|State|Items|Plan)\b"
compounds = collections.defaultdict(list)  # name: files
for compound in xml.etree.ElementTree.parse(out / "tags.xml").getroot().iter("compound"):
    if compound.get("kind") in ("struct", "class"):
        compounds[compound.find("name").text.split("<")[0].strip()].append(compound.find("filename").text)
for line in (out / "warnings.txt").read_text().split("\n"):
    if not line.strip():
        continue
    if re.search(r"Member .* of (class|struct|file) ", line) or "->" in line:
        continue
    if re.search(r"Compound \S*" + CONTRACT, line) or "parameter '" in line or "are not documented:" in line:
        continue
    special = re.search(r"Compound (\S+)< .* is not documented", line)
    if special and len(compounds[special[1]]) > 1:  # a specialisation of a documented template
        continue
    mistakes.append(line)
mistakes += [f"{path}: not listed in docs/README.md" for path in pages_of_docs.navigation()[1]]


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.anchors, self.equations = [], set(), 0

    def handle_starttag(self, tag, attributes):
        self.equations += tag == "math"
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            if key in ("href", "src") and value:
                self.targets.append(value)


pages = {}
for page in site.glob("*.html"):
    pages[page.name] = Links()
    pages[page.name].feed(page.read_text(errors="replace"))
for name, files in sorted(compounds.items()):
    space, _, short = name.rpartition("::")
    code = re.findall(r'<(div|pre) class="fragment">(.*?)</\1>(?!<div class="line">|\n?</div>)',
                      "".join((site / file).read_text() for file in files), re.S) if examples.is_public(space) else None
    if code is not None and not code:
        mistakes.append(f"{name}: no example")
for name, page in sorted(pages.items()):
    for target in page.targets:
        url = urllib.parse.urlparse(target)
        if url.scheme or not (url.path or url.fragment):
            continue
        path = urllib.parse.unquote(url.path) or name
        if not (site / path).exists():
            mistakes.append(f"{name}: broken link: {target}")
        # Doxygen links a class to its nested classes even if all of them are private.
        elif (url.fragment not in ("", "nested-classes") and path in pages and
              urllib.parse.unquote(url.fragment) not in pages[path].anchors):
            mistakes.append(f"{name}: no such place: {target}")

for mistake, count in collections.Counter(mistakes).items():
    print(mistake if count == 1 else f"{mistake} ({count} times)")
equations = sum(page.equations for page in pages.values())
print(f"{len(pages)} pages with {equations} equations, {len(compounds)} classes, {len(mistakes)} mistakes")
sys.exit(bool(mistakes))
