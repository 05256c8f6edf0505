"""check.py OUT: what Doxygen warned of that matters, and links of the site that lead nowhere. Fails if there is one."""

import collections
import html.parser
import pathlib
import re
import sys
import urllib.parse

out = pathlib.Path(sys.argv[1])
site = out / "html"
mistakes = []

# Members of policies are documented on the page of their family. Deduction guides are documented by their class.
CONTRACT = r"::(Params|Saved|Extra|ExtraGrad|Carry|Grad|State|Items|Plan)\b"
for line in (out / "warnings.txt").read_text().split("\n"):
    if not line.strip():
        continue
    if re.search(r"Member .* of (class|struct|file) ", line) or "->" in line:
        continue
    if re.search(r"Compound \S*" + CONTRACT, line) or "parameter '" in line or "are not documented:" in line:
        continue
    mistakes.append(line)


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.anchors = [], set()

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            if key in ("href", "src") and value:
                self.targets.append(value)


pages = {}
for page in site.glob("*.html"):
    pages[page.name] = Links()
    pages[page.name].feed(page.read_text(errors="replace"))
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
print(f"{len(pages)} pages, {len(mistakes)} mistakes")
sys.exit(bool(mistakes))
