"""Makes paramtool/dialects/tables/transformers_5_24.json: how the installed transformers renames and converts tensors.

python docs/make_dialects.py -o paramtool/dialects/tables/transformers_5_24.json

The rules are read from the source of `transformers.conversion_mapping` with `ast`: nothing of it runs, and a statement
or a call that is not known here is an error, so that no rule is left out in silence.  Which models are parts of which
is asked of transformers: every class of models is built on the meta device from a small config of its defaults.  It
takes a few minutes.  Some classes need timm and scipy to be built, which the environment `zoo` of `make oracles` has;
classes that cannot be built are listed in the table.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "Chunk": (("dim", 0), ("num_shards_attribute", None)),
    "Concatenate": (("dim", 0), ("num_shards_attribute", None)),
    "Split": (("dim", 0),),
    "MergeModulelist": (("dim", 0),),
    "Interleave": (("dim", 0), ("inverse", False)),
    "Transpose": (("dim0", 0), ("dim1", 1), ("check_dims", False)),
    "PermuteForRope": (("subconfig_key", None), ("permute_layer_names", None), ("inverse", False)),
    "ErnieFuseAndSplitTextVisionExperts": (("stack_dim", 0), ("concat_dim", 1)),
    "Inkling2LoopDequantizeExperts": (),
    "Inkling2LoopMergeMessageQueries": (("inverse", False),),
    "Inkling2UnpadVocab": (("inverse", False),),
}
"""{operation: its parameters and their defaults} (core_model_loading.py of transformers 5.24.0)."""
TRANSFORMS: dict[str, tuple[tuple[str, Any], ...]] = {
    "WeightRenaming": (("source_patterns", None), ("target_patterns", None)),
    "GroupWeightRename": (("source_patterns", None), ("target_patterns", None)),
    "Inkling2IndexOffsetWeightRename": (("source_patterns", None), ("target_patterns", None), ("offset", None)),
    "PrefixChange": (("prefix_to_add", None), ("prefix_to_remove", None), ("model_prefix", None)),
    "WeightConverter": (
        ("source_patterns", None), ("target_patterns", None), ("operations", None), ("force_cpu", False),
    ),
}  # fmt: skip
KINDS = {
    "WeightRenaming": "rename", "GroupWeightRename": "group", "Inkling2IndexOffsetWeightRename": "offset",
    "PrefixChange": "prefix", "WeightConverter": "convert",
}  # fmt: skip
PAIRS = tuple(
    {"kind": "pair", "sources": [rf"layers\.(\d+)\.{old}"], "targets": [rf"layers.\1.{new}"], "offset": odd}
    for old, new, odd in (
        ("mixer", "self_attn", 0), ("mixer", "mlp", 1), ("attn_alpha", "lambda_1", 0), ("mlp_alpha", "lambda_2", 1),
    )
)  # fmt: skip
"""What `LayerPairCollapse` does (core_model_loading.py 1344): two numbered blocks of a file are one layer."""
SECONDS = 120
"""The longest that a class may take to be built."""


class Unknown(Exception):
    """A part of the source that this script does not know."""


# --- The rules -------------------------------------------------------------------------------------------------------


def source() -> str:
    """The text of `transformers.conversion_mapping`."""
    package = importlib.util.find_spec("transformers")
    assert package is not None and package.submodule_search_locations
    path = os.path.join(next(iter(package.submodule_search_locations)), "conversion_mapping.py")
    with open(path, encoding="utf-8") as file:
        return file.read()


def rules(text: str) -> tuple[dict[str, list[dict[str, Any] | list[str]]], dict[str, str]]:
    """({key: its rules}, {key: the key whose rules it has}) of the source of the mapping."""
    module = ast.parse(text)
    names: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_MODEL_TO_CONVERSION_PATTERN":
            names["_MODEL_TO_CONVERSION_PATTERN"] = value(node.value, names)
        if isinstance(node, ast.FunctionDef) and node.name == "_build_checkpoint_conversion_mapping":
            made = _run(node.body, names)
    aliases = {key: base for key, base in names["_MODEL_TO_CONVERSION_PATTERN"].items() if key not in made}
    return {key: [*map(_row, rows)] for key, rows in made.items()}, aliases


def _run(body: list[ast.stmt], names: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What `mapping` is at the end of the function, before the loop that resolves the aliases."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=given):
                names[name] = value(given, names)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key))], value=one):
                names[name][key] = value(one, names)
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=n), slice=ast.Constant(value=key)), value=more):
                names[n][key] = names[n][key] + value(more, names)
            case ast.For(iter=ast.Call(func=ast.Attribute(value=ast.Name(id="_MODEL_TO_CONVERSION_PATTERN")))):
                pass  # the aliases
            case ast.Return(value=ast.Name(id=name)):
                found: dict[str, list[dict[str, Any]]] = names[name]
                return found
            case _:
                raise Unknown(f"line {statement.lineno}: {ast.unparse(statement)[:200]}")
    raise Unknown("the function does not end with a return")


def value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What an expression of the mapping is; Unknown where it is of a kind that does not occur in 5.24.0."""
    match node:
        case ast.Constant(value=given):
            return given
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [one for item in items for one in _several(item, names)]
        case ast.Dict(keys=keys, values=values):
            if any(key is None for key in keys):
                raise Unknown(f"line {node.lineno}: a dict in a dict")
            return {value(k, names): value(v, names) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return value(left, names) + value(right, names)
        case ast.Subscript(value=of, slice=key):
            return value(of, names)[value(key, names)]
        case ast.Attribute(value=of, attr="source_patterns" | "target_patterns" as attr):
            return value(of, names)[attr.removesuffix("_patterns") + "s"]
        case ast.Attribute(value=of, attr="_original_source_patterns"):
            return value(of, names)["sources"]
        case ast.ListComp(elt=each, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=tests)]):
            inner = [{**names, name: item} for item in value(over, names)]
            return [value(each, one) for one in inner if all(value(test, one) for test in tests)]
        case ast.UnaryOp(op=ast.Not(), operand=of):
            return not value(of, names)
        case ast.Call(func=ast.Attribute(value=of, attr="startswith"), args=[start]):
            return value(of, names).startswith(value(start, names))
        case ast.Call(func=ast.Attribute(value=of, attr="copy"), args=[]):
            return list(value(of, names))
        case ast.Call(func=ast.Attribute(value=of, attr="replace"), args=[old, new]):
            return value(of, names).replace(value(old, names), value(new, names))
        case ast.Call(func=ast.Name(id=name)) if name in TRANSFORMS:
            return _transform(name, _arguments(TRANSFORMS[name], node, names))
        case ast.Call(func=ast.Name(id=name)) if name in OPERATIONS:
            return [name, *_arguments(OPERATIONS[name], node, names).values()]
    raise Unknown(f"line {node.lineno}: {ast.unparse(node)[:200]}")


