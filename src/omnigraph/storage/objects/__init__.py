"""Object stores: a local disk, and S3 and its kin, behind one interface."""
