"""Bars that vLLM draws are not drawn where nobody asked for them."""

import io

import pytest

pytest.importorskip("tqdm")

from tqdm import tqdm

from coachrl.trainers.backends.vllm import bars


class Own(tqdm):
    """As huggingface_hub's and vLLM's are."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **{"desc": "own", **settings})


def drawn(kind=tqdm, **settings):
    said = io.StringIO()
    assert list(kind([1, 2], file=said, **settings)) == [1, 2]
    with kind(total=2, file=said, **settings) as bar:
        bar.update(1)
        bar.set_postfix(done=1)
    return said.getvalue()


@pytest.mark.parametrize("kind", [tqdm, Own])
def test_no_bar_is_drawn_in_the_block_and_each_after_it(kind):
    with bars.hidden():
        assert drawn(kind) == drawn(kind, disable=False) == ""
    assert "2/2" in drawn(kind)
    with bars.hidden(False):
        assert "2/2" in drawn(kind)
    with pytest.raises(ZeroDivisionError), bars.hidden():
        raise ZeroDivisionError
    assert "2/2" in drawn(kind)


@pytest.mark.parametrize(
    ("level", "wanted"), [("ERROR", False), ("INFO", True), ("debug", True), ("WARNING", False), ("", False)]
)
def test_who_asks_vllm_for_notices_has_its_bars_too(monkeypatch, level, wanted):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    assert bars.wanted() is wanted
