"""Where samples come from: the public hub, LEAF, files and arrays of the user, generators."""
