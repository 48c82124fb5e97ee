"""`python -m hybrid` is `hybrid`."""

from hybrid.cli.main import main

if __name__ == "__main__":
    main()
