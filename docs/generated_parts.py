"""Replaces the parts of a page that a script page.py writes, between <!-- page.py: NAME --> and <!-- end -->."""
import re


def filled(text, parts):
    """Returns the text of a page with its new parts (name of the part → text), and the names of the parts whose markers
    were missing or whose text has changed."""
    stale = []
    for name, content in parts.items():
        begin, end = f"<!-- page.py: {name} -->\n", "<!-- end -->"
        new = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{content}\n\n{end}", text,
                     flags=re.S)
        if begin not in text or new != text:
            stale.append(name)
        text = new
    return text, stale
