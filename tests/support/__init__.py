"""What several tests share: transcriptions in NumPy, processes, damaged files, a Flower grid in one process."""
