"""Spark as a place where tasks run: sessions, their Java, and how errors and answers come back.

session.py           opens or sizes a Spark session
shared_session.py    one local session of a process
session_scope.py     a second session with settings of its own
sizing.py            cores, memory and scratch of this machine
java.py              finds Java
runner.py            tasks on executors
task_accumulator.py  results of tasks as they end
dataframes.py        recognises DataFrames without importing Spark
types.py             schema types as Spark types
"""
