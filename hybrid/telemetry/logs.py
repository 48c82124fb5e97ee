"""Logging of the server and its child processes: the names that others use.

The server calls `setup_logging`; who spawns a child opens a `WorkerLogChannel`; the child calls
`install_child_logging`.
"""

from hybrid.telemetry.log_channel import WorkerLogChannel, install_child_logging
from hybrid.telemetry.log_flood import FloodLimits
from hybrid.telemetry.log_hub import LogHub, LogStats, setup_logging

__all__ = ["setup_logging", "LogHub", "LogStats", "FloodLimits", "WorkerLogChannel", "install_child_logging"]
