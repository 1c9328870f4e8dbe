"""A page as a tree of elements that tells what stands where."""

from html.parser import HTMLParser

VOID = {"br", "img", "input", "link", "meta", "hr"}
INLINE = {"a", "b", "i", "u", "em", "small", "span", "code", "strong", "sub", "sup"}
UNREAD = {"script", "style", "head", "svg"}


class Element:
    def __init__(self, tag, attributes=()):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    @property
    def classes(self):
        return self.attributes.get("class", "").split()

    def all(self, tag=None, kind=None):
        """Elements below, in order, with this tag and this class."""
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag) and (kind is None or kind in child.classes):
                    yield child
                yield from child.all(tag, kind)

    def one(self, tag=None, kind=None):
        [element] = self.all(tag, kind)
        return element

    def text(self, leave=lambda element: False):
        """Running text, pictures and the elements to leave aside excluded."""
        if self.tag in UNREAD or leave(self):
            return ""
        text = "".join(c if isinstance(c, str) else c.text(leave) for c in self.children)
        return text if self.tag in INLINE else f" {text} "

    def words(self, leave=lambda element: False):
        return len(self.text(leave).split())


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [Element("page")]

    def handle_starttag(self, tag, attributes):
        element = Element(tag, attributes)
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, attributes))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(text):
    """The tree of a page; AssertionError where an element is not closed."""
    reader = _Reader()
    reader.feed(text)
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is not closed"
    return reader.open[0]


def folded(page):
    """Tells an element that a reader does not see before opening a fold or another tab."""
    panes = [pane for tabs in page.all(kind="tabs") for pane in list(tabs.all(kind="pane"))[1:]]
    closed = [
        child
        for fold in page.all("details")
        for child in fold.children
        if isinstance(child, Element) and child.tag != "summary"
    ]
    hidden = {id(element) for element in [*panes, *closed]}
    return lambda element: id(element) in hidden
