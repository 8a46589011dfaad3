"""`scripts/tools/simulate fleet`: a fleet on Ray of more nodes and models than any machine here can hold.

__main__   the command line and the tables     cluster  Ray and the daemons, as far as the controller sees them
life       what happens to the fleet           balancer a real HAProxy with the configuration of such a fleet

The controller is the real one, and so are its view of Ray, the nodes' actors and all that they send. The clock is
virtual, but the seconds that the controller computes pass on it, too.
"""
