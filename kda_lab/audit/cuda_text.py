"""CUDA and C++ text read at the level of tokens: blocks, macros, guards, launch attributes; no compiler is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kda_lab.audit.normal import digest

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<raw>R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)")
      |(?P<open>/\*.*|R"[^()\s\\]{0,16}\(.*)
      |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      |(?P<directive>^[ \t]*\#(?:\\\r?\n|//[^\n]*|/\*.*?(?:\*/|\Z)|[^\n])*)
      |(?P<word>[A-Za-z_]\w*|\d[\w.']*)
      |(?P<sign><<<|>>>|::|->|&&|\|\||[<>=!]=|\S)""",
    re.S | re.M | re.X,
)
"""`open` is a comment or raw string without end: one token to the end of the file, so that no text is read twice."""
CONTAINERS = {"namespace", "struct", "class", "union", "extern"}
NOT_A_TYPE = {
    *[
        "return",
        "else",
        "new",
        "delete",
        "goto",
        "case",
        "typename",
        "using",
        "namespace",
        "struct",
        "class",
        "throw",
        "sizeof",
        "typedef",
        "if",
    ]
}
NOT_A_CALL = {
    *[
        "if",
        "for",
        "while",
        "switch",
        "return",
        "sizeof",
        "alignof",
        "decltype",
        "catch",
        "defined",
        "static_assert",
        "asm",
        "volatile",
    ]
}
CHECKS = re.compile(
    r"^(static_assert|assert|throw|[A-Z]*_?CHECK\w*|RuntimeCheck|RuntimeDeviceCheck|Panic|host_assert)$"
)
PDL = re.compile(
    r"cudaLaunchAttribute\w*|griddepcontrol(?:\.\w+)*|cudaGridDependencySynchronize"
    r"|cudaTriggerProgrammaticLaunchCompletion|programmaticStreamSerializationAllowed|\b\w*?[eE]nable_?[pP][dD][lL]\w*"
    r"|\bPDL\w*|kUsePDL"
)


@dataclass(frozen=True)
class Token:
    """One token and its line."""

    text: str
    line: int


@dataclass(frozen=True)
class Block:
    """A function, or a type, with its header and its body."""

    name: str
    kind: str
    """`function` or `type`."""
    line: int
    header: tuple[Token, ...]
    body: tuple[Token, ...]
    last_line: int
    """Line of the closing brace."""
    spoken: frozenset[str] = frozenset()
    """Words of the file's directives: a macro or a `#pragma unroll N` may mean a local by its name."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of header and body, the body's locals numbered in order of appearance."""
        return digest(" ".join([*(t.text for t in self.header), "{", *self.normal_body]))

    @cached_property
    def body_fingerprint(self) -> str:
        return digest(" ".join(self.normal_body))

    @cached_property
    def locals(self) -> set[str]:
        """Names that a function's body declares; the fields of a type are no locals."""
        if self.kind != "function":
            return set()
        operands = {name for t in self.body for name in re.findall(r"%\[(\w+)\]", t.text)}
        return _locals(self.body) - self.spoken - operands

    @cached_property
    def normal_body(self) -> list[str]:
        """Texts of the body's tokens; locals numbered, in a type those of each member function by itself."""
        if self.kind != "function":
            inner = {
                id(t): w for b in _blocks(self.body, self.spoken) for t, w in zip(b.body, b.normal_body, strict=True)
            }
            return [inner.get(id(t), t.text) for t in self.body]
        numbers: dict[str, str] = {}
        return [
            numbers.setdefault(t.text, f"${len(numbers)}") if t.text in self.locals and not member else t.text
            for t, member in _with_membership(self.body)
        ]

    def parameters(self) -> list[str]:
        """The parameters of a function, each as its tokens."""
        texts = [t.text for t in self.header]
        start = texts.index(self.name) + 1 if self.name in texts else 0
        return _split(_bracketed(texts, start)) if self.kind == "function" else []


