"""Graph of a cluster's links: read from files, analysed into levels, with the bandwidth of every group of
ranks."""
