"""Notebooks: what they share, how they run in batch, and on Colab."""
