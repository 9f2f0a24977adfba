"""What runs inside the sandbox. Stand-alone: standard library only, nothing else of coachrl is visible in there.

zygote.py forks a supervisor for each request; supervisor.py builds a room (jail.py) for one execution, watches it and
reports; warm.py waits with the usual packages imported and forks programs; program.py is the agent's process; files.py
touches workspaces. Where nothing isolates, plain.py runs a program, with a keeper.py above it.
"""