class CudaFile:
    """One file as blocks, macros and what stands outside of both."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.tokens: list[Token] = []
        self.directives: list[Token] = []
        self._in_order: list[Token] = []
        line, position = 1, 0
        for match in TOKEN.finditer(text):
            line += text.count("\n", position, match.start())
            position = match.start()
            kind = match.lastgroup
            if match.group("comment") is None:
                token = Token(_directive(match.group()) if kind == "directive" else match.group(), line)
                (self.directives if kind == "directive" else self.tokens).append(token)
                self._in_order.append(token)
        self.blocks: dict[str, Block] = {}
        spoken = frozenset(word for d in self.directives for word in re.findall(r"[A-Za-z_]\w*", d.text))
        for block in _blocks(self.tokens, spoken):
            name, count = block.name, 2
            while name in self.blocks:
                name, count = f"{block.name}#{count}", count + 1
            self.blocks[name] = block

    def line_text(self, line: int) -> str:
        """One line, stripped, for evidence."""
        return self.lines[line - 1].strip()[:160] if 0 < line <= len(self.lines) else ""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything but comments, formatting and names of locals."""
        inside = {id(t): w for b in self.blocks.values() for t, w in zip(b.body, b.normal_body, strict=True)}
        # Directives stand where they are: a `#pragma` before another loop is another program.
        return digest("\0".join(inside.get(id(t), t.text) for t in self._in_order))

    @cached_property
    def macros(self) -> dict[str, Token]:
        """Name to its `#define`."""
        found = ((re.match(r"#define (\w+)", d.text), d) for d in self.directives)
        return {match.group(1): d for match, d in found if match}

    def statements(self) -> Iterator[tuple[str, Token]]:
        """Symbol and text of what stands outside of functions and types: constants, instantiations, includes."""
        for directive in self.directives:
            if re.match(r"#(include|undef)\b", directive.text):
                yield directive.text.partition(" ")[2].strip('<>"'), directive
        inside = {id(t) for b in self.blocks.values() for t in (*b.header, *b.body)}
        found: list[Token] = []
        depth = 0
        for token in (t for t in self.tokens if id(t) not in inside):
            plain = not {"enum", "="} & {t.text for t in found}
            container = token.text == "{" and not depth and plain and (not found or _is_container(found))
            depth += (token.text == "{" and not container) - (token.text == "}" and depth > 0)
            ends = not depth and token.text in (";", "}")
            if not container and token.text != ";" and (token.text != "}" or found):
                found.append(token)
            if found and (ends or container):
                if not container:
                    yield _declared(found), Token(" ".join(t.text for t in found), found[0].line)
                found = []

    def marks(self) -> Iterator[Token]:
        """Launch attributes and other signs of programmatic dependent launch."""
        for token in (*self.tokens, *self.directives):
            for match in PDL.findall(token.text):
                yield Token(match, token.line)

    def launch_bounds(self) -> Iterator[tuple[str, Token]]:
        """Function and its `__launch_bounds__(...)`."""
        for name, block in self.blocks.items():
            texts = [t.text for t in block.header]
            if "__launch_bounds__" in texts:
                at = texts.index("__launch_bounds__")
                yield name, Token(" ".join(_bracketed(texts, at + 1)), block.header[at].line)

    def guards(self) -> Iterator[tuple[str, Token]]:
        """Kind of guard and its words: assertions, throws, conditions of `if` and `#if`, the function's locals as `_`."""
        for directive in self.directives:
            if re.match(r"#(if|elif|ifdef|ifndef)\b", directive.text):
                yield "lost arch condition" if "ARCH" in directive.text else "lost branch", directive
            elif re.match(r"#error\b", directive.text):
                yield "lost guard", directive
        owned = {id(t): b for b in self.blocks.values() if b.kind == "function" for t in b.body}
        for at, token in enumerate(self.tokens):
            block = owned.get(id(token))
            names = block.locals if block is not None else set()
            if CHECKS.match(token.text) or token.text == "if":
                told = _with_membership(self.tokens[at + 1 : at + 400])
                texts = ["_" if t.text in names and not member else t.text for t, member in told]
                texts = texts[1:] if texts[:1] == ["constexpr"] else texts
                words = " ".join(_bracketed(texts, 0)) if texts[:1] == ["("] else " ".join(texts[:2])
                kind = "lost branch" if token.text == "if" else "lost guard"
                yield kind, Token(f"{token.text} ({words})", token.line)

    def calls(self, block: Block, known: set[str]) -> Iterator[Token]:
        """Calls and launches of known functions in a body."""
        for at, token in enumerate(block.body):
            after = block.body[at + 1].text if at + 1 < len(block.body) else ""
            if token.text in known and token.text not in NOT_A_CALL and after in ("(", "<", "<<<"):
                yield token


