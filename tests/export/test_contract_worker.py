"""The child process that evaluates a computed declaration."""

import json
import subprocess
import sys
from pathlib import Path

from kda_lab.export import fresh_process

WORKER = Path(fresh_process.__file__).with_name("contract_worker.py")


def test_prints_the_declaration_after_whatever_the_file_prints(tmp_path: Path) -> None:
    """The last line is the declaration as JSON; tuples become lists; the file's own output does not disturb it."""
    (tmp_path / "candidate.py").write_text("print('hello', end='')\nCONTRACT = {'a': tuple(range(2))}\n")
    done = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path / "candidate.py")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"a": [0, 1]}
