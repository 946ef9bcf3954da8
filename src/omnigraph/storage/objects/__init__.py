"""Object stores: a local disk, and S3 and its kin, behind one interface.

object_store.py  the interface: typed answers, retries, counting
local.py         a local disk whose acknowledged writes survive a power cut; open directories, preallocated files
posix.py         directory syncs, directory locks and errors of the operating system
cloud.py         S3, GCS and Azure through obstore
input_files.py   input files of a load, by ranges
"""
