"""The layer as its formula: a Python loop over features and blocks, each with a table of its own.

It shares no code with the layer. Its weights can be laid out the way the layer packs them: by width,
whole features first, then bands, in the order of the plan.
"""

import torch


class LoopEmbeddings:
    def __init__(self, plan, *, generator, dtype=torch.float64):
        self.plan = plan

        def weight(*shape):
            return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

        self.tables = [
            [weight(b.size, b.dim) if b.dim else weight(1, plan.base_dim) for b in f.blocks]
            for f in plan.features
        ]
        self.projections = [
            [weight(b.dim, plan.base_dim) if 0 < b.dim < plan.base_dim else None for b in f.blocks]
            for f in plan.features
        ]

    def vector(self, feature, rank):
        """The vector of one row: (base_dim,)."""
        for number, block in enumerate(self.plan.features[feature].blocks):
            if block.start <= rank < block.start + block.size:
                row = self.tables[feature][number][rank - block.start if block.dim else 0]
                projection = self.projections[feature][number]
                return row if projection is None else row @ projection
        raise AssertionError("the blocks of a plan cover all rows")

    def __call__(self, ids):
        """One id for each sample and feature: (batch, features) -> (batch, features, base_dim)."""
        shape = (*ids.shape, self.plan.base_dim)
        vectors = [self.vector(f, int(rank)) for sample in ids for f, rank in enumerate(sample)]
        return torch.stack(vectors).view(shape) if vectors else torch.zeros(shape, dtype=torch.float64)

    def packed(self, of=lambda parameter: parameter):
        """All parameters (or what `of` takes from them, such as gradients) by the layer's names."""
        blocks = [
            (block, table, projection)
            for want_bands in (False, True)
            for feature, tables, projections in zip(
                self.plan.features, self.tables, self.projections, strict=True
            )
            if (len(feature.blocks) > 1) == want_bands
            for block, table, projection in zip(feature.blocks, tables, projections, strict=True)
        ]
        state, lift = {}, []
        for width in sorted({block.dim for block, _, _ in blocks}, reverse=True):
            group = [entry for entry in blocks if entry[0].dim == width]
            state[f"table_{width}"] = torch.cat([of(table) for _, table, _ in group])
            lift += [of(p) for _, _, p in group if p is not None]
        return state | ({"lift": torch.cat(lift)} if lift else {})

    def gradients(self):
        """Gradients by the layer's names, zero where nothing was looked up."""
        return self.packed(lambda p: torch.zeros_like(p) if p.grad is None else p.grad)
