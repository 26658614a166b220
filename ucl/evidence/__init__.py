"""Numbers and statistics made from records: the paper's numbers, tables, paired differences, hypotheses and claims."""
