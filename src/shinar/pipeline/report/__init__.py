"""One self-contained HTML page about a lake: figures from the analysis jobs, drawn without a script."""
