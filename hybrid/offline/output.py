"""What an output file must be able to do, and the choice between the formats. Results go in by index, without a gap."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from hybrid.errors import ConfigError
from hybrid.messages import Signature, Tensor
from hybrid.offline.append import AppendFile
from hybrid.offline.array_output import ArrayOutput
from hybrid.offline.json_output import JsonOutput
from hybrid.offline.rows import Fault, Line, Outcome, ReadyRow


class Output(Protocol):
    """One format."""

    format: str

    def recover(self) -> int:
        """Cut the file back to whole rows and return the index behind the last one of them; 0 for an empty file.

        Raises:
            ConfigError: the file is none that this format writes.
        """

    def fit(self, signature: Signature) -> None:
        """Take in what the model gives, before anything is encoded.

        Raises:
            ConfigError: this format cannot hold it.
        """

    def encode(self, rows: Sequence[ReadyRow], outputs: Sequence[Tensor], finite: bool) -> list[Line | Fault]:
        """Encode the results of a batch row by row; a row that cannot be written is a fault."""

    def append(self, outcomes: Sequence[Outcome]) -> None:
        """Write rows in their order.

        Raises:
            OSError: as writing a file does.
        """

    def settle(self) -> None:
        """Make the file one that others can read."""


_FORMATS: Final[dict[str, Callable[[AppendFile], Output]]] = {
    ".jsonl": JsonOutput,
    ".ndjson": JsonOutput,
    ".npy": ArrayOutput,
}


def format_of(path: Path) -> Callable[[AppendFile], Output]:
    """Return what writes the format that the suffix of a file asks for.

    Raises:
        ConfigError: no format has that suffix.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; expected a file name that ends with .jsonl or .npy")
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: expected a file name that ends with .jsonl or .npy")
    return kind
