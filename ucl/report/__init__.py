"""Markdown made from records and tables: figures/RESULTS.md and the results in README.md."""
