"""equations.py: converts the equations of doc comments and pages to MathML.

`block(lines)` converts a block of equation lines and returns one line of HTML. It returns None if the meaning of the
text is not certain; the page then shows the text of the comment. `python3 docs/site/equations.py` lists the blocks of
include/ that stay text; `python3 docs/site/equations.py FORMULA` prints one formula as MathML.
"""

import html
import pathlib
import re
import sys
import unicodedata

SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₋₊ₜₙₖₗₘₚᵢⱼₑₓ", "0123456789−+tnklmpijex"))
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᵗᵀⁿᵏᵈ", "0123456789−+tTnkd"))
OPENING, CLOSING = "([{⟨⌈⌊", ")]}⟩⌉⌋"
OPERATORS = set("=←+−-·⊙∘×/,;:<>≤≥≠≈≡∝~∈∉→∓±⊕⊗⟺⟹*…≪≫∪∩∖")
LIMITS = {"max", "min", "argmax", "argmin"}  # a subscript is below the function
FUNCTIONS = LIMITS | {"softmax", "concat", "log", "exp", "top"}
ACCENTS = set("\u0304\u0302\u0303\u0307")
NUMBER = re.compile(r"\s+(\(\d+[a-z]?\))\s*$")


class Unsure(Exception):
    """The meaning of the text is not certain, so it is not converted."""


def decomposed(text):
    """Returns `text` with letters and accents as separate characters, and with one character for each comparison."""
    text = text.replace("<=", "≤").replace(">=", "≥")
    return "".join(unicodedata.normalize("NFD", c) if c.isalpha() else c for c in text)


def mathml(text):
    """Returns the elements of one formula. Raises Unsure."""
    result = Formula(decomposed(text)).sequence()
    if visible(result) != visible_source(text):
        raise Unsure("characters were lost")
    return result


def visible(markup):
    return re.sub(r"[\s\u00a0()\[\]{}/]", "", html.unescape(re.sub(r"<[^>]*>", "", markup)))


def visible_source(text):
    plain = "".join(SUBSCRIPTS.get(c, SUPERSCRIPTS.get(c, c)) for c in decomposed(text))
    words = re.sub(r"[A-Za-z]{2,}(?:_[A-Za-z]{2,})+", lambda m: m[0].replace("_", "\0"), plain)
    words = re.sub(r"\b(?:%s)\0(?![A-Za-z]+\0)" % "|".join(FUNCTIONS), lambda m: m[0][:-1], words)
    plain = re.sub(r"(?<!\^)\^(?=[\w({⌊])|_|√", "", words).replace("\0", "_")
    return re.sub(r"[\s()\[\]{}/]", "", plain.replace("Σ", "∑").replace("'", "′"))


def closing(text, at):
    """Returns the position of the bracket that closes the one at `at`, or -1 if brackets in between do not match."""
    stack = []
    for i in range(at, len(text)):
        if text[i] in OPENING:
            stack.append(CLOSING[OPENING.index(text[i])])
        elif text[i] in CLOSING:
            if stack.pop() != text[i]:
                return -1
            if not stack:
                return i
    return -1


def is_letter(c):
    return c.isalpha() and c not in SUBSCRIPTS and c not in SUPERSCRIPTS and c not in "Σ"


def row(parts):
    return parts[0] if len(parts) == 1 else "<mrow>" + "".join(parts) + "</mrow>"


def operator(c, prefix):
    """Returns one operator or bracket. It does not stretch, so that it keeps the size that it has in the comment."""
    form = ' form="prefix"' if prefix and c in "−-+∓±" else ""
    if c in "|‖":
        form = ' lspace="0.05em" rspace="0.05em"'
    elif c == "/":
        form = ' lspace="0.1em" rspace="0.1em"'
    return f'<mo stretchy="false"{form}>{html.escape(c)}</mo>'


