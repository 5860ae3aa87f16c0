"""YAML in which a key may be given once."""

from typing import Any

import yaml


class UniqueKeyLoader(yaml.SafeLoader):
    """The safe loader, which builds plain values only, refusing a key given twice: YAML would keep the last of them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if str(key_node.value) in seen:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(str(key_node.value))
        return super().construct_mapping(node, deep)
