"""What every part of the config tree has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

Folder = Annotated[Path, AfterValidator(Path.expanduser)]


class Section(BaseModel):
    """A part of the tree: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        validate_default=True,
    )