class Formula:
    def __init__(self, text, indices=False):
        """`indices`: treat two letters as two indices, not as a word."""
        self.text, self.at, self.indices = text, 0, indices

    def rest(self):
        return self.text[self.at:]

    def peek(self, offset=0):
        return self.text[self.at + offset:self.at + offset + 1]

    def sequence(self):
        """Returns the whole text as one row."""
        out, word_before, operand_before = [], False, False
        while self.at < len(self.text):
            spaces = len(re.match(r" *", self.rest())[0])
            self.at += spaces
            if self.at == len(self.text):
                break
            c = self.peek()
            # "(1/N)" is a fraction.
            fraction = re.match(r"\((\d)/([A-Z])\)(?![\w'^²_\[ᵀ])", self.rest())
            if fraction and (spaces or not out or not operand_before):
                self.at += len(fraction[0])
                node, word, operand = (f"<mfrac><mn>{fraction[1]}</mn><mi>{fraction[2]}</mi></mfrac>", False, True)
            elif self.rest()[:2] in ("+=", ":=", "=:"):
                self.at += 2
                node, word, operand = f"<mo>{self.text[self.at - 2:self.at]}</mo>", False, False
            elif word_before and spaces == 1 and re.match(r"a [a-z]{2,}", self.rest()):  # the article
                self.at += 1
                node, word, operand = "<mtext>a</mtext>", True, True
            elif c in OPERATORS or c in OPENING or c in CLOSING or c in "|‖":
                self.at += 1
                bare = operator(c, not operand_before)
                node, word = self.scripts(bare, False) if c in CLOSING or c in "|‖" else bare, False
                operand = c in CLOSING or c in "|‖"
            else:
                node, word = self.atom()
                operand = True
            if spaces > 1:
                out.append('<mspace width="1.2em"></mspace>')
            elif spaces and out and (word or word_before) and node:
                out.append("<mtext>&#160;</mtext>")
            elif spaces and operand_before and operand and c not in CLOSING:
                out.append('<mspace width="0.2em"></mspace>')
            out.append(node)
            word_before, operand_before = word, operand
        if not out:
            raise Unsure("empty")
        return row(out)

    def atom(self):
        """Converts a number, letter or word with its scripts. Returns the node, and whether it is a word."""
        text = self.rest()
        c = text[0]
        if c == "√":
            return self.root(), False
        if c == "Σ":
            self.at += 1
            return self.scripts('<mo stretchy="false" movablelimits="false">∑</mo>', True), False
        if c in "∇∂∞∅":
            self.at += 1
            return self.scripts(f'<mi mathvariant="normal">{c}</mi>', False), False
        number = re.match(r"0x[0-9a-f]+|\d+(?:\.\d+)?", text)
        if number:
            self.at += len(number[0])
            return self.scripts(f"<mn>{number[0]}</mn>", False, index=False), False
        name = re.match(r"[A-Za-z]{2,}(?:_[A-Za-z]{2,})+(?![A-Za-z])", text)
        if name and (name[0].split("_")[0] not in FUNCTIONS or name[0].count("_") > 1):  # a name in code
            self.at += len(name[0])
            return self.scripts(f'<mtext class="code">{name[0]}</mtext>', False), True
        word = re.match(r"[A-Za-z]{2,}", text)
        if word and self.indices and len(word[0]) == 2 and word[0] not in ("at", "id", "in", "of", "on", "to", "up"):
            word = None
        if word and not (text[word.end():word.end() + 1] in ACCENTS):
            self.at += len(word[0])
            node = self.scripts(f"<mi>{word[0]}</mi>", word[0] in LIMITS)
            return node, True
        if is_letter(c):
            self.at += 1
            if self.peek() and self.peek() in ACCENTS:
                # Not <mover>, because without a font for mathematics its accent would touch the letter.
                node = f'<mi class="accented">{c}{self.peek()}</mi>'
                self.at += 1
                if self.peek() and is_letter(self.peek()):
                    raise Unsure("an accent within a word")
            else:
                node = f"<mi>{c}</mi>"
            if self.peek() and unicodedata.combining(self.peek()):
                raise Unsure("unknown accent")
            return self.scripts(node, False), False
        raise Unsure(f"unknown character {c!r}")

    def root(self):
        self.at += 1
        if self.peek() == "(":
            end = closing(self.text, self.at)
            if end < 0:
                raise Unsure("open root")
            inside = Formula(self.text[self.at + 1:end]).sequence()
            self.at = end + 1
            return self.scripts(f"<msqrt>{inside}</msqrt>", False)
        if self.peek() and is_letter(self.peek()):
            return f"<msqrt>{self.atom()[0]}</msqrt>"
        raise Unsure("a root without an operand")

    def scripts(self, base, limits, index=True):
        """Returns `base` with the scripts and the index that follow it."""
        below = above = None
        while self.peek():
            c = self.peek()
            if c == "_":
                if below or above:
                    raise Unsure("two subscripts")
                below = self.subscript()
            elif c in SUBSCRIPTS:
                if below or above:
                    raise Unsure("two subscripts")
                below = self.run(SUBSCRIPTS)
            elif c in SUPERSCRIPTS:
                if above:
                    raise Unsure("two superscripts")
                above = self.run(SUPERSCRIPTS)
            elif c == "^":
                if above:
                    raise Unsure("two superscripts")
                above = self.superscript()
            elif c in "'′":
                if above or below:
                    raise Unsure("a prime after a script")
                self.at += 1
                above = '<mo lspace="0" rspace="0">′</mo>'
            elif c == "*" and not above and base.startswith("<mi>") and self.peek(1) not in (" ", "(", ""):
                if is_letter(self.peek(1)) or self.peek(1).isdigit():
                    raise Unsure("a * that can be a star or a product")
                if below:
                    raise Unsure("a star after a script")
                self.at += 1
                base = f'<msup>{base}<mo lspace="0" rspace="0">*</mo></msup>'
            elif c == "[" and index and not below and not above and base.startswith(("<mi", "<mtext")):
                end = closing(self.text, self.at)
                inside = self.text[self.at + 1:end] if end > 0 else ""
                if not inside or len(inside) > 16 or ": " in inside or ":," in inside and " " in inside:
                    break
                below = Formula(inside).sequence()
                self.at = end + 1
            else:
                break
        if self.peek() and unicodedata.combining(self.peek()):
            raise Unsure("an accent after a script")
        if limits and below:
            node = f"<munder>{base}{below}</munder>"
            return f"<msup>{node}{above}</msup>" if above else node
        if below and above:
            return f"<msubsup>{base}{below}{above}</msubsup>"
        if below:
            return f"<msub>{base}{below}</msub>"
        return f"<msup>{base}{above}</msup>" if above else base

    def run(self, alphabet):
        out = ""
        while self.peek() and self.peek() in alphabet:
            out += alphabet[self.peek()]
            self.at += 1
        return Formula(out).sequence()

    def braces(self):
        end = closing(self.text, self.at)
        if end < 0:
            raise Unsure("open braces")
        inside = self.text[self.at + 1:end]
        self.at = end + 1
        return inside

    def subscript(self):
        self.at += 1
        if self.peek() == "{":
            return Formula(self.braces(), indices=True).sequence()
        match = re.match(r"[A-Za-z]+\*?|\d+|[^\W\d_]", self.rest())
        if not match or not (is_letter(match[0][0]) or match[0][0].isdigit()):
            raise Unsure("a subscript that is no letter, word or number")
        taken = match[0]
        if taken.endswith("*") and self.text[self.at + len(taken):self.at + len(taken) + 1].isalnum():
            raise Unsure("a * that can be a star or a product")
        self.at += len(taken)
        more = re.match(r"(?:,(?:[A-Za-z]|\d)(?![A-Za-z\d]))+", self.rest())
        if more:
            taken += more[0]
            self.at += len(more[0])
        after = self.rest()
        if re.match(r"[+−*](?! )|'|,[^\s]|\(\w\)_", after) or more and re.match(r"[_(]", after):
            raise Unsure("the end of the subscript is unclear")
        if after[:1] == "_" or (after[:1] and unicodedata.combining(after[0])):
            raise Unsure("the end of the subscript is unclear")
        return Formula(taken.replace("*", "＊")).starred() if "*" in taken else Formula(taken, indices=True).sequence()

    def starred(self):
        """Returns a letter with a star, for example h*."""
        name, _, rest = self.text.partition("＊")
        if rest:
            raise Unsure("text after a star")
        return f'<msup><mi>{name}</mi><mo lspace="0" rspace="0">*</mo></msup>'

    def superscript(self):
        self.at += 1
        c = self.peek()
        if c == "{":
            return Formula(self.braces()).sequence()
        if c and c in "(⌊":
            end = closing(self.text, self.at)
            if end < 0:
                raise Unsure("open superscript")
            inside = self.text[self.at:end + 1]
            self.at = end + 1
            return Formula(inside).sequence()
        match = re.match(r"[A-Za-z](?![A-Za-z\d])|\d+(?![.\w])", self.rest())
        if not match:
            raise Unsure("a superscript that is no letter or number")
        self.at += len(match[0])
        return Formula(match[0]).sequence()


