"""Reads pages of HTML: well-formed they must be, and what they say in words."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree


class _Balance(HTMLParser):
    """Checks that HTML tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(page: str) -> ElementTree.Element:
    """Return the root of a page, which must be both HTML and XML, with charts that are told in words."""
    balance = _Balance()
    balance.feed(page)
    balance.close()
    assert not balance.open
    page.encode()
    head, text = page[:16], page[16:]
    assert head == "<!DOCTYPE html>\n"
    root = ElementTree.fromstring(text)
    for svg in root.iter("svg"):
        assert svg.get("role") == "img" and [child.tag for child in svg][:2] == ["title", "desc"]
        assert svg.findtext("title") and svg.findtext("desc")
        assert not re.search("nan|inf", " ".join(e.get("d", "") for e in svg.iter()))
    return root


def words(page: str) -> str:
    """Return the text of a page's body, with single blanks."""
    body = parse(page).find("body")
    assert body is not None
    return " ".join(" ".join(body.itertext()).split())


def headings(page: str) -> list[str | None]:
    """Return the headings of a page's sections."""
    return [heading.text for heading in parse(page).iter("h2")]
