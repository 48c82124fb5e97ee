"""The Open Inference Protocol (KServe v2) over HTTP, as one import: bytes <-> the values of `hybrid.messages`.

A façade over the files that do the work, so that callers need not know how they are split. Pure: no I/O, no asyncio.
"""

from hybrid.protocol.check import check_inputs
from hybrid.protocol.oip_client import decode_response, encode_request
from hybrid.protocol.oip_decode import decode_infer
from hybrid.protocol.oip_encode import CONTENT_BINARY, CONTENT_JSON, Encoded, encode_infer
from hybrid.protocol.oip_meta import (
    IndexEntry,
    encode_error,
    encode_index,
    encode_live,
    encode_metadata,
    encode_model_ready,
    encode_ready,
    encode_server_metadata,
)

__all__ = [
    "decode_infer",
    "check_inputs",
    "encode_infer",
    "Encoded",
    "CONTENT_JSON",
    "CONTENT_BINARY",
    "encode_request",
    "decode_response",
    "encode_error",
    "encode_metadata",
    "encode_server_metadata",
    "encode_index",
    "IndexEntry",
    "encode_live",
    "encode_ready",
    "encode_model_ready",
]
