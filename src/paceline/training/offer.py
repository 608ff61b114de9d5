"""What a worker brings to the start of a run: what its script gave `prepare`, and how to make a store of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.core.machine import Outer
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import Offered
from paceline.store.chunks import chunks_at, cuts_of
from paceline.store.store import Store, scalars_of
from paceline.training.arguments import Arguments, Options
from paceline.training.data.orders import Orders
from paceline.training.device import accelerator
from paceline.training.layout import Layout, Places
from paceline.training.link import Link, Offer
from paceline.training.model.evaluating import measure_of, metric_names


def offer_of(
    link: Link, layout: Layout, given: Arguments, options: Options, passes: int | None, plateaus: int
) -> Offer:
    """Return the offer.

    `passes`: see `leased_passes`. `plateaus`: how many schedulers are stepped by metrics. Raises ConfigError if the
    sampler gives what workers can't compare.
    """
    model, optimizer, loader, clip = given.model, given.optimizer, given.loader, options.clip
    leased = passes is not None
    own_streams = loader is not None and isinstance(loader.dataset, IterableDataset)
    samples = Orders(loader.batch_sampler, link.seed, link.pieces).samples() if leased and link.wants_work else None
    device = accelerator.device_of(given.optimized)
    workers = link.workers

    def make_store(
        region: Region, slots: int, areas: int, sums: int, outer: Outer | None, within: tuple[int, int]
    ) -> Store:
        return Store.of(model, optimizer, Places(layout, region, slots, workers, areas, sums), outer, within, clip)

    cuts, chunks = cuts_of(layout, optimizer, whole=clip is not None and clip.norm is not None), chunks_at(layout)
    names = metric_names(options.evaluate, model) if options.evaluate is not None and link.wants_metrics else None
    offered = Offered(
        forms=layout.forms,
        fixed_bytes=layout.fixed_bytes,
        slot_bytes=layout.slot_bytes,
        push_bytes=layout.push_bytes,
        flags_bytes=len(layout.moving),
        buffers_bytes=layout.buffers_bytes,
        cuts=cuts,
        chunks=[] if chunks == cuts else chunks,
        starts=layout.starts,
        encoded_cuts=[] if layout.encoding is None else layout.encoding.cuts(cuts, layout.encoded_offset),
        encoded_starts=[] if layout.encoding is None else layout.encoding.cuts(layout.starts, layout.encoded_offset),
        state_bytes=state_bytes(optimizer, layout),
        model_bytes=sum(entry.count * entry.dtype.itemsize for entry in layout.moving),
        optimizer=type(optimizer).__name__,
        scalars=scalars_of(optimizer),
        device="" if device is None else accelerator.name_of(device),
        deterministic=device is None or accelerator.is_deterministic(),
        loads=leased,
        epoch_samples=samples,
        passes=passes or 1,
        data=_length(loader) if leased else None,
        streams=own_streams,
        shared_stream=None if leased or own_streams or loader is None else type(loader).__name__,
        epochs=link.epochs or options.epochs,
        buffers=options.buffers,
        shards=options.shards,
        evaluates=options.evaluate is not None,
        keeps=bool(options.keep or given.schedulers),
        clip_grad_norm=None if clip is None else clip.norm,
        clip_grad_value=None if clip is None else clip.value,
        plateaus=plateaus,
        metrics=names,
    )
    measure = measure_of(model, options.evaluate, link.seed)
    return Offer(offered=offered, make_store=make_store, evaluate=options.evaluate, measure=measure)


def state_bytes(optimizer: torch.optim.Optimizer, layout: Layout) -> int:
    """Bytes that the optimizer's state will take: at most three tensors a parameter, for torch's own optimizers."""
    stateless = isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups)
    one = isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad)
    # Adam's largest second moments; RMSprop's mean gradient and momentum, beside its mean square
    three = any(g.get("amsgrad") or (g.get("centered") and g.get("momentum")) for g in optimizer.param_groups)
    return layout.slot_bytes * (0 if stateless else 1 if one else 3 if three else 2)


def _length(loader: DataLoader[Any]) -> int | None:
    """Samples in the loader's data; None if the data does not say."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # whatever a user's class raises: most likely it has no such method
        return None
