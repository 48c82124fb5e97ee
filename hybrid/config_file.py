"""Files, environment variables and flags -> the frozen settings of `config`.

Owns every message about a wrong setting: it names the source, the dotted key, what was expected and what came. Knows
no model and no machine; whether a value makes sense on this machine is the planner's question.
"""

import math
import os
import stat
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, inspect, structs

from hybrid.config import Config
from hybrid.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)

#: Environment variable -> the setting it overrides.
ENVIRONMENT: Final[dict[str, str]] = {
    "HYBRID_HOST": "server.host",
    "HYBRID_PORT": "server.port",
    "HYBRID_GRPC_PORT": "server.grpc_port",
    "HYBRID_API_KEYS": "server.api_keys",
    "HYBRID_ADMIN_TOKEN": "server.admin_token",
    "HYBRID_LOG_LEVEL": "server.log_level",
    "HYBRID_MEASURE": "planner.measure",
}
#: Values of these fields never appear in a message, whatever is wrong with them.
SECRET_FIELDS: Final = frozenset({"api_keys", "admin_token"})
#: Beyond it JSON's numbers are not exact, and from 2**63 on nothing that is made of one could be sent.
_MOST: Final = 2**53
_MOST_BYTES: Final = 1 << 20
_PREFIX: Final = "HYBRID_"
_SHOWN_CHARACTERS: Final = 60
_BOUNDS: Final = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def load_settings(cls: type[T], data: Mapping[str, Any], where: str, prefix: str = "") -> T:
    """Build the settings struct `cls`, nested ones included, from a parsed table.

    `where` (usually the file) begins every message; `prefix` is the dotted path of `data` in it, "" or "a.b.".

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type or out of range.
    """
    hints = get_type_hints(cls, include_extras=True)
    for key in data:
        if key not in hints:
            raise ConfigError(f"{where}: unknown key `{prefix}{key}`; {nearest(key, hints, prefix)}")
    values = {key: _convert(hints[key], value, where, prefix + key) for key, value in data.items()}
    for field in structs.fields(cls):
        if field.name not in values and field.default is NODEFAULT and field.default_factory is NODEFAULT:
            raise ConfigError(f"{where}: missing key `{prefix}{field.name}`; expected {_expected(hints[field.name])}")
    try:
        return cls(**values)
    except ValueError as error:  # a struct may check its fields against each other when it is made
        raise ConfigError(f"{where}: {f'`{prefix[:-1]}`: ' if prefix else ''}{error}") from error


