"""Spark as a place where tasks run: sessions, tasks on executors, and how results and errors come back.

session.py     the session of an operation, the session a process shares, a second one on the same executors
launch.py      starts and stops Spark: Java, settings, scratch space
sizing.py      cores, memory and scratch space of this machine
runner.py      tasks on executors
dataframes.py  recognises DataFrames without importing Spark
types.py       schema types as Spark types
"""
