"""What the algorithms share: layers with a run axis, randomness per run, replay, the run itself. Knows no algorithm."""
