"""The plan of a serving A/B: which servers, how many requests at once, which prompts; read from YAML.

Arms are servers that already run, given by their base URLs. Starting and stopping servers is out of scope: a driver
that owned the processes would have to know every launcher, and would hide how the server was started.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator
from typing_extensions import Self

from kda_lab.contracts.fields import Data, Sha256
from kda_lab.errors import RefereeError
from kda_lab.referee.claim import METRICS, Mode, Setting
from kda_lab.referee.readers.text import TABLE_BYTES, read_text, refuse
from kda_lab.referee.readers.yaml_tree import Tree, complaints, read_tree

KEY_BYTES = 10_000
CONTROL_SUFFIX = "-control"
ArmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")]
UrlPath = Annotated[str, StringConstraints(pattern=r"^(/[^\s#]*)?$")]
RESERVED = ("model", "prompt", "messages", "stream", "stream_options", "max_tokens", "n")


class ServedArm(Data):
    """One running server."""

    name: ArmName
    base_url: Url
    """Without `/v1`: `http://127.0.0.1:30000`."""
    model: str = ""
    """As the server calls it; when empty, the first that `/v1/models` lists."""
    flush_path: UrlPath = ""
    """Path that empties the prefix cache by POST, such as `/flush_cache`; empty: none is called."""
    info_path: UrlPath = ""
    """Path whose JSON tells the resolved configuration, such as `/get_server_info`; empty: none is asked."""
    info_keys: tuple[str, ...] = ()
    """Dotted keys of that JSON to record; a missing one is an error, since a comparison without it would say less."""
    api_key_file: str = ""
    """File that holds a bearer token. The token is never recorded."""
    commit: str = ""
    hardware: str = ""
    resolved: dict[str, Setting] = Field(default_factory=dict)
    """Configuration that the caller knows of, beside what `info_path` tells."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.base_url.rstrip("/").endswith("/v1"):
            raise ValueError(f"base_url is {self.base_url!r}; allowed: without /v1, which the driver adds")
        if bool(self.info_path) != bool(self.info_keys):
            raise ValueError(f"info_keys are {self.info_keys!r}; allowed: at least one with an info_path, none without")
        return self


class Prompts(Data):
    """The prompts, the same for every arm."""

    kind: Literal["words", "token_ids", "file"] = "words"
    """`words`: English words, about one token each. `token_ids`: drawn ids, exact; `/v1/completions` only."""
    seed: int = Field(default=0, ge=0)
    input_tokens: int = Field(default=256, ge=8, le=1_000_000)
    """Words or ids a prompt; not read for `file`."""
    output_tokens: int = Field(default=128, ge=1, le=1_000_000)
    first_id: int = Field(default=1000, ge=0)
    last_id: int = Field(default=20000, ge=1)
    """Range of drawn ids, ends included; keep special tokens out of it."""
    file: str = ""
    """JSON Lines of `{"prompt": "…"}`; relative to the plan's folder."""
    file_sha256: Sha256 | Literal[""] = ""
    """Filled in when the plan is read, so that an edited file is another plan."""
    prefix: Literal["", "shared", "salted"] = ""
    """`salted`: each cell's prompts begin with words of their own, so that no prefix cache carries over from the
    cell before. `shared`: the same prompts in each cell. Empty: shared where every arm has a flush path."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.first_id >= self.last_id:
            raise ValueError(f"last_id is {self.last_id!r}; allowed: above first_id, {self.first_id}")
        if (self.kind == "file") != bool(self.file):
            raise ValueError(f"file is {self.file!r}; allowed: a path with kind 'file', and with that kind alone")
        return self


class Timeouts(Data):
    """Limits, seconds each."""

    connect_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    silence_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Between two pieces of an answer, the first included."""
    request_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """A whole request."""


