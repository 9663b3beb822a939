"""Real programs, installed by tests/clients/install.sh, each in a home folder of its own."""

from __future__ import annotations

import pytest
from programs import INSTALLED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if items and not (INSTALLED / "openclaw").is_dir():
        pytest.exit("the programs are not installed; run: make test-clients", returncode=2)
