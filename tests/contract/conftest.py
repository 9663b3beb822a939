"""Leaves out the files whose software is not here: `make test-vllm`, `make test-toolcall`."""

from __future__ import annotations

import toolcall_python
import vllm_engine

collect_ignore = []
if vllm_engine.PYTHON is None:
    collect_ignore += ["test_vllm.py", "test_vllm_images.py"]
if not toolcall_python.PYTHON:
    collect_ignore += ["test_bfcl.py", "test_interpreter_tasks.py"]
