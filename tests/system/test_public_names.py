"""No user name, password or query of a URL in what messages say, however ill it is written."""

import pytest

from distrff.errors import InputError
from distrff.utils.text import public_name, public_text, refuse_open_secret

# What each holds in capitals is secret.
SHOWN = {
    "s3://bucket/rows.zarr": "s3://bucket/rows.zarr",
    "s3://user:pa/Ss3CRET@bucket/x": "s3://bucket/x",
    "http://u:S3CRET PW@host/x": "http://host/x",
    "http://us er:S3CRET@host/x": "http://host/x",
    "http://u%40x:S3%2FCRET@host/x": "http://host/x",
    "http://u:S3@CRET@host/x": "http://host/x",
    "http://u:S3'CRET@host/x": "http://host/x",
    'http://u:S3"CRET@host/x': "http://host/x",
    "http://u:S3?CRET@host/x": "http://***",
    "http://u:S3#CRET@host/x": "http://***",
    "http://u:S3://CRET@host/x": "http://host/x",
    "https://S3CRET@host/x": "https://host/x",
    "https://S3CRET/KEY@host/x": "https://host/x",
    "http://u:S3CRET@[::1]:80/x": "http://[::1]:80/x",
    "https://host/x?S3CRET": "https://host/x",
    "https://host:8443/x?sig=S3CRET": "https://host:8443/x",
    "https://u:S3CRET@host/x?sig=S3CRET@S3/CRET": "https://***",
    "abfs://c@acc/x?sig=S3CRET": "abfs://acc/x",
    "abfs://c@acc/x?sig=S3CRET@S3/CRET": "abfs://acc/x",
    "abfs://c@acc/x?sig=S3 CRET": "abfs://acc/x",
    "gs://bucket/x#S3CRET": "gs://bucket/x",
    "s3://bucket/user@example.com/x": "s3://bucket/user@example.com/x",
    "abfs://c@acc/user@example.com/x": "abfs://acc/user@example.com/x",
    "simplecache::s3://u:S3CRET@bucket/x": "simplecache::s3://bucket/x",
    "zip://in.csv::https://u:S3CRET@host/x?sig=S3CRET": "zip://in.csv::https://host/x",
    "https://proxy/https://u:S3CRET@host/x": "https://proxy/https://host/x",
    "tcp://u:S3CRET@10.0.0.1:8786": "tcp://10.0.0.1:8786",
    "s3:/u:S3CRET@bucket/x": "s3:/bucket/x",  # as pathlib writes it
    "/u:S3CRET PW@host/x": "/host/x",  # as a file system strips it
    "user:pa/S3CRET@bucket/x": "bucket/x",
}


@pytest.mark.parametrize("url", SHOWN)
def test_a_url_without_its_secrets(url):
    assert public_name(url) == SHOWN[url]
    assert public_name(public_name(url)) == SHOWN[url]


@pytest.mark.parametrize("url", [url for url in SHOWN if "://" in url])
@pytest.mark.parametrize("quote", ["'", '"', "`", ""])
def test_a_url_in_a_text(url, quote):
    if not quote and "us er" in url:
        pytest.skip("a bare URL ends at a space")
    if quote and quote in url:
        quote = {"'": '"', '"': "'"}[quote]  # as Python's repr does
    told = public_text(f"403, url={quote}{url}{quote}, and s3://u:S3CRET@other/y")
    assert told.startswith(f"403, url={quote}{SHOWN[url] if quote else SHOWN[url].removesuffix('***')}")
    assert "CRET" not in told
    assert told.endswith("s3://other/y")


def test_texts_without_secrets_stay_however_long():
    for text in (
        "the scheduler at tcp://127.0.0.1:8786 has no workers; write to admin@example.com",
        "s3://bucket/x exists; pass overwrite=True or --overwrite to replace it",
        "column 'a@b' is missing in rows.csv, line 3: got 12:30",
        "do you mean https://example.org? mail me@example.org",
        "/folder/part-?.parquet",
    ):
        assert public_text(text) == text
    # It takes 0.1 s; were each colon tried with each beginning, it would take minutes.
    times = ",".join(["12:30:01"] * 1000)
    assert public_text(times) == times
    assert public_text(f"(a={times}@b") == "(a=b"


def test_what_libraries_say_of_parts_of_a_url():
    told = 'Invalid bucket name "{}bucket": it must match'
    assert public_text(told.format("u:S3CRET@")) == told.format("")
    assert public_text("nothing at bucket/x?sig=S3CRET, sorry") == "nothing at bucket/x sorry"


@pytest.mark.parametrize("url", ["s3://user:pa/Ss3cret@b/x", "memory://u:a?b@c/x", "a::http://u:a#b@c/x"])
def test_urls_of_which_a_library_would_ask_for_half_a_password(url):
    with pytest.raises(InputError, match="write %2F, %3F or %23") as caught:
        refuse_open_secret(url)
    assert "pa" not in str(caught.value).split(": ")[0]


def test_urls_that_can_be_read():
    for url in (
        *("http://localhost:9000/a@b/x", "s3://bucket/a@b", "http://u:p@host/a@b", "http://[::1]:80/a@b"),
        *("s3://arn:aws:s3:eu-west-1:1:accesspoint/n/a@b", "/a:b/c@d"),
    ):
        refuse_open_secret(url)
