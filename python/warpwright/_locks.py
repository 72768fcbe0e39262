"""Locks of objects whose calls wait for each other.

A fork copies a lock as it is, but not the thread that holds it. So the child gives its objects new locks, and a call there
fails with the library's error instead of waiting for ever.
"""

import os
import threading
import weakref

_owners = weakref.WeakSet()


def add_lock(owner):
    """Sets the owner's _lock, here and in each forked child."""
    owner._lock = threading.Lock()
    _owners.add(owner)


def _renew():
    for owner in _owners:
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
