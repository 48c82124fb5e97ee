"""`python -m bench [NAME ...]`: run benchmarks; each prints a table and writes bench/results/NAME.json."""

import sys
from importlib import import_module

NAMES = (
    *("null_overhead", "served_vs_raw", "mixed_lengths", "batch_offline", "memory_limit", "replan"),
    *("planner", "planner_fixed"),
)


def main() -> None:
    """Run the named benchmarks, or all."""
    unknown = [name for name in sys.argv[1:] if name not in NAMES]
    if unknown:
        sys.exit(f"bench: unknown benchmark {unknown[0]}; known: {', '.join(NAMES)}")
    for name in sys.argv[1:] or NAMES:
        import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
