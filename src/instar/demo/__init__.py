"""A simulated person talks to instar over plain HTTP, and what it learned from them is measured."""
