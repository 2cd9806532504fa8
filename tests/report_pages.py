"""What tests of the report share: records to report, a page taken apart, text that tries to get out."""

import base64
from html.parser import HTMLParser

from report_records import failed, finished, synthetic

HOSTILE = (
    """</script><script>document.title="owned"</script><img src=x onerror='document.title="owned"'>"&"""
)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SQUARE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
)


class Page(HTMLParser):
    """The elements of a page, and the text of each kind of element."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def sweep():
    """Two data sets, two models, two temperatures, two sizes, three seeds; and a failure."""
    clicks = {
        "data": "clicks",
        "objective": "log_loss",
        "model": "dlrm",
        "bands": 1,
        "fingerprint": "ab" * 16,
    }
    return [
        *(
            synthetic(finished(0.5 - t / 10 + s / 100 - p / 1e6, seed=s, temperature=t, parameters=p,
                               base_dim=p // 1000, **clicks), 0.4)
            for t in (0.0, 0.3) for p in (10_000, 40_000) for s in (0, 1, 2)
        ),
        *(
            finished(0.9 - t / 10 + s / 100, model=m, seed=s, temperature=t)
            for m in ("mf", "ncf") for t in (0.0, 0.3) for s in (0, 1)
        ),
        failed("MemoryError: 9 GB\nare too much", model="ncf", base_dim=4096),
    ]  # fmt: skip
