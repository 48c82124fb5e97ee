"""Which engine loads a model: by setting, else by the file's suffix.

The only place that names every engine. Each engine file is imported when it is first needed, so that a server which
uses one engine never loads the libraries of the others.
"""

from pathlib import Path
from typing import Final

from hybrid.config import ModelSettings
from hybrid.engines.base import Engine, EngineSettings
from hybrid.errors import ConfigError, StartupError

_BY_SUFFIX: Final = {".onnx": "onnxruntime"}
_PLANNED: Final = {".xml": "OpenVINO", ".pt": "PyTorch", ".pt2": "PyTorch"}
#: What a model file may end in, those of engines to come included.
MODEL_SUFFIXES: Final = (*_BY_SUFFIX, *_PLANNED)


def engine_name(settings: ModelSettings) -> str:
    """Return the name of the engine that will load this model; imports nothing.

    Raises:
        ConfigError: the file's suffix is none that any engine takes.
        StartupError: the engine for such a file is not part of this build.
    """
    if settings.engine != "auto":
        return settings.engine
    if settings.simulated is not None:
        return "simulated"
    suffix = Path(settings.file).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    known = ", ".join(_BY_SUFFIX)
    if suffix in _PLANNED:
        raise StartupError(
            f"model {settings.name}: {settings.file} needs {_PLANNED[suffix]}, and this build has no such engine yet; "
            f"expected {known}"
        )
    raise ConfigError(f"model {settings.name}: no engine takes `{settings.file}`; expected a file that ends in {known}")


def load_engine(settings: ModelSettings, run: EngineSettings) -> Engine:
    """Load the model for one instance, in the process that will run it.

    Raises:
        StartupError: no such engine, its library is not installed, or the model is missing or broken.
    """
    name = engine_name(settings)
    try:
        if name == "simulated":
            from hybrid.engines import simulated_engine

            return simulated_engine.load(settings, run)
        from hybrid.engines import onnxruntime_engine

        return onnxruntime_engine.load(settings, run)
    except ImportError as error:
        raise StartupError(
            f"model {settings.name}: engine {name} cannot be imported ({error}); "
            f"install it with: pip install 'hybrid-serve[{name}]'"
        ) from error