def _directive(text: str) -> str:
    text = re.sub(r"\\\r?\n", " ", text)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^#\s*", "#", " ".join(text.split()))


def _bracketed(texts: Sequence[str], start: int) -> list[str]:
    """Texts inside the first pair of round brackets at or after `start`."""
    depth = 0
    found: list[str] = []
    for text in texts[start:]:
        if text == ")":
            depth -= 1
            if depth == 0:
                return found
        if depth:
            found.append(text)
        if text == "(":
            depth += 1
    return found


def _split(texts: Sequence[str]) -> list[str]:
    parts: list[list[str]] = [[]]
    depth = 0
    for text in texts:
        depth += (text in "([{<") - (text in ")]}>") if len(text) == 1 else 0
        if text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(text)
    return [" ".join(p) for p in parts if p]


def _blocks(tokens: Sequence[Token], spoken: frozenset[str] = frozenset()) -> Iterator[Block]:
    """Functions and types at namespace level, member functions of types included."""
    start = at = 0
    while at < len(tokens):
        text = tokens[at].text
        if text in (";", "}"):
            start = at + 1
        elif text == "{":
            header = tuple(tokens[start:at])
            end = _closing(tokens, at)
            kind, name = _named(header)
            if kind:
                last = tokens[min(end, len(tokens) - 1)].line
                yield Block(name, kind, header[0].line, header, tuple(tokens[at + 1 : end]), last, spoken)
            # The inside of a namespace or a type is read on; the body of a function is not.
            at = at if kind == "type" or _is_container(header) else end
            start = at + 1
        at += 1


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at].text == "{") - (tokens[at].text == "}")
        if depth == 0:
            return at
    return len(tokens)


def _is_container(header: Sequence[Token]) -> bool:
    return any(t.text in CONTAINERS for t in header) and "(" not in [t.text for t in header]


def _named(header: Sequence[Token]) -> tuple[str, str]:
    """Kind and name of a block by its header; empty for initialisers, namespaces and the like."""
    texts = [t.text for t in header]
    opens = [i for i, t in enumerate(texts) if t == "("]
    for i in opens:
        if (
            i
            and re.match(r"[A-Za-z_]", texts[i - 1])
            and texts[i - 1]
            not in NOT_A_CALL
            | {*("__launch_bounds__", "__align__", "alignas", "requires", "__attribute__", "noexcept", "enable_if_t")}
        ):
            return ("", "") if "=" in texts[:i] and "template" not in texts else ("function", texts[i - 1])
    for word in ("struct", "class", "union"):
        if word in texts and "enum" not in texts:
            named = [t for t in texts[len(texts) - 1 - texts[::-1].index(word) + 1 :] if re.match(r"[A-Za-z_]", t)]
            return ("type", named[0]) if named else ("", "")
    return "", ""


def _declared(statement: Sequence[Token]) -> str:
    """The name that a statement at namespace level is about: before `=`, `(`, `<` or `{`, or the last word."""
    words = [t.text for t in statement]
    stops = [
        i for i, w in enumerate(words) if w in ("=", "{", "(", "[") or (w == "<" and i and words[i - 1] != "template")
    ]
    named = [w for w in words[: stops[0] if stops else None] if re.match(r"[A-Za-z_]\w*$", w)]
    return named[-1] if named else words[0]


def _locals(body: Sequence[Token]) -> set[str]:
    """Names that a body declares: a word after a type word, before `=`, `;`, `[`, `:` or `{`."""
    found = set()
    fields = {id(t) for b in _blocks(body) if b.kind == "type" for t in b.body}
    for before, token, after in zip(body, body[1:], body[2:], strict=False):
        if id(token) in fields:
            continue
        is_word = re.match(r"[A-Za-z_]\w*$", token.text) and re.match(r"[A-Za-z_]\w*$", before.text)
        if is_word and before.text not in NOT_A_TYPE and after.text in ("=", ";", "[", ":", "{"):
            found.add(token.text)
    return found


def _with_membership(tokens: Sequence[Token]) -> Iterator[tuple[Token, bool]]:
    """Each token, and whether it names a member or a name of a scope: those are themselves, whatever a local is called."""
    before = ""
    for token in tokens:
        yield token, before in (".", "->", "::")
        before = token.text
