"""Text and images to tensors: pure transforms, and the pool of processes that runs them."""
