"""Tables of results for readers, written between the marks of README.md and figures/RESULTS.md.

In all modules, `records` are on one version of each data set's images (`ucl.report.results.of_one_version`), unless a
docstring says otherwise.
"""
