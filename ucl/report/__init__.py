"""Markdown made from records and tables: figures/RESULTS.md and the results in README.md.

In all modules, `records` is a table of `ucl.load_records`, of each data set on one version of its images
(`ucl.report.results.of_one_version`), unless a docstring says otherwise.
"""
