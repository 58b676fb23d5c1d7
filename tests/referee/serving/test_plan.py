"""The plan file: what it allows, and the one error that names file, line and field."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.serving.plan import Plan, read_plan

TEXT = """\
name: toy
arms:
  - {name: base, base_url: http://127.0.0.1:30000}
  - name: cand
    base_url: http://127.0.0.1:30001
baseline: base
concurrency: [1, 4]
rounds: 2
"""


def write(path: Path, text: str = TEXT) -> Path:
    """A plan file."""
    path.write_text(text)
    return path


def test_a_plan_reads_with_its_defaults(tmp_path: Path) -> None:
    """What a plan leaves out has a default; times are in seconds, the decoding is greedy."""
    plan = read_plan(write(tmp_path / "p.yaml"))
    assert (plan.rounds, plan.concurrency, plan.temperature, plan.timeouts.connect_s) == (2, (1, 4), 0.0, 10.0)
    assert plan.arm("base-control") == plan.arm("base")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds: 2", "rounds: two", r"p\.yaml:8: rounds is 'two'; allowed: Input should be a valid integer"),
        ("rounds: 2", "rounds: 0", r"p\.yaml:8: rounds is 0; allowed: Input should be greater than or equal to 1"),
        ("rounds: 2", "round: 2", r"p\.yaml:8: round is 2; allowed: Extra inputs are not permitted"),
        ("rounds: 2", "rounds: 2\nrounds: 3", r"p\.yaml:9: key is 'rounds'; allowed: a text, each once"),
        ("rounds: 2", "rounds: [", r"p\.yaml:\d+: YAML is .*; allowed: one well-formed YAML document"),
        ("http://127.0.0.1:30001", "127.0.0.1:1", r"p\.yaml:5: arms\.1\.base_url is '127\.0\.0\.1:1'; .*pattern"),
        ("http://127.0.0.1:30001", "http://h/v1/", r"base_url is 'http://h/v1/'; allowed: without /v1"),
        (
            "name: cand",
            "name: cand\n    info_path: /info",
            r"p\.yaml:4: arms\.1\.info_keys is \(\); allowed: at least one with an info_path",
        ),
        ("name: cand", "name: base", r"p\.yaml:3: arms is \['base', 'base'\]; allowed: each name once"),
        ("name: cand", "name: base-control", r"arms is .*; allowed: each name once, and none the baseline's"),
        ("name: cand", "name: a/b", r"p\.yaml:4: arms\.1\.name is 'a/b'"),
        ("baseline: base", "baseline: bse", r"p\.yaml:6: baseline is 'bse'; allowed: base, cand"),
        ("[1, 4]", "[4, 4]", r"p\.yaml:7: concurrency is \(4, 4\); allowed: each number once"),
        ("[1, 4]", "[128]", r"requests is 64; allowed: at least 128, the concurrency"),
        ("rounds: 2", "metrics: [speed]", r"p\.yaml:8: metrics is \['speed'\]; allowed: at least one of"),
        ("rounds: 2", "extra_body: {stream: false}", r"extra_body is \['stream'\]; allowed: no field that the driver"),
        ("rounds: 2", "endpoint: chat\nprompts: {kind: token_ids}", r"allowed: 'completions' for prompts of token ids"),
        ("rounds: 2", "prompts: {first_id: 9, last_id: 9}", r"p\.yaml:8: prompts\.last_id is 9; allowed: above"),
        ("rounds: 2", "prompts: {kind: file}", r"file is ''; allowed: a path with kind 'file'"),
        ("rounds: 2", "timeouts: {request_s: .nan}", r"p\.yaml:8: timeouts\.request_s is nan"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Each wrong value gives one error with its place and what is allowed."""
    assert old in TEXT
    with pytest.raises(RefereeError, match=words):
        read_plan(write(tmp_path / "p.yaml", TEXT.replace(old, new)))


def test_all_bad_values_are_named_at_once(tmp_path: Path) -> None:
    """Two wrong values are two reasons of one error."""
    text = TEXT.replace("rounds: 2", "rounds: 0\nrequests: 0")
    with pytest.raises(RefereeError) as caught:
        read_plan(write(tmp_path / "p.yaml", text))
    assert [reason.field.split(": ")[1] for reason in caught.value.reasons] == ["rounds", "requests"]


def test_a_missing_or_empty_plan_is_refused(tmp_path: Path) -> None:
    """No file and no content are errors by name."""
    with pytest.raises(RefereeError, match=r"file '.*none\.yaml' does not exist"):
        read_plan(tmp_path / "none.yaml")
    with pytest.raises(RefereeError, match=r"p\.yaml: content is ''"):
        read_plan(write(tmp_path / "p.yaml", "\n"))
    with pytest.raises(RefereeError, match=r"p\.yaml:1: plan is \[1\]"):
        read_plan(write(tmp_path / "p.yaml", "[1]"))


def test_the_prompt_file_is_part_of_the_digest(tmp_path: Path) -> None:
    """An edited prompt file makes another plan, and a stated digest is checked."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    path = write(tmp_path / "p.yaml", TEXT + "prompts: {kind: file, file: prompts.jsonl}\n")
    before = read_plan(path)
    assert before.prompts.file_sha256 == hashlib.sha256(prompts.read_bytes()).hexdigest()
    prompts.write_text('{"prompt": "two"}\n')
    assert read_plan(path).digest != before.digest
    text = TEXT + f"prompts: {{kind: file, file: prompts.jsonl, file_sha256: {before.prompts.file_sha256}}}\n"
    with pytest.raises(RefereeError, match=r"p\.yaml:9: prompts\.file_sha256 is .*; allowed: [0-9a-f]{64}, that of"):
        read_plan(write(tmp_path / "p.yaml", text))


def test_a_key_file_holds_one_token(tmp_path: Path) -> None:
    """A bearer token is checked when the plan is read and is not in the plan."""
    (tmp_path / "key").write_text("secret-1\n")
    text = TEXT.replace("    base_url", "    api_key_file: key\n    base_url")
    plan = read_plan(write(tmp_path / "p.yaml", text))
    assert plan.arms[1].api_key_file == str(tmp_path / "key")
    assert "secret" not in plan.model_dump_json()
    (tmp_path / "key").write_text("two words")
    with pytest.raises(RefereeError, match=r"p\.yaml:5: api_key_file is .*; allowed: a file with one token"):
        read_plan(tmp_path / "p.yaml")


def test_prompts_are_salted_unless_every_server_can_flush(make_plan: Callable[..., Plan]) -> None:
    """Without a flush path on every arm the prompts differ from cell to cell; the plan can say otherwise."""
    plan = make_plan()
    flushed = [arm.model_copy(update={"flush_path": "/flush_cache"}) for arm in plan.arms]
    assert plan.salted
    assert plan.model_copy(update={"arms": (flushed[0], plan.arms[1])}).salted
    assert not plan.model_copy(update={"arms": tuple(flushed)}).salted
    assert not make_plan(prompts={"prefix": "shared"}).salted


def test_the_digest_survives_a_round_trip(make_plan: Callable[..., Plan]) -> None:
    """A plan written as JSON is the same plan."""
    plan = make_plan(extra_body={"seed": 1})
    assert Plan.model_validate(json.loads(plan.model_dump_json())).digest == plan.digest


def test_the_documented_plan_is_one(tmp_path: Path) -> None:
    """The example of the documentation is a plan that flushes instead of salting."""
    text = (Path(__file__).parents[3] / "docs" / "referee.md").read_text()
    (example,) = [
        block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "concurrency: [1, 16, 64]" in block
    ]
    plan = read_plan(write(tmp_path / "p.yaml", example))
    assert (plan.baseline, plan.salted, plan.rounds) == ("unfused", False, 6)
