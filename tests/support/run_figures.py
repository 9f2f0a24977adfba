"""What two runs that make the same steps have in common."""


def figures(run):
    """Metrics without what a clock or a cache decides."""

    def decided(key):
        return not (key.startswith("time/") or any(word in key for word in ("latency", "cache", "per_s")))

    return [{key: value for key, value in record.items() if decided(key)} for record in run.metrics()]
