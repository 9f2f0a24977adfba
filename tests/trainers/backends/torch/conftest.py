import pytest


@pytest.fixture
def make(tiny_model):
    """Backends with one policy or more on the tiny model, closed at the end."""
    # Inside: this file is read where torch is not installed too, and the tests say themselves that they need it.
    from flat_config import with_settings
    from torch_backends import EXACT

    from coachrl.trainers.backends.torch.backend import TorchBackend

    made = []

    def build(*policies, trainable=None, model=tiny_model, loss="ppo", keep_reference=True, **settings):
        models = dict.fromkeys(policies or ("solver",), model)
        made.append(TorchBackend(models, with_settings(EXACT, **settings), trainable, loss, keep_reference))
        return made[-1]

    yield build
    for backend in made:
        backend.close()
