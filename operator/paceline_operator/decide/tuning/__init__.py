"""The tuner: from signals over symptoms to one change at a time, verified and kept or taken back.

Pure: `machine.step(state, observation, now)` returns the next state and what to tell people.
"""
