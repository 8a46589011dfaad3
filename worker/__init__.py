"""A worker: a process that loads one instance of a registrant's callable and runs its batches.

Started by the dispatcher (`python -m pytriton.worker`), with the registrant's interpreter and search path.
Sends Hello and Ready to the dispatcher; receives batches from proxies over lanes, and answers them there.
"""

from __future__ import annotations
