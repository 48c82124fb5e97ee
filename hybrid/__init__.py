"""hybrid: an inference server that measures the machine and the model and picks the batching policy per device."""

__version__ = "0.1.0"
