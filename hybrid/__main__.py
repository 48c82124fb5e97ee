"""`python -m hybrid` is `hybrid`."""

from hybrid.cli.ending import ends_at_once

with ends_at_once():
    from hybrid.cli.main import main

if __name__ == "__main__":
    main()
