"""How long an example of a property takes says how busy the machine is, not what the code does."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("instar", deadline=None)
settings.load_profile("instar")
