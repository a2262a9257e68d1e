"""Recipes that make offline data without any download: controllers in mazes, and own policies in locomotion tasks."""