def math(text):
    return f"<math>{mathml(text.strip())}</math>"


def pieces(text):
    """Splits `text` at each comma or semicolon outside of brackets that two or more spaces follow."""
    out, start = [], 0
    for match in re.finditer(r"[,;] {2,}", text):
        before = text[start:match.start()]
        if all(before.count(a) == before.count(b) for a, b in zip(OPENING[:3], CLOSING[:3])):
            out.append(text[start:match.start() + 1])
            start = match.end()
    return out + [text[start:]]


def flow(text):
    return " ".join(math(piece) for piece in pieces(text))


def formula(text):
    """Converts a paragraph or item of a page to MathML. Returns None for prose or if the meaning is not certain."""
    words = re.findall(r"[A-Za-z]{3,}", re.sub(r"_\{[^}]*\}", "", text))
    if not re.search(r"[=←≤]", text) or "`" in text or "**" in text or len(set(words) - FUNCTIONS) > 2:
        return None
    body, end = re.fullmatch(r"(.*?)([.,;:]?)", text.strip(), re.S).groups()
    try:
        return flow(body) + end
    except Unsure:
        return None


def scripts_in_prose(text):
    """Returns prose with HTML subscripts and superscripts for x_{n,l} and x^(p). Code does not change."""
    def prose(part):
        part = re.sub(r"(?<![\w^])([^\W\d_][\u0300-\u036f]*)_(?:\{([^{}]*)\}|([A-Za-z]{1,2}|\d))(?![A-Za-z\d_{(])",
                      lambda m: f"{m[1]}<sub>{m[2] or m[3]}</sub>", part)
        part = re.sub(r"(?<=\w)\^([A-Z])(?:_([a-z]{1,2})(?!\w))?",
                      lambda m: f"<sup>{m[1]}</sup>" + (f"<sub>{m[2]}</sub>" if m[2] else ""), part)
        return re.sub(r"(?<=\w)\^(?:\{([^{}]*)\}|(\([^()]*\)))",
                      lambda m: f"\\htmlonly<sup>{m[1] or m[2]}</sup>\\endhtmlonly", part)
    return "`".join(part if i % 2 else prose(part) for i, part in enumerate(text.split("`")))


