"""examples.py: finds one example for every public class, in the examples and tests of the repository.

`python3 docs/site/examples.py FILE.json` writes {header: {class: [source file, line, code]}}. filter.py appends the
example to the doc comment of the class. A class whose doc comment has an example of its own is not listed.
"""

import collections
import functools
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LONGEST, SHORTER = 12, 8  # lines
PUBLIC = {"gatefold", "check", "data", "dist", "distributed", "io", "language", "metric", "optim", "papers",
          "published", "routing", "update", "vision"}
CLASS = re.compile(r"(?:template.*> )?(?:struct|class) (?:[A-Z]+_[A-Z_]+ )?(\w+)(?: final)?(?: : .*)?(?: \{.*)?$")


def public_classes(text):
    """Yields the classes that a header defines: (namespace, name, first line and end of the lines of its comment)."""
    space, comment = [], None
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if opened := re.match(r"namespace ([\w:]+) \{$", line):
            space.append(opened[1])
        elif space and re.match(r"\}  // namespace [\w:]+$", line):
            space.pop()
        elif space and line == "}" and re.search(r"^namespace [^{}]*\{[^{}]*$", "\n".join(lines[max(0, i - 5):i]),
                                                re.M):
            space.pop()  # declarations of names of another namespace
        if line.startswith("///"):
            comment = (i if comment is None else comment[0], i + 1)
            continue
        found = CLASS.match(line)
        within = "::".join(space)
        hidden = not space or re.search(r"\bdetail_|\bfunctor\b", within)
        if found and comment and not hidden and (line[-1] != ";" or "{" in line):
            yield within, found[1], *comment
        if comment and not re.match(r"template|  requires|\s+\S|concept|$", line) or found:
            comment = None


def is_public(space):
    """Returns whether users use the names of a namespace. The other namespaces hold parts of one header."""
    return space in PUBLIC or space.removeprefix("gatefold::") in PUBLIC


def users(name, text):
    """Returns the functions and constructors of a header that return or take an object of the class."""
    returned = re.findall(rf"^[^/=(\n]*\b{name}\b[^=(\n]* (\w+)\(", text, re.M)
    taken = re.findall(rf"\b(\w+)\([^;{{}}()]*\b{name}(?:<[^;(){{}}]*>)?&? \w+", text)
    return returned + taken


def has_example(comment, name):
    """Returns whether a doc comment has a block of code that uses the class."""
    code = [line for line in comment if re.match(r"///     \s*\S", line) and not re.search(r"\(\d+[a-z]?\)\s*$", line)]
    fenced = "\n".join(comment).split("@code")[1:] + "\n".join(comment).split("```")[1::2]
    return any(re.search(rf"\b{name}\b", line) for line in code + fenced)


def blanked(text):
    """Returns `text` with spaces instead of comments, strings and directives."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^#[^\n]*'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S | re.M)


class Source:
    def __init__(self, path):
        self.path = path.relative_to(ROOT)
        text = path.read_text(errors="replace")
        self.lines, self.code = text.split("\n"), blanked(text).split("\n")

    def complete(self, first, last):
        """Returns whether the lines are whole statements: their brackets match and the last line ends a statement."""
        depth = 0
        for line in self.code[first:last]:
            for c in line:
                depth += (c in "([{") - (c in ")]}")
                if depth < 0:
                    return False
        return depth == 0 and bool(re.search(r"[;}]\s*$", self.code[last - 1]))

    def statement(self, at):
        """Returns the range of lines of the statement that contains line `at`, or None."""
        first = at
        while first > 0 and self.code[first - 1].strip() and not re.search(r"[;{}:]\s*$", self.code[first - 1]):
            first -= 1
        for last in range(at + 1, min(first + LONGEST, len(self.lines)) + 1):
            if self.complete(first, last):
                return first, last
        return None

    def place(self, at):
        """Returns a cost of a line as an example: 0 in a function, more in a class or outside of both."""
        indent = len(self.code[at]) - len(self.code[at].lstrip())
        if indent == 0:
            return 0 if re.match(r"(static |inline |constexpr |const )+\w+ \w+[ {=]", self.code[at]) else 1
        for line in reversed(self.code[:at]):
            if line.strip() and len(line) - len(line.lstrip()) < indent and line.rstrip().endswith("{"):
                return 1.5 if re.search(r"\b(struct|class|namespace)\b", line) else 0
        return 0

    def excerpt(self, at, longest):
        """Returns the statement at line `at`, with neighbouring statements of its paragraph if they fit."""
        range_ = self.statement(at)
        if range_ is None:
            return None
        first, last = range_
        indent = len(self.lines[first]) - len(self.lines[first].lstrip())

        def same_block(i):
            line = self.lines[i]
            return line.strip() and not line.startswith("#") and "snippet" not in line and "TEST_CASE" not in line and \
                len(line) - len(line.lstrip()) >= indent

        while last < len(self.lines) and last - first < longest and same_block(last):
            end = next((e for e in range(last + 1, first + longest + 1) if self.complete(last, e)), None)
            if end is None:
                break
            last = end
        start = first
        while start > 0 and last - start < longest and same_block(start - 1):
            start -= 1
            if self.complete(start, first) or not self.code[start].strip():
                first = start
        lines = [line[indent:].rstrip() for line in self.lines[first:last]]
        return first, lines


FIRST = ["quickstart.cpp", "first_layer.cpp", "papers.cpp", "daily_tools.cpp", "metrics.cpp"]


def sources():
    """Yields (rank, source), the best first: small programs, other programs, tests, shared files of tests, the
    library."""
    groups = [(0, "examples", "*.cpp"), (2, "tests", "*_test.cpp"), (3, "tests", "*_test.cu"),
              (3, "examples", "*/*.cpp"), (3, "examples", "**/*.cu"), (4, "tests", "**/*.cpp"),
              (5, "tests", "**/*.hpp"), (5, "bench", "**/*.cpp"),
              (6, "include", "**/*.hpp")]
    seen = set()
    for rank, folder, pattern in groups:
        found = (ROOT / folder).rglob(pattern) if rank in (2, 3) else (ROOT / folder).glob(pattern)
        for path in sorted(found, key=lambda p: (FIRST.index(p.name) if p.name in FIRST else len(FIRST), p)):
            if path not in seen and not re.search(r"/(fixtures|compile_fail|structure|build)/", str(path)):
                seen.add(path)
                yield rank, Source(path)


@functools.cache
def includes(path):
    """Returns the files of the repository that the #include lines of a file name."""
    out = []
    for name in re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(errors="replace"), re.M):
        for folder in (path.parent, ROOT / "include", ROOT / "tests", ROOT / "examples", ROOT / "bench"):
            if (folder / name).is_file():
                out.append((folder / name).resolve())
                break
    return out


