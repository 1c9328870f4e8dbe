"""Reports: the overview, a page per paper and the page across papers (`writing`)."""
