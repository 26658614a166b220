"""Numbers and statistics made from records: the paper's numbers, tables, paired differences, hypotheses and claims.

In all modules, `records` is a table of `ucl.load_records`, and `fields` are further fields of the runs that count, as
given to `ucl.paper.grid`, such as `**ucl.paper.PUBLISHED_CODE`. Networks that failed (`Record.failure`) do not count.
"""
