"""One function per plot: a data frame in, a matplotlib `Figure` out; `KINDS` names them."""
