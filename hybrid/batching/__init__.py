"""Which rows run together, when and where: a pure state machine and a thin driver around it."""