def block(lines):
    """Returns one line of HTML for `lines`, which have equation numbers at the right. Returns None if no line has a
    number or the meaning is not certain."""
    rows = []
    for line in lines:
        number = NUMBER.search(line)
        rows.append((line[:number.start()] if number else line.rstrip(), number[1] if number else ""))
    if not any(number for _, number in rows):
        return None
    try:
        return table(rows)
    except Unsure:
        return None


def table(rows):
    margin = min(len(text) - len(text.lstrip()) for text, _ in rows)
    # A cell begins after two or more spaces, except after a comma or semicolon. A position is a column if cells of two
    # lines begin there.
    cells = []
    for text, _ in rows:
        text = text[margin:]
        starts = [m.start() for m in re.finditer(r"(?:(?<=  )|^)\S", text)]
        cells.append((text, [s for s in starts if not re.search(r"[,;] +$", text[:s]) or s == starts[0]]))
    begins = [s for _, starts in cells for s in starts]
    anywhere = [m.start() for text, _ in cells for m in re.finditer(r"(?<=  )\S", text)]
    columns = sorted({0} | {s for s in begins if begins.count(s) > 1} |
                     {starts[0] for _, starts in cells if anywhere.count(starts[0]) > 1})
    out = []
    for (text, starts), (_, number) in zip(cells, rows):
        places = [s for s in columns if s in starts or re.search(r"  $", text[:s]) and s < len(text) and text[s] != " "]
        if not places or places[0] != starts[0]:
            raise Unsure("a line that begins at no column")
        row_html, at = "", 0
        for i, place in enumerate(places):
            column = columns.index(place)
            end = places[i + 1] if i + 1 < len(places) else len(text)
            after = columns.index(places[i + 1]) if i + 1 < len(places) else len(columns)
            row_html += "<td></td>" * (column - at)
            at = after
            row_html += f'<td colspan="{after - column}">{flow(text[place:end].strip())}</td>'
        out.append(f'<tr>{row_html}<td class="number">{number}</td></tr>')
    kind = "equations" if len(columns) == 1 else "equations aligned"
    return f'<div class="{kind}"><table>{"".join(out)}</table></div>'


def blocks(text):
    """Yields the blocks of indented lines of doc comments: (index of the first line, lines without "/// ")."""
    lines, start = text.split("\n"), None
    for i, line in enumerate(lines + [""]):
        inside = re.match(r"///     \s*\S", line)
        if inside and start is None:
            # A block follows an empty line of the comment. Other indented lines continue a command of Doxygen.
            start = i if i and lines[i - 1].strip() == "///" else None
        elif not inside and start is not None:
            yield start, [line[4:] for line in lines[start:i]]
            start = None


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(math(sys.argv[1]))
        sys.exit()
    done = kept = 0
    for path in sorted(pathlib.Path("include").rglob("*.hpp")):
        for first, lines in blocks(path.read_text()):
            if not any(NUMBER.search(line) for line in lines):
                continue
            if block(lines):
                done += 1
                continue
            kept += 1
            try:
                table([(NUMBER.sub("", line), "(1)") for line in lines])
            except Unsure as why:
                print(f"{path}:{first + 1}: {why}")
                print("\n".join(lines))
    print(f"{done} blocks of equations are MathML, {kept} stay text")
