"""The same algorithms on a real federation: clients are processes on other machines, and Flower carries the messages.

    run_config     the options in a Flower app
    server         the ServerApp: opens the run folder, gathers clients, runs the experiment
    backend        rounds and evaluations over Flower, behind the same protocol as the simulation's backends
    gathering      who is connected, introductions, waiting for enough clients
    introductions what clients report about themselves
    roster the clients of the federation, by number
    server_half    an algorithm's server half, compiled, for uploads that arrive one by one
    server_state   a run between two rounds, for checkpoints
    tallies        evaluation, from the statistics that clients send
    messaging      requests to clients, and their replies until a deadline
    wire           pytrees as messages, and the checks on what arrives
    client         the ClientApp: handles requests
    client_half    an algorithm's client half, compiled
    client_data    a client's samples
    client_home    what a client keeps on its disk
    processes      starting SuperLinks, SuperNodes and runs on this machine
    lifeline       running a command that ends with the process that started it
    gateway        the address that clients connect to, in front of a SuperLink
    certificates   keys and certificates for development
    demo           a whole federation on this machine

Needs ``pip install 'pfedbred[flower]'``. How to run it is in docs/deploy.md.
"""
