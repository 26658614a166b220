"""Tables of results for readers, written between the marks of README.md and figures/RESULTS.md.

In all modules, `records` is a table of `ucl.load_records`, of each data set on one version of its images
(`ucl.report.results.of_one_version`), unless a docstring says otherwise. Without records a table has no rows.
"""
