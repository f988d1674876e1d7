"""Files: strict JSON and YAML, named arrays, atomic writes."""
