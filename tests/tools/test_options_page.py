"""docs/options.md is what the declarations of the options say."""

import options_page


def test_the_page_of_options_is_what_the_code_declares():
    page = options_page.PAGE.read_text()
    assert page == options_page.page(), "run `python tools/options_page.py`"
