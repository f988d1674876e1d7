"""Sources of samples: the public hub, LEAF's files, and the user's own files and arrays."""
