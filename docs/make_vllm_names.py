"""Makes paramtool/dialects/tables/vllm_0_33.json: which of a file's tensors the models of vLLM keep under other names.

python docs/make_vllm_names.py vllm-0.33.0-*.whl > paramtool/dialects/tables/vllm_0_33.json

The wheel comes from `pip download vllm==0.33.0 --no-deps`.  Its model files are read with `ast`; nothing is imported.
For each architecture of vLLM's registry this follows `load_weights` from the model to its children, as
`AutoWeightsLoader` does, and keeps the tables `WeightsMapper(...)` on the way.  Architectures whose way has code that
computes are listed with the place of that code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FOLDER = "vllm/model_executor/models/"
REGISTRY = FOLDER + "registry.py"
MAPS = {
    "orig_to_new_regex": "regex",
    "orig_to_new_substr": "inside",
    "orig_to_new_prefix": "prefix",
    "orig_to_new_suffix": "suffix",
    "orig_to_new_stacked": "stacked",
}
OTHERS = (
    "_LATE_INTERACTION_MODELS", "_REWARD_MODELS", "_TOKEN_CLASSIFICATION_MODELS", "_MULTIMODAL_MODELS",
    "_SPECULATIVE_DECODING_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS", "_PREVIOUSLY_SUPPORTED_MODELS",
)  # fmt: skip
"""Groups of the registry whose models are not followed; they are refused by name."""
EXPERTS = {"FusedMoEFactory", "FusedMoE"}
OTHER_FILES = {
    ("OPTForCausalLM", "decoder."): "files of OPTModel",
    ("Gemma4ForCausalLM", "model.language_model."): "files of the model with images",
    ("MixtralForCausalLM", ".gate_proj."): "files of compressed-tensors",
    ("MixtralForCausalLM", ".up_proj."): "files of compressed-tensors",
    ("MixtralForCausalLM", ".down_proj."): "files of compressed-tensors",
}
"""{(architecture, what is renamed): the files that have it}, where the files of transformers 4 have the new name."""
GROUPS = ("_TEXT_GENERATION_MODELS", "_EMBEDDING_MODELS", "_SEQUENCE_CLASSIFICATION_MODELS")


class ComputedError(Exception):
    """The tables are not all there is: code computes something."""


@dataclass
class Module:
    """A source file: its classes, and the names it imports from other files of the models."""

    path: str
    tree: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Stage:
    """What one `load_weights` does to the names below a prefix of the model."""

    prefix: str
    mapper: dict[str, list[tuple]]
    where: str


class Sources:
    """The Python files of the wheel."""

    def __init__(self, wheel: str) -> None:
        self.wheel = zipfile.ZipFile(wheel)
        self.names = set(self.wheel.namelist())
        self.modules: dict[str, Module] = {}
        self.digests: dict[str, str] = {}

    def module(self, path: str) -> Module:
        """The file, parsed."""
        if path not in self.modules:
            text = self.wheel.read(path)
            self.digests[path] = hashlib.sha256(text).hexdigest()
            tree = ast.parse(text)
            found = self.modules[path] = Module(path, tree)
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    found.classes[node.name] = node
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found.constants[node.targets[0].id] = node.value
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    for name in node.names:
                        found.imported[name.asname or name.name] = (self.resolved(path, node), name.name)
        return self.modules[path]

    def resolved(self, path: str, node: ast.ImportFrom) -> str:
        """The path of the file from which a name is imported, or an empty string."""
        base = path.split("/")[: -node.level] if node.level else []
        parts = [*base, *(node.module or "").split(".")] if node.module else base
        for candidate in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py"):
            if candidate in self.names:
                return candidate
        return ""

    def find(self, module: Module, name: str) -> tuple[Module, ast.ClassDef] | None:
        """The class of that name as the file sees it."""
        if name in module.classes:
            return module, module.classes[name]
        path, there = module.imported.get(name, ("", ""))
        return self.find(self.module(path), there) if path else None

    def constant(self, module: Module, name: str) -> tuple[Module, ast.expr] | None:
        """What the file assigns to a name at its top, or the file from which it comes."""
        if name in module.constants:
            return module, module.constants[name]
        path, there = module.imported.get(name, ("", ""))
        return self.constant(self.module(path), there) if path else None

    def lineage(self, module: Module, cls: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
        """The class and those it is made from, nearest first."""
        yield module, cls
        for base in cls.bases:
            if isinstance(base, ast.Name) and (found := self.find(module, base.id)):
                yield from self.lineage(*found)

    def member(self, module: Module, cls: ast.ClassDef, name: str) -> tuple[Module, ast.ClassDef, ast.AST] | None:
        """A method, or the value of an attribute, of the class or of one it is made from."""
        for where, one in self.lineage(module, cls):
            for node in one.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return where, one, node
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    if isinstance(target, ast.Name) and target.id == name and node.value is not None:
                        return where, one, node.value
        return None


class Mappers:
    """The values of expressions with `WeightsMapper`."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def value(self, module: Module, cls: ast.ClassDef, node: ast.AST) -> dict[str, list[tuple]]:
        """{kind of rule: rules}."""
        match node:
            case ast.Call(func=ast.Name(id="WeightsMapper")):
                return self.call(module, cls, node)
            case ast.BinOp(op=ast.BitOr()):
                left, right = self.value(module, cls, node.left), self.value(module, cls, node.right)
                return {kind: left.get(kind, []) + right.get(kind, []) for kind in {**left, **right}}
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                found = (module, cls) if owner in ("self", "cls") else self.sources.find(module, owner)
                if found and (member := self.sources.member(*found, attribute)):
                    return self.value(*member)
            case ast.Name(id=name):
                if found := self.sources.constant(module, name):
                    return self.value(found[0], cls, found[1])
            case ast.Constant(value=None):
                return {}
        raise ComputedError(f"{module.path}:{getattr(node, 'lineno', cls.lineno)}")

    def call(self, module: Module, cls: ast.ClassDef, node: ast.Call) -> dict[str, list[tuple]]:
        """The tables of one `WeightsMapper(...)`."""
        found: dict[str, list[tuple]] = {}
        for keyword in node.keywords:
            if keyword.arg not in MAPS or node.args:
                raise ComputedError(f"{module.path}:{keyword.value.lineno}")
            value = keyword.value
            if isinstance(value, ast.Name) and (constant := self.sources.constant(module, value.id)):
                value = constant[1]
            if not isinstance(value, ast.Dict):
                raise ComputedError(f"{module.path}:{keyword.value.lineno}")
            for key, target in zip(value.keys, value.values, strict=True):
                found.setdefault(MAPS[keyword.arg], []).append(self.rule(module, key, target))
        return found

    def rule(self, module: Module, key: ast.expr | None, target: ast.expr) -> tuple:
        """(what is looked for, what takes its place[, shard])."""
        if isinstance(key, ast.Call) and ast.unparse(key.func) == "re.compile":
            key = key.args[0]
        try:
            was, new = ast.literal_eval(key), ast.literal_eval(target)  # type: ignore[arg-type]
        except ValueError:
            raise ComputedError(f"{module.path}:{target.lineno}") from None
        return (was, *new) if isinstance(new, tuple) else (was, new)


