"""Whole files through a model: read in order, run in full batches, written in that order, resumed where it stopped."""
