"""Sweeps: many runs, measured on one machine or many."""
