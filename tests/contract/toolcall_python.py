"""The Python that has BFCL and reasoning-gym, where there is one: `make test-toolcall` names it."""

from __future__ import annotations

import os

PYTHON = os.environ.get("INSTAR_TEST_TOOLCALL_PYTHON", "")
