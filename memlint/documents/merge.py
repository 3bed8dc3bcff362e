"""Laying one tree of nodes over another, as config composition does. Nothing is changed in place."""

from __future__ import annotations

from memlint import work
from memlint.documents.node import Keys, Node, Span


def moved(node: Node, keys: Keys, key_span: Span | None = None, via: tuple[Span, ...] = ()) -> Node:
    """A copy of a node for another place of the tree. ``via`` goes in front of where it has already been."""
    value = node.value
    if isinstance(value, (dict, list)):
        work.spend(work.NODE * (1 + len(value)), "copying values")
    if isinstance(value, dict):
        value = {name: moved(child, (keys, name), child.key_span, via) for name, child in value.items()}
    elif isinstance(value, list):
        value = [moved(child, (keys, index), None, via) for index, child in enumerate(value)]
    return Node(value, node.span, key_span, keys, via + node.via)


def merge(base: Node, over: Node, delete_key: str = "") -> Node:
    """``over`` on ``base``: mappings merge key by key, everything else is replaced.

    A mapping of ``over`` that has ``delete_key`` set to true replaces the base's (mmengine's ``_delete_``).
    The result sits at ``over``'s key path; keys of the base come first, in their order.
    """
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return _without(over, delete_key) if delete_key else over
    deleting = over.value.get(delete_key) if delete_key else None
    if deleting is not None and deleting.value is True:
        return _without(over, delete_key)
    work.spend(len(base.value) + len(over.value), "merging values")
    children = {}
    in_place = base.keys == over.keys
    for name, child in base.value.items():
        above = over.value.get(name)
        if above is None:
            # Compared by the base's own link, so that a long key above is not read again for every child.
            stays = in_place and child.keys == (base.keys, name)
            children[name] = child if stays else moved(child, (over.keys, name), child.key_span)
        else:
            children[name] = merge(child, above, delete_key)
    for name, child in over.value.items():
        if name not in base.value:
            children[name] = _without(child, delete_key) if delete_key else child
    return Node(children, over.span, over.key_span, over.keys, over.via)


def _without(node: Node, delete_key: str) -> Node:
    if isinstance(node.value, dict):
        children = {n: _without(c, delete_key) for n, c in node.value.items() if n != delete_key}
        return Node(children, node.span, node.key_span, node.keys, node.via)
    return node
