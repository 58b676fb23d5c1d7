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
      |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      |(?P<directive>^[ \t]*\#(?:\\\r?\n|//[^\n]*|/\*.*?\*/|[^\n])*)
      |(?P<word>[A-Za-z_]\w*|\d[\w.']*)
      |(?P<sign><<<|>>>|::|->|&&|\|\||[<>=!]=|\S)""",
    re.S | re.M | re.X,
)
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
    r"|cudaTriggerProgrammaticLaunchCompletion|programmaticStreamSerializationAllowed|\w*[eE]nable_?[pP][dD][lL]\w*"
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

    @cached_property
    def fingerprint(self) -> str:
        """Hash of header and body, the body's locals numbered in order of appearance."""
        return digest(" ".join([*(t.text for t in self.header), "{", *self.normal_body]))

    @cached_property
    def body_fingerprint(self) -> str:
        return digest(" ".join(self.normal_body))

    @cached_property
    def locals(self) -> set[str]:
        return _locals(self.body)

    @cached_property
    def normal_body(self) -> list[str]:
        """Texts of the body's tokens, locals numbered."""
        numbers: dict[str, str] = {}
        return [numbers.setdefault(t.text, f"${len(numbers)}") if t.text in self.locals else t.text for t in self.body]

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
        line, position = 1, 0
        for match in TOKEN.finditer(text):
            line += text.count("\n", position, match.start())
            position = match.start()
            kind = match.lastgroup
            if kind == "directive":
                self.directives.append(Token(_directive(match.group()), line))
            elif match.group("comment") is None:
                self.tokens.append(Token(match.group(), line))
        self.blocks: dict[str, Block] = {}
        for block in _blocks(self.tokens):
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
        named = {id(t) for b in self.blocks.values() for t in b.body}
        outside = [t.text for t in self.tokens if id(t) not in named]
        inside = [word for b in self.blocks.values() for word in b.normal_body]
        return digest("\0".join([*(d.text for d in self.directives), *outside, *inside]))

    @cached_property
    def macros(self) -> dict[str, Token]:
        """Name to its `#define`."""
        found = ((re.match(r"#define (\w+)", d.text), d) for d in self.directives)
        return {match.group(1): d for match, d in found if match}

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
                texts = ["_" if t.text in names else t.text for t in self.tokens[at + 1 : at + 400]]
                texts = texts[1:] if texts[:1] == ["constexpr"] else texts
                told = " ".join(_bracketed(texts, 0)) if texts[:1] == ["("] else " ".join(texts[:2])
                kind = "lost branch" if token.text == "if" else "lost guard"
                yield kind, Token(f"{token.text} ({told})", token.line)

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


def _blocks(tokens: Sequence[Token]) -> Iterator[Block]:
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
                yield Block(name, kind, header[0].line, header, tuple(tokens[at + 1 : end]), last)
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


def _locals(body: Sequence[Token]) -> set[str]:
    """Names that a body declares: a word after a type word, before `=`, `;`, `[`, `:` or `{`."""
    found = set()
    for before, token, after in zip(body, body[1:], body[2:], strict=False):
        is_word = re.match(r"[A-Za-z_]\w*$", token.text) and re.match(r"[A-Za-z_]\w*$", before.text)
        if is_word and before.text not in NOT_A_TYPE and after.text in ("=", ";", "[", ":", "{"):
            found.add(token.text)
    return found
