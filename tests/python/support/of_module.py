"""What is within an ORTModule, for tests that look."""


def pieces(net):
    """The graphs in the engine, in no order."""
    return [piece for captured in net._captured.values() for piece in captured.capture.pieces]


def piece_of(net):
    """The one graph in the engine."""
    (piece,) = pieces(net)
    return piece
