"""The background half of the loop: judge what happened, train, gate, publish.

Wires the stages as `loop.py` wires serving. It meets the gateway in the store and in the folder
of versions, nowhere else, so it runs in a process of its own, or not at all.
"""
