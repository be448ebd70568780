from dflash_mlx.speculation.tree import Tree


def sample_tree(rows: int) -> Tree:
    """A tree of `rows` rows: a third is a chain, with branches of two nodes along it."""
    spine = rows // 3
    parents = list(range(spine))
    while len(parents) < rows - 1:
        at = len(parents) - spine
        parents.append(len(parents) if at % 2 else at // 2)
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent - 1] if parent else 0))
    tokens = tuple(range(rows - 1))
    return Tree(tokens, tuple(parents), tuple(depths), (0.0,) * (rows - 1))
