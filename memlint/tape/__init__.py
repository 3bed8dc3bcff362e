"""Tape -> Estimate: phases, allocator, breakdown, device overhead, interval."""
