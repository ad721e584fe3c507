"""What methods of an object that forward makes do outside of it, as in eager PyTorch."""

import pytest

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402


def make_class():
    """Return a class whose methods share variables with this function, and these variables."""
    log, seen, scale = [], {}, [1.0]

    class Recorder:
        def __init__(self):
            log.append("made")

        def __enter__(self):
            log.append("entered")

        def __exit__(self, *error):
            log.append("left")

        def __call__(self):
            log.append("called")

        def __add__(self, other):
            log.append(other)

        def __len__(self):
            log.append("measured")
            return 1

        @staticmethod
        def plain():
            seen["plain"] = len(log)

        @classmethod
        def of_class(cls):
            log.append("class")

        @property
        def property(self):
            log.append("property")

        def touch(self, defaults=[]):  # noqa: B006
            defaults.append(len(log))
            seen["touched"] = [*defaults]

        def factor(self):
            return scale[0]

    return Recorder, (log, seen, scale)


def enter(recorder):
    with recorder():
        pass


USES = {
    "made": lambda recorder: recorder(),
    "entered": enter,
    "called": lambda recorder: recorder()(),
    "operator": lambda recorder: recorder() + 1,
    "length": lambda recorder: len(recorder()),
    "static method": lambda recorder: recorder().plain(),
    "class method": lambda recorder: recorder().of_class(),
    "property": lambda recorder: recorder().property,
    "method": lambda recorder: recorder().touch(),
    "two objects": lambda recorder: [r.touch() for r in (recorder(), recorder())],
}


class Used(torch.nn.Module):
    def __init__(self, use):
        super().__init__()
        self.use, self.weight = use, torch.nn.Parameter(torch.ones(3))
        self.recorder, self.held = make_class()

    def forward(self, x):
        self.use(self.recorder)
        return x * self.weight * self.recorder().factor()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_variables_of_the_function_around_a_class(use):
    found = []
    for wrap in (lambda m: m, ORTModule):
        module = Used(use)
        net, results = wrap(module), []
        for k in range(3):
            results.append((net(torch.ones(3)).tolist(), repr(module.held)))
            module.held[2][0] = k + 2.0
            module.held[0].clear()
        found.append(results)
    assert found[1] == found[0]
