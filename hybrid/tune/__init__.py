"""`hybrid tune`: the setting of a model that serves most within an objective, found by load tests."""
