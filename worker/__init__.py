"""A worker: one process that loads one instance of a registrant's callable and runs its batches.

Started by the dispatcher (`python -m pytriton.worker`), with the registrant's interpreter and path.
Says Hello and Ready to the dispatcher; takes batches from a proxy over a lane, answers them there.
"""

from __future__ import annotations
