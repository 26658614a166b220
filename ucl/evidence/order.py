"""The names that moved to `ucl.catalogue`; this module goes when its last caller has changed."""

from ucl.catalogue import PAPER as PAPER
from ucl.catalogue import PAPER_SCORES as PAPER_SCORES
from ucl.catalogue import RIVALS as RIVALS
from ucl.catalogue import SHOWN
from ucl.catalogue import method_and_selection as method_and_selection
from ucl.catalogue import method_order as method_order

ORDER = tuple(SHOWN)
