"""What can be served: built-in models, simulated devices, model files and model folders."""
