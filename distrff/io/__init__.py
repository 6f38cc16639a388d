"""Where rows and results lie: stores, formats, and the one dataset that everything above sees."""
