"""The same algorithms on a real federation: clients are processes on other machines, and Flower carries the messages.

    local     a client's own data
    home      what a client keeps on its own disk
    wire      pytrees as messages, and which messages are refused
    client    the ClientApp: the client half of any algorithm
    roster    who takes part
    scoring   how good the models are, as the clients count it
    halves    the server half of an algorithm, for uploads that come one by one
    progress  a run between two rounds, and its checkpoints
    config    the run config
    asking    messages to clients, and waiting for their answers until a deadline
    server    the ServerApp: the server half of any algorithm
    launch    starting SuperLinks, SuperNodes and runs; certificates, and a demo

Needs ``pip install 'pfedbred[flower]'``. How to run it is in docs/deploy.md.
"""