class Walk:
    """The way of the names through the `load_weights` of a model."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.mappers = Mappers(sources)

    def stages(self, module: Module, cls: ast.ClassDef, prefix: str = "") -> list[Stage]:
        """From the outermost to the innermost."""
        found = self.sources.member(module, cls, "load_weights")
        if found is None:
            return []
        stages = []
        mapper = self.mapper(module, cls, found)
        if mapper:
            stages.append(Stage(prefix, mapper, f"{found[0].path.removeprefix('vllm/')}:{found[2].lineno}"))
        for name, child in self.children(module, cls):
            stages += self.stages(*child, prefix=f"{prefix}{name}.")
        return stages

    def mapper(self, module: Module, cls: ast.ClassDef, found: tuple[Module, ast.ClassDef, ast.AST]) -> dict:
        """The tables of a `load_weights` that only calls AutoWeightsLoader."""
        where, _, function = found
        place = f"{where.path.removeprefix('vllm/')}:{function.lineno}"  # type: ignore[attr-defined]
        if not isinstance(function, ast.FunctionDef):
            raise ComputedError(place)
        mapper: dict = {}
        returned = False
        for node in function.body:  # type: ignore[attr-defined]
            match node:
                case ast.Expr(value=ast.Constant()) | ast.Assign(value=ast.Call(func=ast.Name(id="AutoWeightsLoader"))):
                    continue
                case ast.Return(value=ast.Call(func=ast.Attribute(attr="load_weights")) as call):
                    returned = True
                    inner = call.func.value  # type: ignore[attr-defined]
                    if ast.unparse(inner) not in ("loader", "AutoWeightsLoader(self)", "auto_weight_loader"):
                        raise ComputedError(place)
                    for keyword in call.keywords:
                        if keyword.arg == "mapper":
                            self.check_instances(module, cls, keyword.value)
                            mapper = self.mappers.value(module, cls, keyword.value)
                case _:
                    raise ComputedError(place)
        if not returned:
            raise ComputedError(place)
        return mapper

    def check_instances(self, module: Module, cls: ast.ClassDef, node: ast.expr) -> None:
        """ComputedError if instances get a mapper of their own."""
        names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        for where, one in self.sources.lineage(module, cls):
            for found in ast.walk(one):
                match found:
                    case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]) if name in names:
                        raise ComputedError(f"{where.path.removeprefix('vllm/')}:{found.lineno}")

    def children(self, module: Module, cls: ast.ClassDef) -> Iterator[tuple[str, tuple[Module, ast.ClassDef]]]:
        """The modules that a model makes of classes of the model files, by the names of their attributes."""
        found = self.sources.member(module, cls, "__init__")
        if found is None:
            return
        where, owner, function = found
        seen = set()
        for node in ast.walk(function):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Call() as call
                ):
                    child = self.made(where, module, cls, function, call)
                    if child and name not in seen:
                        seen.add(name)
                        yield name, child
        for base in owner.bases:  # super().__init__ makes the others
            if (
                "super" in ast.dump(function)
                and isinstance(base, ast.Name)
                and (up := self.sources.find(where, base.id))
            ):
                yield from ((name, child) for name, child in self.children(*up) if name not in seen)

    def made(
        self, where: Module, module: Module, cls: ast.ClassDef, function: ast.FunctionDef, call: ast.Call
    ) -> tuple[Module, ast.ClassDef] | None:
        """The class of what a call makes."""
        match call.func:
            case ast.Name(id="init_vllm_registered_model"):
                raise ComputedError(f"{where.path.removeprefix('vllm/')}:{call.lineno}")
            case ast.Name(id=name):
                return self.sources.find(where, name) or self.default(where, function, name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if isinstance(
                (member := self.sources.member(module, cls, name) or (None, None, None))[2], ast.Name
            ):
                return self.sources.find(member[0], member[2].id)  # type: ignore[arg-type,union-attr]
            case ast.Attribute(value=ast.Name(id="self"), attr=method):
                found = self.sources.member(module, cls, method)
                if found and isinstance(found[2], ast.FunctionDef):
                    for node in ast.walk(found[2]):
                        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                            return self.made(found[0], module, cls, found[2], node.value)
        return None

    def default(self, where: Module, function: ast.FunctionDef, name: str) -> tuple[Module, ast.ClassDef] | None:
        """The class that is the default of a parameter."""
        arguments = [*function.args.posonlyargs, *function.args.args][::-1]
        pairs = [*zip(arguments, function.args.defaults[::-1], strict=False)]
        pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        for argument, value in pairs:
            if argument.arg == name and isinstance(value, ast.Name):
                return self.sources.find(where, value.id)
        return None

    def experts(self, module: Module, cls: ast.ClassDef) -> tuple[str, str, str | None] | None:
        """The names of an expert's three weights in the file, for models with FusedMoE."""
        for where in dict.fromkeys(one.path for one, _ in self.sources.lineage(module, cls)):
            tree = self.sources.module(where).tree
            found = {self.expert_names(node) for node in ast.walk(tree) if _name(node) in EXPERTS}
            if found:
                if len(found) > 1 or None in found:
                    raise ComputedError(f"{where.removeprefix('vllm/')}: names of experts")
                return found.pop()
        return None

    def not_joined(self, module: Module, cls: ast.ClassDef) -> set[str]:
        """The tensors that the file has as the model has them: `packed_modules_mapping` maps them to themselves."""
        found = self.sources.member(module, cls, "packed_modules_mapping")
        try:
            packed = ast.literal_eval(found[2]) if found else {}  # type: ignore[arg-type]
        except ValueError:
            return set()
        return {name for name, parts in (packed or {}).items() if parts == [name]}

    def tied(self, module: Module, cls: ast.ClassDef) -> tuple[str, str] | None:
        """The head and the embedding that are one parameter where the config ties them, as paths in the model."""
        for _, one in self.sources.lineage(module, cls):
            for node in ast.walk(one):
                match node:
                    case ast.Assign(
                        targets=[ast.Attribute(value=ast.Name(id="self"), attr=head)],
                        value=ast.Call(func=ast.Attribute(attr="tie_weights"), args=[argument]),
                    ) if (embedding := ast.unparse(argument)).startswith("self."):
                        return head, embedding.removeprefix("self.")
        return None

    def expert_names(self, node: ast.AST) -> tuple[str, str, str | None] | None:
        for keyword in node.keywords:  # type: ignore[attr-defined]
            if keyword.arg == "ckpt_names":
                try:
                    return ast.literal_eval(keyword.value)
                except ValueError:
                    return None
        return ("gate_proj", "down_proj", "up_proj")  # vllm/model_executor/layers/fused_moe/layer.py:125


