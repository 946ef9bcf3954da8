"""Verification of staged rows by SQL, and the rows that are rejected.

verify_rows.py       the checks of staged rows
verification_sql.py  SQL for DuckDB and Spark
sql_engine.py        where the SQL runs: DuckDB or Spark SQL
rejects.py           rejected rows as an error or a file
reject_locations.py  file and line of rejected rows
"""
