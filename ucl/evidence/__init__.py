"""From records to evidence: the paper's numbers and grids, tables, figures, effects and claims."""
