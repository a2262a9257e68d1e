"""Recipes that make offline data without any download: in mazes by controllers, in locomotion tasks by policies."""
