"""Selection of an exported kernel for each call: forced, then matching, then the op's fallback chain.

A selection is made once for each set of static properties (dtype, shape, strides, device and
alignment of every tensor, which of them begin at one address, scalars, forced kernel, environment)
and then found in a cache. Op rules, contracts and fallbacks are asked when it is made. The cached
path reads no device memory, never synchronises and allocates nothing on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.contracts.facts import ALIGNMENT_LIMIT_BYTES, CallFacts, alignment_of, call_facts
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.fallback import FallbackFunction, chain_reasons
from kda_lab.dispatch.flashinfer_fp4 import MM_FP4
from kda_lab.dispatch.kda_decode import FUSED_DECODE, PACKED_DECODE
from kda_lab.dispatch.kda_prefill import CHUNK_PREFILL
from kda_lab.dispatch.kda_replay import REPLAY_DECODE
from kda_lab.dispatch.kda_residuals import ATTN_RESIDUALS
from kda_lab.dispatch.kda_verify import FOLD, VERIFY_RING, VERIFY_SNAPSHOTS
from kda_lab.dispatch.loader import KernelFolder, LoadedKernel, load_kernel, read_contracts
from kda_lab.dispatch.qsa_attention import PAGED_DECODE
from kda_lab.dispatch.qsa_index import BLOCK_SCORES, COMPRESS_KEYS
from kda_lab.dispatch.qsa_selection import COMPACT_KV, EXPAND_BLOCKS, TOPK_BLOCKS
from kda_lab.dispatch.rules import RULES, Rule
from kda_lab.dispatch.selection import Choice, choose, read_settings
from kda_lab.dispatch.statistics import RAISED, Counters, Statistics, Tally
from kda_lab.errors import ContractError, KernelLoadError, ParameterError, Reason
from kda_lab.ops.protocol import OpSpec

KERNELS_DIR = Path(__file__).resolve().parent.parent / "kernels"
CACHE_ENTRIES = 4096
"""The cache is emptied when it holds this many selections."""
LOW_BITS = ALIGNMENT_LIMIT_BYTES - 1
ALIGNMENTS = tuple(map(alignment_of, range(ALIGNMENT_LIMIT_BYTES)))
"""Alignment by the low bits of an address: a call of `alignment_of` for each tensor costs a microsecond in all."""
CACHED_SCALARS = (bool, int, float, str, type(None), torch.dtype)
FactsReader = Callable[[OpSpec, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], CallFacts]


@dataclass(frozen=True)
class Selection:
    """What a set of static properties leads to: something to call, or reasons to raise."""

    spec: OpSpec
    entry: Callable[..., Any] | None
    tallies: tuple[Tally, ...]
    reasons: tuple[Reason, ...] = ()


class Dispatcher:
    """Serves the calls of all ops from one folder of exported kernels; safe in threads.

    Args:
        kernels_dir: folder of the exported kernels; read on the first call and by `refresh`.
        fallbacks: functions that `OpSpec.fallback` may name beside exported kernels.
        read_facts: reads the facts of a call; replaced where there is no GPU to ask.
        rules: what an op demands of a call, whatever kernels there are, by the op's name; those of all ops of the
            package. A reason of a rule refuses the call. It is asked where no selection is cached.
    """

    def __init__(
        self,
        kernels_dir: str | Path = KERNELS_DIR,
        fallbacks: Iterable[FallbackFunction] = (),
        read_facts: FactsReader = call_facts,
        rules: Mapping[str, Rule] = RULES,
    ) -> None:
        self.kernels_dir = Path(kernels_dir)
        self._fallbacks = {fallback.name: fallback for fallback in fallbacks}
        self._read_facts = read_facts
        self._rules = dict(rules)
        self._cache: dict[Any, Selection] = {}
        self._counters = Counters()
        self._count_lock = self._counters.lock
        self._select_lock = threading.RLock()
        self._folders: list[KernelFolder] | None = None
        self._loaded: dict[str, LoadedKernel] = {}

    def call(
        self,
        spec: OpSpec,
        tensors: Sequence[Any],
        scalars: Mapping[str, Any],
        outputs: Mapping[str, Any],
        kernel: str | None = None,
    ) -> Any:
        """Run the op once and return what the selected kernel returns.

        Args:
            spec: the op.
            tensors: input tensors in the order of `spec.tensors`.
            scalars: every scalar by name.
            outputs: output buffers by name; None where the kernel allocates.
            kernel: name of a kernel to force; judged by its callable shapes.

        Raises:
            ContractError: the op's rule refuses the call, neither a kernel nor a fallback may take it, or two kernels
                claim it.
            ParameterError: the forced name or an environment switch is not known.
            KernelLoadError: the selected kernel's files disagree with its contract.
            Exception: whatever the kernel raises; nothing is put in its place.
        """
        key = self._key(spec, tensors, scalars, outputs, kernel)
        selection = self._cache.get(key) if key is not None else None
        if selection is None:
            selection = self._select(spec, tensors, scalars, outputs, kernel)
        with self._count_lock:
            for tally in selection.tallies:
                tally.count += 1
        if selection.entry is None:
            raise ContractError(f"{spec.name}: {spec.refusal}", selection.reasons)
        return selection.entry(*tensors, **scalars, **outputs)

    def explain(
        self,
        spec: OpSpec,
        tensors: Sequence[Any],
        scalars: Mapping[str, Any],
        outputs: Mapping[str, Any],
        kernel: str | None = None,
    ) -> Explanation:
        """The decision that `call` would make for these arguments; nothing is launched, imported or counted.

        Raises:
            ParameterError: as `call`.
        """
        return self.explain_facts(spec, self._facts(spec, tensors, scalars, outputs), kernel)

    def explain_facts(self, spec: OpSpec, facts: CallFacts, kernel: str | None = None) -> Explanation:
        """As `explain`, for facts that were made by hand: another GPU's capability, shapes without tensors."""
        choice = self._choose(spec, facts, kernel)
        outcome = f"raises ContractError ({spec.refusal})"
        if choice.kernel:
            outcome = f"kernel {choice.kernel}"
        elif choice.fallback:
            outcome = f"fallback {choice.fallback.name}"
        return Explanation(choice, outcome, spec.fallback[len(choice.chain) :])

    def folders(self) -> list[KernelFolder]:
        """The exported kernels with their contracts, sorted by name; read once, no code imported.

        Raises:
            KernelLoadError: one contract is broken, or a kernel has the name of a registered function.
        """
        with self._select_lock:
            if self._folders is None:
                found = read_contracts(self.kernels_dir)
                _require_own_names(found, self._fallbacks)
                self._folders = found
            return list(self._folders)

    def prepare(self, spec: OpSpec) -> tuple[str, ...]:
        """Import every kernel of an op now, so that no later call pays for it; returns their names.

        Importing compiles nothing: before a CUDA-graph capture also call the op once on each geometry outside of it.

        Raises:
            KernelLoadError: a kernel's files disagree with its contract, or its fallback with the op's.
        """
        return tuple(self._load(f, spec).contract.kernel for f in self.folders() if f.contract.op == spec.name)

    def refresh(self) -> None:
        """Forget contracts, imported kernels and selections; the next call reads the folder anew."""
        with self._select_lock:
            self._folders = None
            self._loaded.clear()
            self._cache.clear()

    def statistics(self) -> Statistics:
        """Counts since the start or the last reset."""
        return self._counters.snapshot(len(self._cache))

    def reset_statistics(self) -> None:
        """Put every count back to zero; selections stay cached."""
        self._counters.reset()

    @staticmethod
    def _key(
        spec: OpSpec, tensors: Sequence[Any], scalars: Mapping[str, Any], outputs: Mapping[str, Any], kernel: str | None
    ) -> tuple[Any, ...] | None:
        """Cache key of a call; None for arguments that have none, which are judged anew each time."""
        if kernel is not None and type(kernel) is not str:
            return None
        # By identity, since hashing a spec takes a microsecond; the selection keeps the spec alive.
        # None stands between the names, which are strings.
        key: list[Any] = [id(spec), kernel, runtime.environment_token(), *scalars, None, *outputs]
        starts: list[int] = []
        plain = torch.Tensor
        try:
            for tensor in (*tensors, *outputs.values()):
                if tensor is None:
                    key.append(None)
                    continue
                # A proxy answers like its tensor, but the predicate refuses it: the two must not share a key.
                if type(tensor) is not plain and (not isinstance(tensor, plain) or tensor.is_nested):
                    return None
                start = tensor.data_ptr()
                starts.append(start)
                layout = tensor.is_contiguous() or tensor.stride()
                key += (tensor.dtype, tensor.shape, layout, tensor.device, ALIGNMENTS[start & LOW_BITS])
        # A sparse or nested tensor, without strides or a pointer.
        except (AttributeError, TypeError, RuntimeError):
            return None
        for value in scalars.values():
            kind = type(value)
            if kind not in CACHED_SCALARS:
                return None
            # The type belongs to the key because True, 1 and 1.0 are equal and hash alike.
            key += (kind, value)
        # A buffer given twice is another call than two buffers; the address itself does not matter.
        if len(set(starts)) != len(starts):
            key.append(tuple(map(starts.index, starts)))
        return tuple(key)

    def _select(
        self,
        spec: OpSpec,
        tensors: Sequence[Any],
        scalars: Mapping[str, Any],
        outputs: Mapping[str, Any],
        kernel: str | None,
    ) -> Selection:
        """Decide, and keep the decision when the call has a key."""
        with self._select_lock:
            key = self._key(spec, tensors, scalars, outputs, kernel)
            found = self._cache.get(key) if key is not None else None
            if found is not None:
                return found
            choice = self._choose(spec, self._facts(spec, tensors, scalars, outputs), kernel)
            selection = self._selection(spec, choice)
            if key is not None:
                if len(self._cache) >= CACHE_ENTRIES:
                    self._cache.clear()
                self._cache[key] = selection
            return selection

    def _choose(self, spec: OpSpec, facts: CallFacts, kernel: str | None) -> Choice:
        """The decision for a call of these facts: its op's rule first, then kernels and fallbacks."""
        rule = self._rules.get(spec.name)
        demands = rule(facts) if rule else ()
        return choose(spec, self.folders(), facts, read_settings(), kernel, demands, self._fallbacks)

    def _facts(
        self, spec: OpSpec, tensors: Sequence[Any], scalars: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> CallFacts:
        if len(tensors) != len(spec.tensors):
            allowed = f"{len(spec.tensors)}: {', '.join(spec.tensors)}"
            raise ParameterError(spec.name, [Reason("number of tensors", repr(len(tensors)), allowed)])
        return self._read_facts(spec, dict(zip(spec.tensors, tensors, strict=True)), scalars, outputs)

    def _selection(self, spec: OpSpec, choice: Choice) -> Selection:
        if choice.kernel:
            return Selection(spec, self._entry(choice.kernel, spec), (self._counters.hit(spec.name, choice.kernel),))
        reasons = choice.reasons()
        refusal = str(ContractError(spec.name, reasons))
        fallback = choice.fallback
        if fallback is None:
            return Selection(spec, None, (self._counters.miss(refusal, RAISED),), reasons)
        entry = self._fallbacks[fallback.name].run if fallback.kind == "function" else self._entry(fallback.name, spec)
        miss = self._counters.miss(refusal, f"fallback {fallback.name}")
        return Selection(spec, entry, (miss, self._counters.fallback(spec.name, fallback.name, refusal)))

    def _entry(self, kernel: str, spec: OpSpec) -> Callable[..., Any]:
        """The function of an exported kernel, imported now if it was not yet."""
        return self._load(next(f for f in self.folders() if f.contract.kernel == kernel), spec).entry

    def _load(self, folder: KernelFolder, spec: OpSpec) -> LoadedKernel:
        with self._select_lock:
            name = folder.contract.kernel
            if name not in self._loaded:
                if reasons := chain_reasons(folder.contract, spec, name):
                    raise KernelLoadError("dispatch", reasons)
                self._loaded[name] = load_kernel(folder.path)
            return self._loaded[name]


def _require_own_names(folders: Iterable[KernelFolder], functions: Mapping[str, FallbackFunction]) -> None:
    """Refuse an exported kernel with the name of a registered function: a chain's name would mean two things."""
    twice = [folder for folder in folders if folder.contract.kernel in functions]
    if twice:
        allowed = "a name that no registered fallback function has"
        remedy = "Export the kernel under another name."
        raise KernelLoadError(
            "dispatch", [Reason(str(f.path), repr(f.contract.kernel), allowed, remedy) for f in twice]
        )


QSA_STAGES = (COMPRESS_KEYS, BLOCK_SCORES, TOPK_BLOCKS, EXPAND_BLOCKS, COMPACT_KV, PAGED_DECODE)
"""The torch functions of the stages around packed decode, in the order of the pipeline."""
KDA_OPS = (
    PACKED_DECODE,
    FUSED_DECODE,
    VERIFY_SNAPSHOTS,
    VERIFY_RING,
    FOLD,
    REPLAY_DECODE,
    CHUNK_PREFILL,
    ATTN_RESIDUALS,
)
"""The torch functions of Kimi Delta Attention."""
DISPATCHER = Dispatcher(fallbacks=(MM_FP4, *QSA_STAGES, *KDA_OPS))
"""The dispatcher of this process, shared by all doors; nothing is read before its first call."""
