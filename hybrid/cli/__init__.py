"""One file per verb: arguments in, text and an exit code out."""
