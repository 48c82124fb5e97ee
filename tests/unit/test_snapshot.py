import subprocess
import sys
from math import inf, nan

import msgspec
import pytest
from telemetry_example import example_snapshot

from hybrid.messages import ReleaseReason
from hybrid.telemetry import snapshot as schema
from hybrid.telemetry.snapshot import decode, encode


def test_a_snapshot_survives_the_wire():
    snapshot = example_snapshot()
    assert decode(encode(snapshot)) == snapshot


def test_the_wire_form_is_json_with_the_schema_and_the_reasons_for_what_is_absent():
    wire = msgspec.json.decode(encode(example_snapshot()))
    assert wire["schema"] == "hybrid.snapshot/1"
    assert wire["gpus"] == []
    assert wire["host"]["throttled_s"] is None
    assert wire["absent"]["host.throttled_s"]
    assert wire["models"][0]["outcomes"]["ok_n"] == 90
    assert wire["models"][0]["e2e"]["buckets"]


def test_fields_of_a_newer_server_are_ignored():
    wire = msgspec.json.decode(encode(example_snapshot())) | {"tomorrow": 1}
    assert decode(msgspec.json.encode(wire)) == example_snapshot()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b'{"schema": "hybrid.snapshot/2"}'])
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError, match="snapshot"):
        decode(data)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_numbers_that_json_cannot_hold_become_null(value):
    snapshot = msgspec.structs.replace(example_snapshot(), t_wall_s=value)
    assert msgspec.json.decode(encode(snapshot))["t_wall_s"] is None


def test_every_release_reason_has_its_counter():
    assert schema.Released.__struct_fields__ == tuple(f"{reason.value}_n" for reason in ReleaseReason)


def test_every_part_is_frozen():
    parts = [part for part in vars(schema).values() if isinstance(part, type) and part.__module__ == schema.__name__]
    assert len(parts) > 10
    assert all(part.__struct_config__.frozen for part in parts)


def test_the_schema_loads_nothing_of_hybrid_but_the_histogram():
    code = "import sys, hybrid.telemetry.snapshot; print(*sorted(m for m in sys.modules if m.startswith('hybrid')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["hybrid", "hybrid.telemetry", "hybrid.telemetry.histogram", "hybrid.telemetry.snapshot"]
