"""Which engine loads a model: by setting, else by the file's suffix.

The only place that names every engine file. Each is imported when it is first needed, so that a server which uses one
engine never loads the libraries of the others.
"""

from pathlib import Path
from typing import Final

from hybrid.config import ENGINE_OF_SUFFIX, ModelSettings, engine_of
from hybrid.engines.base import Engine, EngineSettings
from hybrid.errors import ConfigError, StartupError

#: What a model file may end in.
MODEL_SUFFIXES: Final = tuple(ENGINE_OF_SUFFIX)
#: What an engine takes when it is asked for by name. ONNX Runtime is not listed: it looks into the file, whatever it is
#: called.
_TAKES: Final = {"openvino": (".xml", ".onnx"), "torch": (".pt", ".pt2")}


def engine_name(settings: ModelSettings) -> str:
    """Return the name of the engine that will load this model; imports nothing.

    Raises:
        ConfigError: the file's suffix is none that any engine takes, or none that the engine asked for takes.
    """
    name = engine_of(settings)
    if not name:
        known = ", ".join(MODEL_SUFFIXES)
        raise ConfigError(
            f"model {settings.name}: no engine takes `{settings.file}`; expected a file that ends in {known}"
        )
    takes = _TAKES.get(name)
    if takes and Path(settings.file).suffix.lower() not in takes:
        raise ConfigError(
            f"model {settings.name}: engine {name} does not take `{settings.file}`; expected a file that ends in "
            f"{' or '.join(takes)}"
        )
    return name


def load_engine(settings: ModelSettings, run: EngineSettings) -> Engine:
    """Load the model for one instance, in the process that will run it.

    Raises:
        StartupError: no such engine, its library is not installed, or the model is missing or broken.
    """
    name = engine_name(settings)
    try:
        return _load(name, settings, run)
    except ImportError as error:
        raise StartupError(
            f"model {settings.name}: engine {name} cannot be imported ({error}); install it with: pip install {name}"
        ) from error


def _load(name: str, settings: ModelSettings, run: EngineSettings) -> Engine:
    if name == "simulated":
        from hybrid.engines import simulated_engine

        return simulated_engine.load(settings, run)
    if name == "openvino":
        from hybrid.engines import openvino_engine

        return openvino_engine.load(settings, run)
    if name == "torch":
        from hybrid.engines import torch_engine

        return torch_engine.load(settings, run)
    from hybrid.engines import onnxruntime_engine

    return onnxruntime_engine.load(settings, run)
