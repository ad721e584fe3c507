"""What is within an ORTModule, for tests that look."""


def compiled_graphs(net):
    """The graphs in the engine, in no order."""
    return [graph for module in net._steep_captured.values() for graph in module.graphs]


def compiled_graph(net):
    """The one graph in the engine."""
    (graph,) = compiled_graphs(net)
    return graph
