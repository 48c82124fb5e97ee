"""Whether the modules that each request passes run compiled here: see `setup.py`."""

from pathlib import Path
from typing import Final

COMPILED: Final = any((Path(__file__).parent / "batching").glob("state.*.so"))
