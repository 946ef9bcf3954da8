"""Object stores: a local disk, and S3 and its kin, behind one interface.

object_store.py  the interface: typed answers, retries, counting
local.py         a local disk whose acknowledged writes survive a power cut
dir_pool.py      open directories, and files allocated ahead
cloud.py         S3, GCS and Azure through obstore
input_files.py   input files of a load, by ranges
"""
