"""One module per source of a model to measure, each with ``find(request) -> Workload | None``.

    settings      [probe] model, batch and step
    beside        model.py beside the config
    hydra         ``_target_`` of one of the config's sections
    timm          a name that timm knows
    diffusers     a denoiser's folder, or a pipeline's
    transformers  a folder with a config.json, or a hub id in the local cache

``find`` returns None where the config does not name such a source, and raises MeasureError where it does but something
is missing. :mod:`memlint.measure.factory` asks them in this order.
"""
