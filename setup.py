"""Compiles the serving path with mypyc where there is a C compiler. Everything else is in pyproject.toml.

The same files also run as they are: from a checkout, from an editable install (where a compiled module would hide what
is changed in its source), and wherever no compiler is found. HYBRID_COMPILE=0 asks for that; with HYBRID_COMPILE=1 a
module that cannot be compiled is an error.

Compiled are the modules that each request passes. Not among them are those that define msgspec structs: mypyc makes
classes of its own and drops what `frozen=True` and the like say to the base class.
"""

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

COMPILED = {
    "hybrid": "clock",
    "hybrid/batching": "formation invariants lane lanes poison queue scheduler state types",
    "hybrid/frontend": "admission body connection exchange handler parser reply shared wire",
    "hybrid/preprocess": "crew pool short text words",
    "hybrid/protocol": "check json_elements oip_decode oip_encode oip_tensors tensors tensors_json",
    "hybrid/serving": "inference model sizes tally",
    "hybrid/workers": "arena pack",
}
WANTED = os.environ.get("HYBRID_COMPILE", "")
if WANTED not in ("", "0", "1"):
    raise SystemExit(f"HYBRID_COMPILE is {WANTED!r}, expected 0 or 1")
#: The file says which types of other libraries are not read.
TYPES = ["--config-file=compile.ini", "--cache-dir=build/mypy"]
OPTIMISE = os.environ.get("HYBRID_COMPILE_LEVEL", "2")  # 3 gains nothing and takes longer; tests take 0


class BuildOrDoWithout(build_ext):
    """Without a compiler the modules stay as they are: compiled are all of them or none."""

    def run(self) -> None:
        """Compile, and take nothing along that was compiled before: it would hide the sources of now."""
        self._clear()
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - whatever a compiler that is missing, old or ill may raise
            _without(error)
            self._clear()
            self.extensions = []

    def _clear(self) -> None:
        built = Path(self.build_lib)
        for file in (*built.glob("hybrid__mypyc*.so"), *built.glob("hybrid/**/*.so")):
            file.unlink()


def _without(error: BaseException) -> None:
    if WANTED == "1":
        raise error
    print(f"hybrid is not compiled and takes 1.7 times the CPU per request: {error}", file=sys.stderr)


def _extensions() -> list[Any]:
    if WANTED == "0" or not {"bdist_wheel", "build_ext"} & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify  # here: who asks for a wheel's metadata, or compiles nothing, need not have it

        files = [f"{folder}/{name}.py" for folder, names in COMPILED.items() for name in names.split()]
        return mypycify([*TYPES, *files], opt_level=OPTIMISE, debug_level="0", group_name="hybrid")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it exits over types that it cannot read
        _without(error)
        return []


if __name__ == "__main__":
    setup(ext_modules=_extensions(), cmdclass={"build_ext": BuildOrDoWithout})
