"""The models that one server serves, by name and version."""

from collections.abc import Iterator, Sequence

from hybrid.errors import NotFound
from hybrid.serving.model import ServedModel


class Repository:
    """Owns the served models. Lookups are exact: names are case sensitive."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a model; without a version the latest one. A simulated device may be named without its prefix.

        Raises:
            NotFound: no such model, or no such version of it; the text says which.
        """
        versions = self._models.get(name) or self._models.get(f"simulated:{name}")
        if versions is None:
            known = ", ".join(sorted(self._models)) or "none"
            raise NotFound(f"no model named {name!r}; served here: {known}")
        if version is None:
            return versions[max(versions, key=_version_key)]
        model = versions.get(version)
        if model is None:
            raise NotFound(f"model {name} has no version {version!r}; versions: {', '.join(sorted(versions))}")
        return model

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first."""
        return sorted(self._models[self.get(name).name], key=_version_key)

    @property
    def ready(self) -> bool:
        """Whether every model would serve a request now."""
        return all(model.ready for model in self)


def _version_key(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdigit() else (-1, version)
