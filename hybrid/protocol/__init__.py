"""Wire formats: bytes <-> the values of `hybrid.messages`, for the server and for clients. Pure, no I/O."""