@functools.cache
def included(path):
    """Returns the files of the repository that a file includes directly or indirectly, and the file itself."""
    todo, seen = [path], set()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            todo += includes(file)
    return seen


class Search:
    def __init__(self):
        self.places, self.defined = collections.defaultdict(list), collections.defaultdict(set)
        for rank, source in sources():
            for i, line in enumerate(source.code):
                for word in set(re.findall(r"\b[A-Z]\w+\b|\b[a-z]\w+(?=\()", line)):
                    self.places[word].append((rank, source, i))
                if defined := re.search(r"(?:struct|class|using) (\w+)", line):
                    if source.path.parts[0] != "include":
                        self.defined[defined[1]].add(ROOT / source.path)

    def example(self, name, space, header):
        """Returns the best excerpt that uses the class or function `name`, [file, line, lines], or None."""
        own_test = header.relative_to(ROOT / "include/gatefold").with_suffix("").as_posix() + "_test"
        inner, best = space.split("::")[-1], None
        for rank, source, at in self.places[name]:
            code, path = source.code[at], ROOT / source.path
            own = own_test in str(path)
            library = source.path.parts[0] == "include"
            if library and not is_public(space):
                continue
            if re.search(rf"(struct|class|enum|using|concept) {name}\b", code):
                continue
            if header not in included(path) or included(path) & self.defined[name]:
                continue  # another class has this name
            before = re.search(rf"(\w+)::{name}\b", code)
            if not own and (before[1] != inner if before else inner != "gatefold" and not library):
                continue  # a class of another namespace has this name
            made = re.search(rf"\b{name}(<[^;]*>)?(\{{|\(| \w+[{{(;=, ])", code)
            cost = (1 if own else 7 if path == header else rank) + (0 if made else 2) + source.place(at)
            if best and cost >= best[0]:
                continue
            excerpt = source.excerpt(at, LONGEST if rank < 2 else SHORTER)
            if excerpt and not any("*/" in line or "/*" in line for line in excerpt[1]):
                best = (cost, [str(source.path), excerpt[0] + 1, excerpt[1]])
        return best and best[1]


def main(out):
    search, found, without = Search(), collections.defaultdict(dict), []
    for header in sorted((ROOT / "include/gatefold").rglob("*.[hc][pu][ph]")):
        text = header.read_text()
        lines = text.split("\n")
        for space, name, first, last in public_classes(text):
            if has_example(lines[first:last], name):
                continue
            best = search.example(name, space, header)
            if is_public(space):
                for function in users(name, text) if not best or best[0].startswith("include") else ():
                    other = search.example(function, space, header)
                    best = other if other and not other[0].startswith("include") else best or other
                if not best:
                    without.append(f"{space}::{name}")
            if best:
                found[str(header.relative_to(ROOT))][name] = best
    pathlib.Path(out).write_text(json.dumps(found, ensure_ascii=False, indent=1))
    print(f"examples for {sum(map(len, found.values()))} classes, none for {len(without)}", *without)


if __name__ == "__main__":
    main(sys.argv[1])
