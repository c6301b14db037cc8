"""An engine in virtual time whose physics are its own: what the product's diagnosis is judged by.

No sockets, no sleeping. The hidden truth (`truth`) is drawn from a seed; the time of a step is
summed up kernel by kernel (`machine`); a scheduler batches as vLLM's does (`engine`); what comes
out is what a user of a real engine sees (`Request`, `Engine.page`, `Engine.gpu`). Nothing here
may be taken from the product's own formulas: a simulator that shares an error with what it
tests shows nothing.
"""
