"""AUD-11: blocks that left their place: moved verbatim, or typed again, which only equal outputs can excuse."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from kda_lab.audit.cuda_text import CudaFile
from kda_lab.audit.finding import Evidence, Finding
from kda_lab.audit.normal import FUNCTIONS, digest, normal_form
from kda_lab.audit.parsing import PythonFile

SIMILAR = 0.7
"""Share of equal tokens from which a new block counts as the lost one under another name."""
SIMILAR_NAMESAKE = 0.35
"""The same for a block of the same name: `_draw` of one file has nothing to do with `_draw` of another."""
MOST_PAIRS = 40_000
"""Lost and new blocks that are compared one by one; beyond that only equal content and equal names are found."""
SMALLEST_TOKENS = 12
"""Below that, two blocks resemble each other by chance."""
PLAIN_SYNTAX = frozenset(
    [
        *(
            "Name",
            "Constant",
            "Attribute",
            "Call",
            "Expr",
            "Assign",
            "AnnAssign",
            "AugAssign",
            "FunctionDef",
            "ClassDef",
        ),
        *(
            "Subscript",
            "Slice",
            "Tuple",
            "List",
            "Starred",
            "JoinedStr",
            "FormattedValue",
            "BinOp",
            "BoolOp",
            "UnaryOp",
        ),
        *("Compare", "arguments", "arg", "keyword", "alias", "comprehension", "withitem", "Pass", "None"),
    ]
)
"""Words of a normal form that any two functions share."""
TEST = (
    "Compare every output of both blocks bit by bit over a shape grid with both values of each boolean constant; "
    "indices as sets and as sequences."
)


@dataclass(frozen=True)
class Block:
    """A function, class or CUDA block, comparable across files whatever its name."""

    path: str
    name: str
    line: int
    text: str
    """Its first line."""
    hash: str
    """Over header and body without the name."""
    tokens: tuple[str, ...]
    kind: str
    """`function`, `method`, `class` or `type`: only like resembles like."""

    @property
    def last_name(self) -> str:
        return self.name.split(".")[-1]


def python_blocks(path: str, file: PythonFile) -> Iterator[Block]:
    """Functions, methods and classes of a Python file."""
    for unit in file.units.values():
        node = unit.nodes[0]
        if len(unit.nodes) != 1 or unit.kind not in ("function", "method", "class"):
            continue
        nameless = copy.copy(node)
        if isinstance(nameless, FUNCTIONS) or hasattr(nameless, "name"):
            nameless.name = "_"
        form = normal_form(nameless)
        words = re.findall(r"\$?\w+|'[^']*'", form)
        tokens = tuple(w for w in words if w not in PLAIN_SYNTAX)
        yield Block(path, unit.name, unit.line, file.line_text(unit.line), digest(form), tokens, unit.kind)


def cuda_blocks(path: str, file: CudaFile) -> Iterator[Block]:
    """Functions and types of a CUDA or C++ file."""
    for name, block in file.blocks.items():
        tokens = (*("_" if t.text == block.name else t.text for t in block.header), "{", *block.normal_body)
        text = file.line_text(block.line)
        yield Block(path, name, block.line, text, " ".join(tokens), tokens, block.kind)


@dataclass(frozen=True)
class Move:
    """What became of one lost block."""

    lost: Block
    found: Block
    verbatim: bool


def moves(lost: Iterable[Block], candidates: Iterable[Block]) -> list[Move]:
    """Where the lost blocks went: same content first, then same name, then a similar new block.

    Args:
        lost: blocks of the source that their file in the export does not have.
        candidates: blocks of the export that stand where the source has none of that name.
    """
    by_hash: dict[str, list[Block]] = defaultdict(list)
    by_name: dict[str, list[Block]] = defaultdict(list)
    pool = sorted(candidates, key=lambda b: (b.path, b.line, b.name))
    for block in pool:
        by_hash[block.hash].append(block)
        by_name[block.name].append(block)
    found = []
    gone = list(lost)
    compared = pool if len(gone) * len(pool) <= MOST_PAIRS else []
    classes = {(b.path, b.name) for b in gone}
    for block in gone:
        if (block.path, block.name.rpartition(".")[0]) in classes:
            # A method goes with its class, which is compared as a whole.
            continue
        same = sorted(by_hash.get(block.hash, ()), key=lambda b: b.last_name != block.last_name)
        other = (
            same or list(_like(block, by_name.get(block.name, []), SIMILAR_NAMESAKE)) or list(_similar(block, compared))
        )
        if other:
            found.append(Move(block, other[0], bool(same)))
    return found


def _similar(block: Block, pool: list[Block]) -> Iterator[Block]:
    # Records of fields resemble each other by their form alone, short blocks by chance.
    if len(block.tokens) >= SMALLEST_TOKENS and block.kind not in ("class", "type"):
        others = [b for b in pool if b.kind == block.kind and len(b.tokens) >= SMALLEST_TOKENS]
        yield from _like(block, others, SIMILAR)


def _like(block: Block, others: list[Block], share: float) -> Iterator[Block]:
    """The blocks that share at least so many tokens, the most alike first."""
    scored = []
    for other in others:
        matcher = SequenceMatcher(None, block.tokens, other.tokens, autojunk=False)
        if matcher.real_quick_ratio() >= share and matcher.quick_ratio() >= share:
            scored.append((matcher.ratio(), other))
    yield from (other for ratio, other in sorted(scored, key=lambda s: (-s[0], s[1].path, s[1].line)) if ratio >= share)


def move_findings(found: Iterable[Move]) -> Iterator[Finding]:
    """One finding a block that was typed again; a verbatim move is none."""
    for move in found:
        if not move.verbatim:
            where = f"{move.found.path}:{move.found.line}"
            words = f"{move.lost.name} was not moved but typed again, as {move.found.name} in {where}"
            yield _finding(move.lost, move.found, words)


def retyped_in_place(ours: Block, theirs: Block, partly_told: bool = False) -> Finding:
    """The finding about a block that changed where it stands, in a way that no other check explains.

    Args:
        ours: the source's block.
        theirs: the export's.
        partly_told: other findings name a part of the change.
    """
    beyond = "in more than the other findings about it name" if partly_told else "in a way that no other check explains"
    return _finding(ours, theirs, f"the body of {ours.name} changed in place, {beyond}")


def _finding(ours: Block, theirs: Block, words: str) -> Finding:
    return Finding(
        rule="AUD-11",
        category="retyped",
        file=ours.path,
        symbol=ours.name,
        severity="silent-wrong",
        lost=words,
        test=TEST,
        evidence=(
            Evidence(tree="source", path=ours.path, line=ours.line, text=ours.text),
            Evidence(tree="export", path=theirs.path, line=theirs.line, text=theirs.text),
        ),
    )
