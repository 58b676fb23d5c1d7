"""AUD-2, 3, 5 and 6 for a CUDA or C++ file: symbols, parameters, launch attributes, guards and calls that were lost."""

from __future__ import annotations

from collections.abc import Iterator

from kda_lab.audit.comparison import CONFIRM, Item, lost
from kda_lab.audit.cuda_text import CudaFile, Token
from kda_lab.audit.finding import Evidence, Finding, Rule, Severity

TESTS = {
    **CONFIRM,
    "missing symbol": "Compile the source branch's includer of this file against the export.",
    "missing macro": "Compile the source branch's includer of this file against the export.",
    "changed macro": "Print the macro's value in both builds; compare outputs bit by bit.",
    "changed parameters": "Compile the source branch's callers against the export.",
    "changed launch bounds": "Compare registers and occupancy of the two cubins, and time one shape.",
}


def cuda_findings(path: str, source: CudaFile, export: CudaFile) -> Iterator[Finding]:
    """What the export's version of one file lost.

    Args:
        path: the file in both trees.
        source: the served branch's version.
        export: the export's version.
    """
    if source.fingerprint == export.fingerprint:
        return
    told = _Telling(path, source, export)
    yield from _symbols(told)
    yield from _parameters(told)
    yield from _launches(told)
    yield from _guards(told)


class _Telling:
    """The two files, and findings about them."""

    def __init__(self, path: str, source: CudaFile, export: CudaFile) -> None:
        self.path, self.source, self.export = path, source, export

    def finding(self, rule: Rule, severity: Severity, symbol: str, item: Item) -> Finding:
        evidence = [self.evidence("source", self.source, item.line)]
        other = self.export.blocks.get(symbol)
        evidence += [self.evidence("export", self.export, other.line)] if other is not None else []
        return Finding(
            rule=rule,
            category=item.category,
            file=self.path,
            symbol=symbol,
            severity=severity,
            lost=item.words,
            test=TESTS[item.category],
            evidence=tuple(evidence),
        )

    def evidence(self, role: str, file: CudaFile, line: int) -> Evidence:
        return Evidence(tree=role, path=self.path, line=line, text=file.line_text(line))

    def symbol_at(self, line: int) -> str:
        around = [n for n, b in self.source.blocks.items() if b.line <= line <= b.last_line]
        return around[-1] if around else ""


def _symbols(told: _Telling) -> Iterator[Finding]:
    for name, block in told.source.blocks.items():
        if name not in told.export.blocks:
            item = Item("missing symbol", name, f"the {block.kind} {name} is gone", block.line)
            yield told.finding("AUD-2", "crash", name, item)
    for name, token in told.source.macros.items():
        other = told.export.macros.get(name)
        if other is None:
            item = Item("missing macro", name, f"the macro {name} is gone", token.line)
            yield told.finding("AUD-2", "crash", name, item)
        elif other.text != token.text:
            item = Item("changed macro", name, f"`{token.text[:80]}` became `{other.text[:80]}`", token.line)
            yield told.finding("AUD-2", "silent-wrong", name, item)


def _parameters(told: _Telling) -> Iterator[Finding]:
    for name, block in told.source.blocks.items():
        other = told.export.blocks.get(name)
        if other is None or block.kind != "function":
            continue
        ours, theirs = block.parameters(), other.parameters()
        if ours != theirs:
            gone = [p for p in ours if p not in theirs]
            new = [p for p in theirs if p not in ours]
            words = f"parameters lost: {'; '.join(gone) or 'none'}; new: {'; '.join(new) or 'none'}"
            words = words if gone or new else "the order of the parameters changed"
            item = Item("changed parameters", name, words, block.line)
            yield told.finding("AUD-3", "crash" if gone or new else "silent-wrong", name, item)


def _launches(told: _Telling) -> Iterator[Finding]:
    bounds = dict(told.export.launch_bounds())
    for name, token in told.source.launch_bounds():
        now = bounds.get(name)
        if name in told.export.blocks and (now is None or now.text != token.text):
            became = f"became ({now.text})" if now is not None else "is gone"
            item = Item("changed launch bounds", name, f"__launch_bounds__({token.text}) {became}", token.line)
            yield told.finding("AUD-5", "performance", name, item)
    for item in lost(*(_items("lost PDL", f.marks()) for f in (told.source, told.export))):
        yield told.finding("AUD-5", "performance", told.symbol_at(item.line), item)
    pragmas = [
        [Item("changed launch", d.text, f"`{d.text}` is gone", d.line) for d in f.directives if "#pragma" in d.text]
        for f in (told.source, told.export)
    ]
    for item in lost(*pragmas):
        if "once" not in item.key:
            yield told.finding("AUD-5", "performance", told.symbol_at(item.line), item)


def _items(category: str, tokens: Iterator[Token]) -> list[Item]:
    return [Item(category, t.text, f"{t.text} is gone", t.line) for t in tokens]


def _guards(told: _Telling) -> Iterator[Finding]:
    sides = []
    for file in (told.source, told.export):
        sides.append([Item(kind, t.text, f"`{t.text[:120]}` is gone", t.line) for kind, t in file.guards()])
    severities: dict[str, Severity] = {"lost guard": "silent-wrong", "lost arch condition": "crash"}
    for item in lost(*sides):
        symbol = told.symbol_at(item.line)
        if not symbol or symbol in told.export.blocks:
            yield told.finding("AUD-6", severities.get(item.category, "performance"), symbol, item)
    known = {n.split("#")[0] for n, b in told.source.blocks.items() if b.kind == "function"}
    for name, block in told.source.blocks.items():
        other = told.export.blocks.get(name)
        if other is None or block.kind != "function":
            continue
        calls = [
            [Item("lost call", t.text, f"the call of {t.text} is gone", t.line) for t in file.calls(b, known)]
            for file, b in ((told.source, block), (told.export, other))
        ]
        for item in lost(*calls):
            yield told.finding("AUD-6", "performance", name, item)
