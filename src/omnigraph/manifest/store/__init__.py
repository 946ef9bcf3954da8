"""Reading and writing manifests, and finding the head of a branch."""
