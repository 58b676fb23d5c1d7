"""The report room: figures, tables and static pages drawn from a run's records.

`html.write_report(run)` writes a run's page, `index.write_index(reports)` the list of runs,
`figures` holds the pictures by themselves. The same records always give the same bytes.
"""
