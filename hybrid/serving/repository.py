"""The models that one server serves, by name and version, and why others are not served at the moment.

Owns the table that requests are bound by. A change of it is one step of the event loop, so every request sees the
models before it or after it; who starts and stops models is `manager`.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from hybrid.errors import NotFound, NotReady
from hybrid.protocol.oip_meta import IndexEntry
from hybrid.serving.model import ServedModel


class Note(Struct, frozen=True):
    """What last happened to a model by name: a state of the index, and a reason. `versions` were served before."""

    state: str
    reason: str
    versions: tuple[str, ...] = ()


class Repository:
    """Owns the served models. Lookups are exact: names are case sensitive."""

    def __init__(self, models: Sequence[ServedModel] = ()) -> None:
        self.infer_paths: dict[str, ServedModel] = {}  # path of an inference -> model: changed in place, kept by others
        self._models: dict[str, dict[str, ServedModel]] = {}
        self._notes: dict[str, Note] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model
        self._list_paths()

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a model; without a version the latest one. A simulated device may be named without its prefix.

        Raises:
            NotFound: no such model, or no such version of it; the text says which, and why a known one is not served.
            NotReady: it is being loaded for the first time.
        """
        versions = self._models.get(name) or self._models.get(f"simulated:{name}")
        if versions is None:
            raise self._absent(name)
        if version is None:
            return versions[max(versions, key=_version_key)]
        model = versions.get(version)
        if model is None:
            raise NotFound(f"model {name} has no version {version!r}; versions: {', '.join(sorted(versions))}")
        return model

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first."""
        return sorted(self._models[self.get(name).name], key=_version_key)

    def serves(self, name: str, version: str | None = None) -> bool:
        """Whether a request for this model would be served now; false for one that is unloaded or broken.

        Raises:
            NotFound: nothing is known of such a model or version.
        """
        if self._notes.get(name) is not None and name not in self._models:
            return False
        return self.get(name, version).ready

    @property
    def ready(self) -> bool:
        """Whether every loaded model would serve a request now. What was unloaded does not count."""
        return all(model.ready for model in self)

    # Index ---------------------------------------------------------------------------------------------------------

    def index(self) -> list[IndexEntry]:
        """Return an entry for each version that is served, and for each model of which something else is known."""
        entries = [self._entry(model) for model in self]
        for name, note in self._notes.items():
            if name not in self._models:
                entries += [IndexEntry(name, version, note.state, note.reason) for version in note.versions or ("",)]
        return entries

    def note(self, name: str, state: str, reason: str) -> None:
        """Say what happens to a model. The versions that it had stay in the index."""
        before = self._notes.get(name)
        self._notes[name] = Note(state, reason, before.versions if before is not None else ())

    def forget(self, name: str) -> None:
        """Say nothing more of a model that is not served."""
        self._notes.pop(name, None)

    def _entry(self, model: ServedModel) -> IndexEntry:
        if model.ready:
            note = self._notes.get(model.name)
            return IndexEntry(model.name, model.version, "READY", note.reason if note is not None else "")
        state = "LOADING" if model.signature is None else "UNAVAILABLE"
        return IndexEntry(model.name, model.version, state, model.why_not_ready)

    def _absent(self, name: str) -> NotFound | NotReady:
        note = self._notes.get(name)
        if note is None:
            return NotFound(f"no model named {name!r}; served here: {', '.join(sorted(self._models)) or 'none'}")
        if note.state == "LOADING":
            return NotReady(f"model {name} is not ready: {note.reason}")
        return NotFound(f"model {name} is not loaded: {note.reason}")

    # Changes -------------------------------------------------------------------------------------------------------

    def publish(self, name: str, models: Sequence[ServedModel]) -> list[ServedModel]:
        """Serve exactly these versions of a model from now on; return those that were served until now."""
        before = list(self._models.get(name, {}).values())
        self._models[name] = {model.version: model for model in models}
        self._notes.pop(name, None)
        self._list_paths()
        return before

    def withdraw(self, name: str, state: str, reason: str) -> list[ServedModel]:
        """Serve a model no more; return the versions that were served until now."""
        before = list(self._models.pop(name, {}).values())
        self.note(name, state, reason)
        if before:
            versions = tuple(sorted((model.version for model in before), key=_version_key))
            self._notes[name] = Note(state, reason, versions)
        self._list_paths()
        return before

    def _list_paths(self) -> None:
        paths = self.infer_paths
        paths.clear()
        for name, versions in self._models.items():
            for version, model in versions.items():
                paths[f"/v2/models/{name}/versions/{version}/infer"] = model
            paths[f"/v2/models/{name}/infer"] = versions[max(versions, key=_version_key)]


def _version_key(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdigit() else (-1, version)
