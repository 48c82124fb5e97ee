from pathlib import Path

import pytest

from hybrid.planner.machine import read_machine


@pytest.mark.parametrize(
    ("supplies", "battery"),
    [
        ({}, False),
        ({"AC": {"type": "Mains"}}, False),
        ({"AC": {"type": "Mains"}, "BAT0": {"type": "Battery", "present": "1"}}, True),
        ({"BAT1": {"type": "Battery", "scope": "System"}}, True),
        ({"BAT0": {"type": "Battery", "present": "0"}}, False),
        ({"hidpp_battery_0": {"type": "Battery", "scope": "Device"}}, False),
        ({"ups": {"type": "UPS"}}, False),
        ({"odd": {}}, False),
    ],
)
def test_only_a_battery_of_the_machine_itself_counts(
    tmp_path: Path, supplies: dict[str, dict[str, str]], battery: bool
) -> None:
    for name, files in supplies.items():
        folder = tmp_path / "sys/class/power_supply" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text + "\n")
    assert read_machine(tmp_path, affinity=[0]).battery is battery
