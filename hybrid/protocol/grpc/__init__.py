"""The gRPC form of the protocol: `grpc_predict_v2.proto`, and the messages that `make proto` generates from it.

The generated module has a descriptor pool of its own. In the default pool its names would collide with those of
`tritonclient` and `kserve`, and whichever was imported second in a process would fail.
"""
