"""Tables of results for readers, written between the marks of README.md, figures/RESULTS.md and figures/APPENDIX.md."""
