"""What a generated protobuf module defines, as plain values. Imports none, for their names collide."""

from typing import Any


def fields(file: Any) -> dict[str, list[Any]]:
    """Full name of every field -> number, type, whether repeated, type of message, oneof."""
    found: dict[str, list[Any]] = {}

    def walk(message: Any) -> None:
        for field in message.fields:
            kind = field.message_type.full_name if field.message_type is not None else ""
            oneof = field.containing_oneof.name if field.containing_oneof is not None else ""
            found[field.full_name] = [field.number, field.type, field.is_repeated, kind, oneof]
        for nested in message.nested_types:
            walk(nested)

    for message in file.message_types_by_name.values():
        walk(message)
    return found


def methods(file: Any) -> dict[str, list[Any]]:
    """Method -> request, answer."""
    service = file.services_by_name["GRPCInferenceService"]
    return {method.name: [method.input_type.full_name, method.output_type.full_name] for method in service.methods}