def _name(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def architectures(sources: Sources) -> dict[str, tuple[str, str]]:
    """{architecture: (path, class)} of vLLM's registry."""
    found: dict[str, tuple[str, str]] = {}
    for group in GROUPS:
        for key, value in zip(*_items(sources.module(REGISTRY).constants[group]), strict=True):
            if key is None:  # a comprehension: architectures that stand in another group, too
                continue
            module, cls = ast.literal_eval(value)
            path = FOLDER + module + ".py" if "." not in module else module.replace(".", "/") + "/__init__.py"
            found.setdefault(ast.literal_eval(key), (path, cls))
    return found


def others(sources: Sources, known: set[str]) -> dict[str, list[str]]:
    """{group of the registry: its architectures that are in no other before it}."""
    found: dict[str, list[str]] = {}
    for group in OTHERS:
        keys = _items(sources.module(REGISTRY).constants[group])[0]
        names = {ast.literal_eval(key) for key in keys if key is not None} - known
        found[group] = sorted(names)
        known |= names
    return found


def _items(node: ast.expr) -> tuple[list, list]:
    assert isinstance(node, ast.Dict)
    return node.keys, node.values


def gathered(sources: Sources) -> tuple[dict, dict]:
    """({architecture: (stages, names of experts, tensors not joined)}, {architecture: where code computes})."""
    walk = Walk(sources)
    tables, computed = {}, {}
    for architecture, (path, name) in architectures(sources).items():
        try:
            found = sources.find(sources.module(path), name)
            if found is None:
                raise ComputedError(f"{path.removeprefix('vllm/')}: {name}")
            stages, experts = walk.stages(*found), walk.experts(*found)
            alone = walk.not_joined(*found)
            tables[architecture] = (tuple((s.prefix, s.mapper, s.where) for s in stages), experts, alone)
        except ComputedError as error:
            computed[architecture] = str(error).removeprefix("vllm/").removeprefix("model_executor/models/")
    return tables, computed


def ties(sources: Sources) -> dict[tuple[str, str], list[str]]:
    """{(head, embedding): the architectures that make one parameter of them where the config ties them}"""
    walk = Walk(sources)
    found: dict[tuple[str, str], list[str]] = {}
    for architecture, (path, name) in architectures(sources).items():
        one = sources.find(sources.module(path), name)
        if one is not None and (tie := walk.tied(*one)):
            found.setdefault(tie, []).append(architecture)
    return found


def group(architecture: str, stages: tuple, experts: tuple | None, alone: set[str]) -> tuple:
    """(renames, fused tensors, names of experts), ComputedError if a rule is more than a name or a join."""
    renames: dict[tuple[str, str], str] = {}
    fused: dict[str, dict[str, str | int]] = {}
    for prefix, mapper, where in stages:
        for kind, rules in mapper.items():
            for was, new, *shard in rules:
                if kind == "stacked":
                    if new.strip(".") in alone:
                        continue
                    fused.setdefault(new.strip("."), {})[was.strip(".")] = shard[0]
                elif new is None:  # not loaded
                    continue
                elif kind == "regex" or "A_log" in was or was.endswith("linear.weight"):
                    raise ComputedError(f"{where}: {was} becomes {new}")
                else:
                    if (architecture, was) in OTHER_FILES:
                        continue
                    before = prefix if kind == "prefix" else ""
                    renames[(before + was, before + new)] = kind
    for name, parts in fused.items():
        if [*parts.values()] not in (["q", "k", "v"], [0, 1]):
            raise ComputedError(f"{stages[0][2]}: {name} is joined of {len(parts)}")
    if (len(renames) > 2 and set(renames.values()) != {"prefix"}) or any(not new for _, new in renames):
        raise ComputedError(f"{stages[0][2]}: {len(renames)} renames, one after the other")
    return (
        tuple((was, new, kind) for (was, new), kind in renames.items()),
        tuple((name, tuple(parts)) for name, parts in fused.items()),
        experts or (),
    )


def groups(sources: Sources) -> tuple[dict[tuple, dict[str, str]], dict[str, str]]:
    """({group: {architecture: place}}, {architecture: place of what is more than names})."""
    tables, computed = gathered(sources)
    found: dict[tuple, dict[str, str]] = {}
    for architecture, (stages, experts, alone) in tables.items():
        try:
            if not stages:
                raise ComputedError("no table was found")
            one = group(architecture, stages, experts, alone)
        except ComputedError as error:
            computed[architecture] = str(error).removeprefix("model_executor/models/")
            continue
        places = [where.removeprefix("model_executor/models/") for _, _, where in stages]
        found.setdefault(one, {})[architecture] = " ".join(places)
    return found, computed


QKV = "q[(heads head_dim) in] k[(kv_heads head_dim) in] v[(kv_heads value_dim) in]"
GATED = "gate[ffn in] up[ffn in]"
STACK = "gate[experts ffn in] up[experts ffn in]"
MOE = "layers/fused_moe/unquantized_fused_moe_method.py:60"
HEAD = "lm_head.weight"
"""The head that vLLM looks for in a file: where the config ties it and the file has it, vLLM takes it for untied until
both are loaded and equal (config/model.py 1255, transformers_utils/config.py 1538, model_loader/weight_tying.py).  So
sharded_state opens a tied model that has both tensors; with one of them it misses the other, whichever that is."""
CHANGES = "it changes values: A_log becomes A = -exp(A_log) when vLLM loads it; no layout changes values"
COMPUTED = "its loading is code that does more than join and rename ({})"
WHY = {
    "_TRANSFORMERS_SUPPORTED_MODELS": "vLLM runs transformers' own class",
    "_PREVIOUSLY_SUPPORTED_MODELS": "vLLM no longer has this class",
    "_MULTIMODAL_MODELS": "the class has several towers, whose packed mappings the table does not carry",
    "_SPECULATIVE_DECODING_MODELS": "the class drafts tokens for another, and the table does not carry its mapping",
}
"""{group of the registry: why its models have no rows}"""


def family(models: list[str], places: list[str], renames: list, fused: list, names: list[str]) -> dict[str, Any]:
    """Models whose loading is names and joins, with their rows.

    Names are without the path before them and without `.weight` or `.bias`; `names` are an expert's three weights.
    """
    source = " ".join(f"models/{place}" for place in places)
    rows: list[Any] = []
    if names:
        gate, down, up = (f"{{path}}.experts.{{expert}}.{name}.{{kind}}" for name in names)
        stack = "{path}.experts.routed_experts."
        more = {"along": 1, "source": MOE}
        rows.append({"name": stack + "w13_{kind}", "parts": {"gate": gate, "up": up}, "pattern": STACK, **more})
        rows.append({"name": stack + "w2_{kind}", "parts": {"down": down}, "pattern": "down[experts out ffn]", **more})
    for name, parts in fused:
        terms = ("q", "k", "v") if len(parts) == 3 else ("gate", "up")
        templates = {term: f"{{path}}.{part}.{{kind}}" for term, part in zip(terms, parts, strict=True)}
        pattern = QKV if len(parts) == 3 else GATED
        rows.append({"name": f"{{path}}.{name}.{{kind}}", "parts": templates, "pattern": pattern, "source": source})
    for was, new, kind in renames:
        before, after = {"prefix": ("", "{rest}"), "suffix": ("{path}", "")}.get(kind, ("{path}", "{rest}"))
        rows.append([before + new + after, before + was + after])
    kinds = dict.fromkeys("qkv" if len(parts) == 3 else "gate-up" for _, parts in fused)
    caveats = {"caveats": ["kernels"]} if names else {}
    layouts = ", ".join((*kinds, *(("experts",) if names else ())))
    return {"models": models, "rows": rows, **caveats, "layouts": layouts}


def has_head(architecture: str) -> bool:
    """Whether vLLM keeps the head of a model; of LlamaModel and its like it takes the outputs before it."""
    return not architecture.endswith("Model") or architecture.endswith("LMHeadModel")


def document(
    version: str, digest: str, tied: list[tuple[str, str, list[str]]], groups: list[list], computed: dict[str, str],
    rest: dict[str, list[str]],
) -> dict[str, Any]:  # fmt: skip
    """The table: families of models with their rows, and why others have none.

    `digest` is the SHA-256 of the lines `PATH SHA-256` of the files that were read.
    """
    unread = {f"{WHY.get(of, 'the table does not carry its packed mapping')} (models/registry.py, {of})": names
              for of, names in rest.items()}  # fmt: skip
    heads = ([head, of, [name for name in names if has_head(name)]] for head, of, names in tied if head == HEAD)
    return {
        "version": version,
        "digest": digest,
        "families": [family(*group) for group in groups],
        "refused": {
            CHANGES: [name for name, place in computed.items() if "A_log" in place],
            COMPUTED: {name: place for name, place in computed.items() if "A_log" not in place},
        },
        "unread": unread,
        "tied": [one for one in heads if one[2]],
        "embeddings": {of: sorted({name for _, other, names in tied if other == of for name in names})
                       for of in dict.fromkeys(of for _, of, _ in tied)},
    }  # fmt: skip


def text(wheel: str) -> str:
    """The table, as `paramtool.dialects.template.table` reads it."""
    sources = Sources(wheel)
    found, computed = groups(sources)
    read = "".join(f"{path} {digest}\n" for path, digest in sorted(sources.digests.items()))
    made = document(
        wheel.rpartition("/")[2].split("-")[1],
        hashlib.sha256(read.encode()).hexdigest(),
        [
            (f"{head}.weight", f"{embedding}.weight", sorted(names))
            for (head, embedding), names in sorted(ties(sources).items())
        ],
        [
            [sorted(places), sorted(set(" ".join(places.values()).split())), renames, fused, experts]
            for (renames, fused, experts), places in sorted(
                found.items(), key=lambda item: (-len(item[1]), sorted(item[1]))
            )
        ],
        dict(sorted(computed.items())),
        others(sources, {*architectures(sources)}),
    )
    return written(made)


def written(made: dict[str, Any]) -> str:
    """JSON with a line for each item of an outermost list or object."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in made.items()) + "\n}\n"


def _lines(value: Any) -> str:
    """JSON with a line for each item of the outermost list or object."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n]"
    return json.dumps(value)


if __name__ == "__main__":
    print(text(sys.argv[1]), end="")
