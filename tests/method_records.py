"""Hand-made records of methods at equal bytes, for tests of what is drawn of them: no training."""

from report_records import finished

CLICKS = {
    **{"data": "/somewhere/clicks", "objective": "log_loss", "model": "dlrm", "fingerprint": "ab" * 16},
    **{"temperature": None, "bands": None, "rounding": None, "model_budget": None},
}


def by_method(
    method, loss=0.5, *, asked, spent=None, bits=32, base_dim=4, seed=0, validation=None, **changes
):
    """A finished run of a method, which was allowed `asked` bytes of embeddings and took `spent`."""
    options = {"budget": f"{asked}B", "base_dim": base_dim, "bits": bits, **CLICKS, **changes}
    record = finished(loss, method=method, seed=seed, parameters=asked // 4 + 1000, **options)
    record.summary["embedding_bytes"] = asked if spent is None else spent
    record.summary["bits"] = bits
    if validation is not None:
        record.summary["validation"] = {"best": {"log_loss": validation}}
    return record


def comparison(*, seeds=2):
    """Four methods within 800 and 400 bytes, and the reference of 3,200; "mixed" at three widths."""
    return [
        *(by_method("uniform", 0.50 + s / 100, asked=3200, base_dim=16, seed=s) for s in range(seeds)),
        *(
            by_method(
                method, loss + 80 / asked + s / 100, asked=asked, spent=asked - 8, bits=bits, seed=s
            )
            for asked in (800, 400)
            for method, bits, loss in (
                ("uniform", 32, 0.45),
                ("mixed", 32, 0.41),
                ("cut", 32, 0.42),
                ("mixed", 8, 0.405),
            )
            for s in range(seeds)
        ),
        # Better in test, which nobody may look at.
        by_method("mixed", 0.3, asked=800, base_dim=2, validation=0.9),
        by_method("mixed", 0.3, asked=800, base_dim=8, validation=0.8),
    ]
