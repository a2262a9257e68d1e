"""The parts that the algorithms share: layers with a run axis, random numbers per run, replay, data, the run itself."""
