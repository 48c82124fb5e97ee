"""What the server knows of itself: histograms, the Snapshot, metrics, host facts and logs."""
