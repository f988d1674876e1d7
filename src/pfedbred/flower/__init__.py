"""The same algorithms on a real federation: clients are processes on other machines, and Flower carries the messages.

    local     a client's own data
    home      what a client keeps on its own disk
    wire      pytrees as messages, and which messages are refused
    client    the ClientApp: the client half of any algorithm
    roster    who takes part
    asking    messages to clients, and waiting for their answers until a deadline
    server    the ServerApp: the server half of any algorithm
    launch    starting SuperLinks, SuperNodes and runs; keys and certificates

Needs ``pip install 'pfedbred[flower]'``. How to run it is in docs/deploy.md.
"""