def _several(node: ast.expr, names: Mapping[str, Any]) -> list[Any]:
    """What an element of a list puts into it."""
    match node:
        case ast.Starred(value=of):
            return list(value(of, names))
        case ast.Call(func=ast.Name(id="LayerPairCollapse"), args=[], keywords=[]):
            return list(PAIRS)
    return [value(node, names)]


def _arguments(parameters: tuple[tuple[str, Any], ...], call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    known = dict(parameters)
    given = {name: value(one, names) for (name, _), one in zip(parameters, call.args, strict=False)}
    given |= {str(keyword.arg): value(keyword.value, names) for keyword in call.keywords}
    if len(call.args) > len(parameters) or given.keys() - known.keys():
        raise Unknown(f"line {call.lineno}: {ast.unparse(call)[:200]}")
    return known | given


def _transform(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """A rule; what is empty is left out."""
    made: dict[str, Any] = {"kind": KINDS[name]}
    for key in ("source", "target"):
        if (patterns := given.get(f"{key}_patterns")) is not None:
            made[f"{key}s"] = [patterns] if isinstance(patterns, str) else patterns
    others = {"operations": "operations", "offset": "offset", "prefix_to_add": "add", "prefix_to_remove": "remove"}
    for key, short in (*others.items(), ("model_prefix", "under")):
        if given.get(key) is not None:
            made[short] = given[key]
    return made


def _row(rule: dict[str, Any]) -> dict[str, Any] | list[str]:
    """A rule as it is in the table: one name for another is these two."""
    patterns = [*rule.get("sources", ()), *rule.get("targets", ())]
    is_pair = rule.keys() == {"kind", "sources", "targets"} and rule["kind"] == "rename" and len(patterns) == 2
    return patterns if is_pair else rule


# --- The parts of models ---------------------------------------------------------------------------------------------


def architectures() -> dict[str, Any]:
    """{name: class} of every model of transformers that has a config."""
    import transformers

    found = {}
    for name in sorted(dir(transformers)):
        one = None if name.startswith("_") else getattr(transformers, name, None)
        if isinstance(one, type) and issubclass(one, transformers.PreTrainedModel):
            kind = getattr(one, "config_class", None)
            if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedConfig):
                found[name] = one
    return found


def parts(model: Any) -> dict[str, list[list[Any]]]:
    """{class: [[path, class, where its config is in the config of the class, its model type], ...]}, by nesting."""
    import transformers

    configs = dict(_configs(model.config))
    subs = {
        path: (type(one).__name__, one.config.model_type, _place(configs, one.config))
        for path, one in model.named_modules()
        if isinstance(one, transformers.PreTrainedModel)
    }
    found: dict[str, list[list[Any]]] = {}
    for path, (name, model_type, place) in subs.items():
        if path == "":
            continue
        parent = max((p for p in subs if p == "" or path.startswith(p + ".")), key=len)
        relative = path[len(parent) + 1 :] if parent else path
        above = subs[parent][2] or ""
        if place is None or (place != above and above and not place.startswith(above + ".")):
            key = ""  # a config that its parent builds itself
        else:
            key = place[len(above) :].removeprefix(".")
        found.setdefault(subs[parent][0], []).append([relative, name, key, model_type])
    return found


def _configs(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    import transformers

    yield place, config
    for key, one in vars(config).items():
        if isinstance(one, transformers.PreTrainedConfig):
            yield from _configs(one, f"{place}.{key}".removeprefix("."))


def _place(configs: Mapping[str, Any], config: Any) -> str | None:
    for place, one in configs.items():
        if one is config:
            return place
    same = [place for place, one in configs.items() if type(one) is type(config)]
    equal = [place for place in same if len(same) > 1 and configs[place].to_dict() == config.to_dict()]
    return next(iter(equal or same), None)


def autos() -> dict[str, dict[str, str]]:
    """{table of Auto classes: {model type: the class that it makes}}."""
    from transformers.models.auto import modeling_auto

    found = {}
    for name, table in vars(modeling_auto).items():
        if name.startswith("MODEL") and name.endswith("_MAPPING_NAMES"):
            classes = {key: one if isinstance(one, str) else next(iter(one or [""])) for key, one in table.items()}
            found[name.removesuffix("_MAPPING_NAMES")] = {key: one for key, one in classes.items() if one}
    return found


def _models(model: Any) -> list[Any]:
    """A model and those that are parts of it."""
    import transformers

    return [one for one in model.modules() if isinstance(one, transformers.PreTrainedModel)]


def _described(cls: Any, config: Any) -> dict[str, str]:
    return {"prefix": cls.base_model_prefix or "", "type": config.model_type}


def survey(of_rules: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """({class: its prefix, model type and parts}, {class: why it could not be built}).

    `of_rules` are the keys of the rules, classes among them.
    """
    from tests.dialects.asking_transformers import small

    classes = architectures()
    found: dict[str, Any] = {}
    inner_classes: dict[str, dict[str, str]] = {}
    nested: dict[str, list[list[Any]]] = {}
    unbuilt: dict[str, str] = {}
    signal.signal(signal.SIGALRM, _too_long)
    for name, cls in classes.items():
        try:
            signal.alarm(SECONDS)
            model = small(name)
            inner_classes |= {type(one).__name__: _described(type(one), one.config) for one in _models(model)}
            for inner, its in parts(model).items():
                if inner == name or inner not in nested:
                    nested[inner] = its
        except Exception as error:
            unbuilt[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
            print(f"{name}: {unbuilt[name]}", file=sys.stderr)
        finally:
            signal.alarm(0)
        found[name] = _described(cls, cls.config_class)
    for name, one in inner_classes.items():  # some that transformers does not export have rules of their own
        if name in of_rules:
            found.setdefault(name, one)
    for name, its in nested.items():
        found.setdefault(name, {"prefix": "", "type": ""})["parts"] = its
    return found, {name: why for name, why in unbuilt.items() if name not in nested}


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def with_tables(found: dict[str, Any], tables: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Parts that an Auto class makes by the model type of their config, as `@TABLE` in the place of the class."""
    order = sorted(tables, key=lambda name: (name != "MODEL", name))
    for one in found.values():
        for part in one.get("parts", ()):
            _, name, key, model_type = part
            makers = [table for table in order if tables[table].get(model_type) == name]
            if key and makers:
                part[1] = f"@{makers[0]}"
    return found


def pruned(found: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """Without parts that no rule can be of."""

    def matters(part: list[Any]) -> bool:
        return part[1][0] == "@" or part[1] in keys or part[3] in keys or bool(found.get(part[1], {}).get("parts"))

    while True:
        shorter = 0
        for one in found.values():
            before = one.get("parts", [])
            one["parts"] = [part for part in before if matters(part)]
            shorter += len(before) - len(one["parts"])
        if not shorter:
            return {name: [one["prefix"], one["type"], *one["parts"]] for name, one in sorted(found.items())}


def names(classes: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """{class: {what the rules give: what the model has}}, as templates, where the two differ."""
    from paramtool.dialects.scopes import template
    from paramtool.errors import LayoutError
    from tests.dialects.asking_transformers import config_of, has_rules, in_memory, misnamed, small

    found = {}
    for name in classes:
        try:
            model = small(name)
        except Exception:  # it is in the list of those that cannot be built
            continue
        if not has_rules(model):
            continue
        try:
            wrong = misnamed(in_memory(model), config_of(model))
        except LayoutError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if wrong:
            found[name] = {template(old): template(new) for old, new in wrong.items()}
    return found


# --- The file --------------------------------------------------------------------------------------------------------


def table() -> dict[str, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    made, aliases = rules(source())
    tables = autos()
    found, unbuilt = survey(made.keys() | aliases.keys())
    classes = pruned(with_tables(found, tables), made.keys() | aliases.keys())
    used = {part[1][1:] for one in classes.values() for part in one[2:] if part[1][0] == "@"}
    return {
        "version": transformers.__version__,
        "rules": made,
        "aliases": aliases,
        "autos": {name: tables[name] for name in sorted(used)},
        "classes": classes,
        "names": {},
        "unbuilt": unbuilt,
    }


def text(made: Mapping[str, Any]) -> str:
    """JSON with a line for each entry, so that a change of a rule is a change of a line; equal classes share one."""
    lines = []
    for key, value in made.items():
        if isinstance(value, str):
            lines.append(f"{_text(key)}:{_text(value)}")
            continue
        if key == "classes":
            rows: dict[str, list[str]] = {}
            for name, row in value.items():
                rows.setdefault(_text(row), []).append(name)
            value = {" ".join(names): json.loads(row) for row, names in rows.items()}
        entries = ",\n".join(f"{_text(name)}:{_text(one)}" for name, one in value.items())
        lines.append(f"{_text(key)}:{{\n{entries}\n}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def written(path: str, made: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text(made))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", dest="out", required=True)
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, os.path.dirname(HERE))
    made = table()
    written(out, made)
    made["names"] = names(made["classes"])  # asks paramtool, which reads what was just written
    written(out, made)
