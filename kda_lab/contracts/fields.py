"""Field types that every part of a contract is made of: frozen data, names, hashes, relative paths."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints


class Data(BaseModel):
    """Base of every part of a contract: frozen, and a field that the model does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _inside_folder(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise ValueError(f"a path is {path!r}; allowed: relative, with /, without ..")
    return path


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
OpName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]
RelativePath = Annotated[str, AfterValidator(_inside_folder)]