class Plan(Data):
    """A matrix of (arm, concurrency, round); its digest names the folder's contents."""

    name: str = Field(min_length=1, max_length=200)
    arms: tuple[ServedArm, ...] = Field(min_length=2, max_length=8)
    baseline: ArmName
    endpoint: Literal["completions", "chat"] = "completions"
    concurrency: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(min_length=1)
    rounds: int = Field(default=6, ge=1, le=1000)
    """An even number balances drift: every other round runs backwards."""
    requests: int = Field(default=64, ge=1, le=100_000)
    """Requests a cell; at least the largest concurrency."""
    warmup_requests: int = Field(default=8, ge=0, le=10_000)
    """Before each cell, with prompts of their own, at the cell's concurrency; not recorded."""
    prompts: Prompts = Prompts()
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    ignore_eos: bool = True
    """Sends `ignore_eos: true`, which SGLang and vLLM know; set it false for a server that refuses the field."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request's body."""
    timeouts: Timeouts = Timeouts()
    mode: Mode = ""
    metrics: tuple[str, ...] = ("throughput_tok_s", "tpot_mean_ms")
    """One claim each, an arm and a concurrency."""
    margin_percent: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in METRICS]
        if unknown or not value:
            raise ValueError(f"metrics are {unknown!r}; allowed: at least one of {', '.join(METRICS)}")
        return value

    @model_validator(mode="after")
    def _one_matrix(self) -> Self:
        names = [arm.name for arm in self.arms]
        taken = [*names, self.baseline + CONTROL_SUFFIX]
        if len(set(taken)) < len(taken):
            raise ValueError(f"arms are {names!r}; allowed: each name once, and none the baseline's {taken[-1]!r}")
        if self.baseline not in names:
            raise ValueError(f"baseline is {self.baseline!r}; allowed: {', '.join(names)}")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise ValueError(f"concurrency is {self.concurrency!r}; allowed: each number once")
        if self.requests < max(self.concurrency):
            raise ValueError(
                f"requests is {self.requests!r}; allowed: at least {max(self.concurrency)}, the concurrency"
            )
        if self.prompts.kind == "token_ids" and self.endpoint == "chat":
            raise ValueError("endpoint is 'chat'; allowed: 'completions' for prompts of token ids")
        clash = sorted(set(self.extra_body) & set(RESERVED))
        if clash:
            raise ValueError(f"extra_body has {clash!r}; allowed: no field that the driver sets")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 over all of the plan."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def salted(self) -> bool:
        """Whether each cell's prompts begin differently."""
        prefix = self.prompts.prefix or ("shared" if all(arm.flush_path for arm in self.arms) else "salted")
        return prefix == "salted"

    def arm(self, name: str) -> ServedArm:
        """The server behind an arm's name; the control is the baseline's server."""
        wanted = self.baseline if name == self.baseline + CONTROL_SUFFIX else name
        return next(arm for arm in self.arms if arm.name == wanted)


def read_plan(path: Path) -> Plan:
    """Read a plan, and the digest of its prompt file.

    Raises:
        RefereeError: as `read_tree`, or values that the plan does not allow, all of them; file and line are named.
    """
    tree = read_tree(path)
    try:
        plan = Plan.model_validate(tree.value)
    except ValidationError as error:
        raise RefereeError("referee", complaints(tree, error)) from error
    arms = tuple(_with_key(tree, number, arm) for number, arm in enumerate(plan.arms))
    return plan.model_copy(update={"arms": arms, "prompts": _with_digest(tree, plan.prompts)})


def _with_key(tree: Tree, number: int, arm: ServedArm) -> ServedArm:
    if not arm.api_key_file:
        return arm
    line = tree.line(("arms", number, "api_key_file"))
    file = (tree.path.parent / arm.api_key_file).resolve()
    if not re.fullmatch(r"\s*[!-~]+\s*", read_text(file, KEY_BYTES)):
        refuse(tree.path, line, "api_key_file", repr(str(file)), "a file with one token of printable ASCII")
    return arm.model_copy(update={"api_key_file": str(file)})


def _with_digest(tree: Tree, prompts: Prompts) -> Prompts:
    if prompts.kind != "file":
        return prompts
    file = (tree.path.parent / prompts.file).resolve()
    digest = hashlib.sha256(read_text(file, TABLE_BYTES).encode()).hexdigest()
    if prompts.file_sha256 not in ("", digest):
        line = tree.line(("prompts", "file_sha256"))
        refuse(tree.path, line, "prompts.file_sha256", repr(prompts.file_sha256), f"{digest}, that of {file}")
    return prompts.model_copy(update={"file": str(file), "file_sha256": digest})