def load_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file.

    Raises:
        ConfigError: the path cannot be one, the file is missing, a directory, a pipe or device, larger than 1 MiB,
            unreadable, not UTF-8 or not TOML (with line and column).
    """
    try:
        return tomllib.loads(_read(path).decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, expected a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read by user {_user()}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: byte {error.start} is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: not TOML: nested too deeply") from None
    except ValueError as error:  # a zero byte in it, or half a character: paths come over HTTP, too
        raise ConfigError(f"{str(path)!r}: cannot be a path: {error}") from error


def _read(path: Path) -> bytes:
    # Named pipes and /dev/zero as well as files of any size come over HTTP, too: opening one must not wait for who
    # writes to it, nor reading take all memory.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path}: is a pipe or a device, expected a TOML file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, expected a TOML file with settings")
    return data


def load_config(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Config:
    """Return the configuration from file, then environment, then flags; the later wins.

    `overrides` maps dotted keys (`server.port`, `models`) to values; None means that the flag was not given. An
    environment variable that is set but empty counts as not set, which is how compose files leave one out.

    Raises:
        ConfigError: any of the three is wrong, or a `HYBRID_` variable looks like a misspelled one of ours.
    """
    config = load_settings(Config, load_toml(path), str(path)) if path is not None else Config()
    _refuse_misspelled(environ)
    for variable, key in ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if text and not (variable.endswith("_PORT") and text.startswith("tcp://")):
            # Kubernetes sets HYBRID_PORT=tcp://... in every pod beside a service called "hybrid"; that is not ours.
            where = f"environment variable {variable}"
            config = replace_setting(config, key, _parse_variable(key, text, where), where)
    for key, value in (overrides or {}).items():
        if value is not None:
            config = replace_setting(config, key, value, f"option --{key.rpartition('.')[2].replace('_', '-')}")
    _refuse_empty_secrets(config)
    return config


def replace_setting(settings: T, key: str, value: object, where: str) -> T:
    """Return `settings` with the value at the dotted `key` replaced, checked like a value from a file.

    Raises:
        ConfigError: as `load_settings`.
    """
    return _replace(settings, key, value, where, "")


def changed_keys(before: msgspec.Struct, after: msgspec.Struct, prefix: str = "") -> tuple[str, ...]:
    """Return the dotted keys in which two values of one settings struct differ; never what they hold."""
    found: list[str] = []
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, msgspec.Struct) and type(old) is type(new):
            found += changed_keys(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(prefix + name)
    return tuple(found)


def nearest(word: str, known: Mapping[str, Any] | list[str], prefix: str = "") -> str:
    """Return the second half of a message about an unknown name: the nearest known one, or all of them."""
    near = get_close_matches(word, list(known), n=1)
    if near:
        return f"did you mean `{prefix}{near[0]}`?"
    return "known: " + ", ".join(sorted(known)) if known else "none is known"


def _replace(settings: T, key: str, value: object, where: str, prefix: str) -> T:
    head, _, rest = key.partition(".")
    hints = get_type_hints(type(settings), include_extras=True)
    if head not in hints:
        raise ConfigError(f"{where}: unknown key `{prefix}{head}`; {nearest(head, hints, prefix)}")
    if rest:
        inner = _replace(getattr(settings, head), rest, value, where, f"{prefix}{head}.")
    else:
        inner = _convert(hints[head], value, where, prefix + head)
    changed: T = structs.replace(settings, **{head: inner})
    return changed


def _convert(hint: Any, value: object, where: str, key: str) -> Any:
    """Check one value; `key` is its full dotted path."""
    if isinstance(value, Mapping):
        nested = _struct_of(hint)
        if nested is not None:
            return load_settings(nested, value, where, key + ".")
        if get_origin(hint) is dict:  # a table of tables, such as [model.NAME]
            return {name: _convert(get_args(hint)[1], inner, where, f"{key}.{name}") for name, inner in value.items()}
    nested = _struct_of(get_args(hint)[0]) if get_origin(hint) is tuple else None
    if nested is not None and isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        # a list of tables, such as [[inputs]]; counted from 1, as people count
        return tuple(load_settings(nested, item, where, f"{key}.{at}.") for at, item in enumerate(value, 1))
    if _beyond(value):
        raise ConfigError(f"{where}: `{key}`: expected no number beyond {_MOST}, got {_shown(key, value)}")
    try:
        if not _finite(value):  # TOML has nan and inf, and nan would slip through an open range
            raise msgspec.ValidationError
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise ConfigError(f"{where}: `{key}`: expected {_expected(hint)}, got {_shown(key, value)}") from None


def _struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """The settings struct behind `X` or `X | None`, else None."""
    options = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)), None)


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_finite, value)) if isinstance(value, list | tuple) else True


def _beyond(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) > _MOST
    return any(map(_beyond, value)) if isinstance(value, list | tuple) else False


def _shown(key: str, value: object) -> str:
    """The value as it may be printed: shortened, with its type, and never a secret."""
    kind = {"str": "a string", "bool": "a boolean", "int": "an integer", "float": "a number"}.get(
        type(value).__name__, "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else ""
    )
    if SECRET_FIELDS.intersection(key.split(".")):
        return f"{kind or 'a value'} (not shown: secret)"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"{text} ({kind})" if kind else text


def _expected(hint: Any) -> str:
    return _describe(inspect.type_info(hint))


def _describe(kind: inspect.Type) -> str:
    """Say in words what a type takes, as in 'an integer >= 1'."""
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_describe(t) for t in kind.types if not isinstance(t, inspect.NoneType))
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        name = "an integer" if isinstance(kind, inspect.IntType) else "a number"
        bounds = [f"{sign} {limit:g}" for at, sign in _BOUNDS if (limit := getattr(kind, at)) is not None]
        return " ".join([name, " and ".join(bounds)]).strip()
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(f'"{value}"' for value in kind.values)
    if isinstance(kind, inspect.VarTupleType):
        return f"a list, each {_describe(kind.item_type)}"
    if isinstance(kind, inspect.TupleType):
        return f"a list of {len(kind.item_types)}, each {_describe(kind.item_types[0])}"
    if isinstance(kind, inspect.DictType):
        return f"a table, each value {_describe(kind.value_type)}"
    if isinstance(kind, inspect.StructType):
        return "a table"
    return {inspect.StrType: "a string", inspect.BoolType: "true or false"}.get(type(kind), "another type")


def _parse_variable(key: str, text: str, where: str) -> object:
    if key in ("server.port", "server.grpc_port"):
        return int(text) if text.isascii() and text.lstrip("-").isdigit() else text
    if key == "server.api_keys":
        keys = tuple(part.strip() for part in text.split(",") if part.strip())
        if not keys:
            # Falling back to "no keys" here would open a server whose owner meant to close it.
            raise ConfigError(f"{where}: expected API keys separated by commas, found only commas")
        return keys
    return text.lower() if key == "server.log_level" else text


def _refuse_misspelled(environ: Mapping[str, str]) -> None:
    """Refuse a variable that resembles one of ours, and leave every other `HYBRID_` variable alone.

    HYBRID_API_KEY for HYBRID_API_KEYS would silently start a server without keys, so it must be an error. Refusing all
    unknown names would break on variables that are not settings at all: those of tests, of wrappers, and those that
    Kubernetes adds for a service called "hybrid".
    """
    known = [name.removeprefix(_PREFIX) for name in ENVIRONMENT]
    for name in environ:
        if name.startswith(_PREFIX) and name not in ENVIRONMENT:
            near = get_close_matches(name.removeprefix(_PREFIX), known, n=1, cutoff=0.75)
            if near:
                raise ConfigError(f"environment: unknown variable {name}; did you mean {_PREFIX}{near[0]}?")


def _refuse_empty_secrets(config: Config) -> None:
    if any(not key.strip() for key in config.server.api_keys):
        raise ConfigError("`server.api_keys`: an empty key would let everybody in; remove it")
    if config.server.admin_token is not None and not config.server.admin_token.strip():
        raise ConfigError("`server.admin_token`: is empty; leave it out to switch admin actions off")


def _user() -> str:
    import getpass  # rarely needed and not free to import

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id that has no name
        import os

        return f"id {os.getuid()}"
