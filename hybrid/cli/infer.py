"""`hybrid infer`: one request to a running server, and its answer for people or as JSON."""

import base64
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from hybrid.cli.finite import FiniteRange
from hybrid.cli.output import print_json
from hybrid.client import Client
from hybrid.errors import BadRequest
from hybrid.messages import InferResponse, Tensor, TensorSpec
from hybrid.protocol.oip_decode import decode_infer

_SHOWN_ROWS: Final = 20
_SHOWN_NUMBERS: Final = 6


@click.command()
@click.argument("model")
@click.option("--text", "texts", multiple=True, metavar="TEXT", help="A text; repeat it for several rows.")
@click.option("--image", "images", multiple=True, metavar="FILE", help="An image file; repeat it for several rows.")
@click.option("--json", "json_file", metavar="FILE", help="A request of the protocol as JSON; - reads it from stdin.")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Where the server is.")
@click.option("--version", default="", help="A version of the model.  [default: the latest]")
@click.option("--binary", is_flag=True, help="Send and receive tensors in their binary form.")
@click.option(
    "--timeout", "timeout_s", type=FiniteRange(min=0.001, max=86_400), default=60.0, show_default=True, help="Seconds."
)
@click.option("--api-key", default="", help="A key, where the server asks for one.")
@click.option("--ca", type=click.Path(path_type=Path), default=None, help="PEM file to check an https server with.")
@click.option("--as-json", is_flag=True, help="Print the answer as JSON.")
def infer(
    model: str, texts: tuple[str, ...], images: tuple[str, ...], json_file: str | None, as_json: bool, **options: Any
) -> None:
    """Send rows to MODEL on a running server and print what it answers.

    Exactly one of --text, --image and --json says what to send.
    """
    if bool(texts) + bool(images) + (json_file is not None) != 1:
        raise click.UsageError("expected one of --text, --image and --json")
    with _client(options) as client:
        if json_file is not None:
            inputs: Sequence[Tensor] = decode_infer(_read(json_file), None).inputs
        else:
            rows = [text.encode() for text in texts] or [_image(name, options["binary"]) for name in images]
            inputs = (_rows(rows, client.metadata(model, options["version"]).inputs, model, images=bool(images)),)
        answer = client.infer(
            model, inputs, version=options["version"], binary=options["binary"], timeout_s=options["timeout_s"]
        )
    if as_json:
        print_json(_as_json(answer))
    else:
        _print(answer)


def _client(options: dict[str, Any]) -> Client:
    try:
        tls = None if options["ca"] is None else ssl.create_default_context(cafile=str(options["ca"]))
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(f"--ca {options['ca']}: {getattr(error, 'strerror', None) or 'not a PEM file'}") from None
    # A little longer than the deadline that the server gets, so that the server's own words arrive.
    return Client(options["url"], api_key=options["api_key"], timeout_s=options["timeout_s"] + 1.0, tls=tls)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise BadRequest(f"{name}: cannot be read: {error.strerror}") from None


def _image(name: str, binary: bool) -> bytes:
    return _read(name) if binary else base64.b64encode(_read(name))


def _rows(rows: Sequence[bytes], specs: Sequence[TensorSpec], model: str, *, images: bool) -> Tensor:
    """Return the rows as the one BYTES input that the model has.

    Metadata do not say what the bytes mean, and an image in base64 is a text as well: only its name can warn.
    """
    if len(specs) != 1 or specs[0].datatype != "BYTES":
        takes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in specs)
        raise BadRequest(f"model {model} takes {takes}: send it with --json")
    if images and "text" in specs[0].name.lower():
        raise BadRequest(f"model {model} takes {specs[0].name}, not images: send it with --text")
    array = np.empty(len(rows), np.object_)
    array[:] = rows
    return Tensor(specs[0].name, "BYTES", array)


# Printing ----------------------------------------------------------------------------------------------------------


def _as_json(answer: InferResponse) -> dict[str, object]:
    return {
        "model_name": answer.model_name,
        "model_version": answer.model_version,
        "batch_rows": answer.batch_rows,
        "timings_ms": {stage: round(1000 * seconds, 3) for stage, seconds in _stages(answer)},
        "outputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.array.shape,
                "data": [_plain(element) for element in tensor.array.ravel().tolist()],
            }
            for tensor in answer.outputs
        ],
    }


def _print(answer: InferResponse) -> None:
    times = ", ".join(f"{stage} {1000 * seconds:.2f}" for stage, seconds in _stages(answer) if seconds)
    click.echo(f"{answer.model_name} version {answer.model_version}, in a batch of {answer.batch_rows}; ms: {times}")
    for tensor in answer.outputs:
        click.echo(f"{tensor.name} {tensor.datatype} {list(tensor.array.shape)}")
        for index, row in enumerate(tensor.array[:_SHOWN_ROWS]):
            click.echo(f"  {index}: {_row(row)}")
        left = len(tensor.array) - _SHOWN_ROWS
        if left > 0:
            click.echo(f"  and {left} more rows (--as-json prints all)")


def _row(row: Any) -> str:
    elements = np.ravel(np.asarray(row, np.object_) if isinstance(row, bytes) else row)
    shown = [_shown(element) for element in elements[:_SHOWN_NUMBERS].tolist()]
    left = len(elements) - len(shown)
    return " ".join(shown) + (f" ... {left} more" if left else "")


def _shown(element: object) -> str:
    if isinstance(element, float):
        return f"{element:.5g}"
    return repr(element.decode(errors="replace")) if isinstance(element, bytes) else str(element)


def _plain(element: object) -> object:
    return element.decode(errors="replace") if isinstance(element, bytes) else element


def _stages(answer: InferResponse) -> list[tuple[str, float]]:
    return [(stage, getattr(answer.timings, stage)) for stage in answer.timings.__struct_fields__]
