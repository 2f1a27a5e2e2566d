"""Rename and merge Python modules and their names, in place, with references in all other files.

Source files are parsed with `ast`, resolved with Python's own scope rules, and changed by splicing text, so that comments and
layout survive. Imports at the top of a merged module are written anew; those inside functions are changed where they stand.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import subprocess
import tokenize
from collections import defaultdict
from pathlib import Path

BUILTINS = set(dir(builtins))


class Scope:
    def __init__(self, kind, parent, node):
        self.kind, self.parent, self.node = kind, parent, node
        self.bound, self.globals, self.nonlocals = set(), set(), set()
        self.imports = {}

    def lookup(self, name):
        """The scope that binds a name as seen from here, or None for a builtin."""
        scope, first = self, True
        while scope is not None:
            if name in scope.globals:
                while scope.parent is not None:
                    scope = scope.parent
                return scope if name in scope.bound else None
            if name in scope.bound and (first or scope.kind != "class"):
                if name not in scope.nonlocals:
                    return scope
            if scope.kind != "comp":
                first = False
            scope = scope.parent
        return None


class Binder(ast.NodeVisitor):
    """Collect scopes: which names each binds. Comprehensions and lambdas are scopes too."""

    def __init__(self, tree):
        self.module = Scope("module", None, tree)
        self.scope_of = {}   # id(node) -> scope in which a Name/def stands
        self.names = []      # (Name node, scope)
        self.uses = []       # all (node, scope)
        self.current = self.module
        for n in tree.body:
            self.visit(n)

    def bind(self, name):
        s = self.current
        if name in s.globals:
            while s.parent: s = s.parent
        s.bound.add(name)

    def inside(self, kind, node, fn):
        old, self.current = self.current, Scope(kind, self.current, node)
        fn()
        self.current = old

    def visit_Name(self, n):
        if isinstance(n.ctx, (ast.Store, ast.Del)):
            self.bind(n.id)
        self.names.append((n, self.current))

    def visit_NamedExpr(self, n):
        s = self.current
        while s.kind == "comp": s = s.parent
        old, self.current = self.current, s
        self.visit(n.target)
        self.current = old
        self.visit(n.value)

    def visit_Global(self, n):
        self.current.globals.update(n.names)

    def visit_Nonlocal(self, n):
        self.current.nonlocals.update(n.names)

    def _args(self, a):
        for x in [*a.posonlyargs, *a.args, *a.kwonlyargs] + ([a.vararg] if a.vararg else []) + ([a.kwarg] if a.kwarg else []):
            self.current.bound.add(x.arg)

    def _ann(self, a):
        for x in [*a.posonlyargs, *a.args, *a.kwonlyargs] + ([a.vararg] if a.vararg else []) + ([a.kwarg] if a.kwarg else []):
            if x.annotation: self.visit(x.annotation)
        for d in [*a.defaults, *[k for k in a.kw_defaults if k]]: self.visit(d)

    def visit_FunctionDef(self, n):
        self.bind(n.name)
        self.scope_of[id(n)] = self.current
        for d in n.decorator_list: self.visit(d)
        self._ann(n.args)
        if n.returns: self.visit(n.returns)
        def body():
            self._args(n.args)
            for b in n.body: self.visit(b)
        self.inside("function", n, body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, n):
        self._ann(n.args)
        def body():
            self._args(n.args); self.visit(n.body)
        self.inside("function", n, body)

    def visit_ClassDef(self, n):
        self.bind(n.name)
        self.scope_of[id(n)] = self.current
        for d in [*n.decorator_list, *n.bases]: self.visit(d)
        for k in n.keywords: self.visit(k.value)
        def body():
            for b in n.body: self.visit(b)
        self.inside("class", n, body)

    def _comp(self, n):
        self.visit(n.generators[0].iter)
        def body():
            for i, g in enumerate(n.generators):
                self.visit(g.target)
                if i: self.visit(g.iter)
                for c in g.ifs: self.visit(c)
            for f in ("elt", "key", "value"):
                if hasattr(n, f): self.visit(getattr(n, f))
        self.inside("comp", n, body)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comp

    def visit_ExceptHandler(self, n):
        if n.type: self.visit(n.type)
        if n.name: self.bind(n.name)
        for b in n.body: self.visit(b)

    def visit_MatchAs(self, n):
        if n.name: self.bind(n.name)
        if n.pattern: self.visit(n.pattern)

    def visit_MatchStar(self, n):
        if n.name: self.bind(n.name)

    def visit_MatchMapping(self, n):
        for k in n.keys: self.visit(k)
        for p in n.patterns: self.visit(p)
        if n.rest: self.bind(n.rest)

    def visit_Import(self, n):
        self.scope_of[id(n)] = self.current
        for a in n.names:
            self.bind(a.asname or a.name.split(".")[0])
            self.current.imports[a.asname or a.name.split(".")[0]] = ("pkg" if not a.asname else "mod", a.name, n)

    def visit_ImportFrom(self, n):
        self.scope_of[id(n)] = self.current
        for a in n.names:
            self.bind(a.asname or a.name)
            self.current.imports[a.asname or a.name] = ("from", n, a)


class File:
    def __init__(self, path, module=None):
        self.path, self.module = path, module
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.lines = self.text.encode().splitlines(keepends=True)
        starts, total = [], 0
        for l in self.lines:
            starts.append(total); total += len(l)
        self.starts = starts
        self.data = self.text.encode()
        self.binder = Binder(self.tree)

    def pos(self, line, col):
        return self.starts[line - 1] + col

    def span(self, n):
        return self.pos(n.lineno, n.col_offset), self.pos(n.end_lineno, n.end_col_offset)

    def top_defs(self):
        out = set()
        for n in self.tree.body:
            self._defs(n, out)
        return out

    def _defs(self, n, out):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): out.add(n.name)
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                for x in ast.walk(t):
                    if isinstance(x, ast.Name): out.add(x.id)
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name): out.add(n.target.id)
        elif isinstance(n, (ast.If, ast.Try)):
            for f in ("body", "orelse", "finalbody"):
                for b in getattr(n, f, []): self._defs(b, out)
            for h in getattr(n, "handlers", []):
                for b in h.body: self._defs(b, out)


class Project:
    """All files, with the modules by dotted name."""

    def __init__(self, root, roots, others):
        """roots: {package: folder of that package}; others: further files that refer to modules."""
        self.root = root
        self.files, self.modules = [], {}
        for package, folder in roots.items():
            for p in sorted((root / folder).rglob("*.py")):
                rel = p.relative_to(root / folder).with_suffix("")
                parts = [package, *rel.parts]
                if parts[-1] == "__init__": parts.pop()
                f = File(p, ".".join(parts))
                f.is_package = p.name == "__init__.py"
                self.files.append(f); self.modules[f.module] = f
        for p in others:
            f = File(p); f.is_package = False
            self.files.append(f)
        self.packages = set(roots)

    def absolute(self, f, n):
        """The dotted name of the module of a from-import."""
        if not n.level: return n.module
        base = f.module.split(".") if f.module else []
        if not f.is_package: base = base[:-1]
        base = base[: len(base) - (n.level - 1)]
        return ".".join([*base, *([n.module] if n.module else [])])

    def origin(self, module, name, depth=0):
        """Where a name that can be imported from a module is defined: ('sym', module, name) or ('mod', module)."""
        if f"{module}.{name}" in self.modules: return ("mod", f"{module}.{name}")
        f = self.modules.get(module)
        if f is None: return ("ext", module, name)
        if name in f.top_defs(): return ("sym", module, name)
        imp = f.binder.module.imports.get(name)
        if imp and imp[0] == "from" and depth < 5 and f.is_package:
            return self.origin(self.absolute(f, imp[1]), imp[2].name, depth + 1)
        if imp and imp[0] == "from" and depth < 5 and self.is_ours(self.absolute(f, imp[1])):
            # an import of a name from a module that itself imported it
            return self.origin(self.absolute(f, imp[1]), imp[2].name, depth + 1)
        return ("sym", module, name)

    def is_ours(self, module):
        return module is not None and module.split(".")[0] in self.packages


def splice(data, edits):
    out, last = [], 0
    for a, b, new in sorted(edits):
        if a < last:
            raise ValueError(f"overlapping edit {data[a:b]!r} -> {new!r}")
        out += [data[last:a], new.encode()]
        last = b
    return b"".join([*out, data[last:]])


class Transform:
    """One pass: modules to new modules, names to new names.

    module_map: {old dotted: new dotted}; order of merging is the order of the map. rename: {(old module, name): new name}.
    private: {(old module, name): new name} for what collides after a merge.
    """

    def __init__(self, project, module_map, rename, target_path, doc=None):
        self.p, self.map, self.rename = project, module_map, dict(rename)
        self.target_path = target_path
        self.doc = doc or {}
        self.problems = []
        self.groups = defaultdict(list)
        for f in project.files:
            if f.module: self.groups[self.new(f.module)].append(f)
        self._collisions()

    def new(self, module):
        return self.map.get(module, module)

    def sym(self, module, name):
        return self.rename.get((module, name), name)

    def _collisions(self):
        """Names that two merged modules both define get a qualifier; imports that collide are reported."""
        for target, files in self.groups.items():
            if len(files) < 2: continue
            owner = {}
            for f in files:
                for name in sorted(f.top_defs()):
                    if name in ("__all__", "__pure__"): continue
                    new = self.sym(f.module, name)
                    if new in owner and owner[new] is not f:
                        other = owner[new]
                        self.problems.append(f"COLLISION {target}: {new} in {other.module} and {f.module}")
                        stem = f.module.split(".")[-1]
                        fresh = f"{new}_{stem}" if new.islower() or new.startswith("_") and new.lower() == new else f"{new}{stem.title()}"
                        self.rename[(f.module, name)] = fresh
                        owner[fresh] = f
                    else:
                        owner[new] = f

    # -- references inside one file

    def local_target(self, f, scope_imports, name):
        """What a name imported in a scope is: ('sym', m, n) / ('mod', m) / ('ext',…)"""
        imp = scope_imports.get(name)
        if imp is None: return None
        if imp[0] == "from":
            module = self.p.absolute(f, imp[1])
            if not self.p.is_ours(module): return None
            return self.p.origin(module, imp[2].name)
        if imp[0] == "mod" and self.p.is_ours(imp[1]): return ("mod", imp[1])
        return None

    def import_as(self, f, target, alias):
        """(module, name, asname) to import a target under, and the local name; None for what is in the same module."""
        home = self.new(f.module) if f.module else None
        if target[0] == "sym":
            m, n = self.new(target[1]), self.sym(target[1], target[2])
            if m == home: return None, n
            old_plain = alias == target[2]
            local = n if old_plain else alias
            return (m, n, None if local == n else local), local
        new = self.new(target[1])
        if new == home: return None, ""
        parent, _, stem = new.rpartition(".")
        old_stem = target[1].rpartition(".")[2]
        local = stem if alias == old_stem and not (stem != old_stem and self._is_bound(f, stem)) else alias
        return (parent, stem, None if local == stem else local), local

    def _is_bound(self, f, name):
        """Return True if some scope of a file binds a name."""
        if not hasattr(f, "all_bound"):
            f.all_bound = {n.id for n, s in f.binder.names if isinstance(n.ctx, ast.Store)} | {
                a.arg for n in ast.walk(f.tree) if isinstance(n, ast.arguments) for a in [*n.args, *n.kwonlyargs, *n.posonlyargs]} | f.binder.module.bound
        return name in f.all_bound

    def edits(self, f, merged):
        """Edits of one file. Top-level imports of merged modules are cut out and returned."""
        edits, imports = [], []
        b = f.binder
        own = f.top_defs() if f.module else set()
        seen_names = {}
        taken = {}
        # attribute accesses on module objects, and setattr strings
        attrs = {}
        for node in ast.walk(f.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                attrs[id(node.value)] = node
        reference_names = {}
        for name, scope in b.names:
            found = scope.lookup(name.id)
            if found is None: continue
            if found is b.module and name.id in own and not (name.id in found.imports):
                new = self.sym(f.module, name.id)
                if new != name.id:
                    a, e = f.span(name); edits.append((a, e, new))
                    self._check_shadow(f, name, scope, found, new)
                continue
            target = self.local_target(f, found.imports, name.id)
            if target is None or target[0] == "ext": continue
            spec, local = self.import_as(f, target, name.id)
            if target[0] == "mod":
                attr = attrs.get(id(name))
                a, e = f.span(name)
                if attr is not None and isinstance(attr.ctx, ast.Load):
                    real = self.p.origin(target[1], attr.attr)
                    newattr = self.sym(*real[1:]) if real[0] == "sym" else attr.attr
                    if spec is None:
                        a2, e2 = f.span(attr); edits.append((a2, e2, newattr)); continue
                    if newattr != attr.attr:
                        e2 = f.span(attr)[1]
                        edits.append((e2 - len(attr.attr), e2, newattr))
                elif spec is None:
                    self.problems.append(f"{f.path}:{name.lineno}: module object {name.id} of the same module")
                if local != name.id: edits.append((a, e, local))
                continue
            if local != name.id:
                a, e = f.span(name); edits.append((a, e, local))
                self._check_shadow(f, name, scope, found, local)
        # definitions
        for node in ast.walk(f.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and b.scope_of.get(id(node)) is b.module and f.module:
                new = self.sym(f.module, node.name)
                if new != node.name:
                    line = f.pos(node.lineno, node.col_offset)
                    word = b"class " if isinstance(node, ast.ClassDef) else b"def "
                    at = f.data.index(word, line) + len(word)
                    edits.append((at, at + len(node.name.encode()), new))
            if isinstance(node, (ast.Global,)) and f.module:
                for n in node.names:
                    if self.sym(f.module, n) != n: self.problems.append(f"{f.path}:{node.lineno}: global {n}")
            if isinstance(node, ast.Call):
                self._setattr(f, node, edits)
            quoted = []
            if isinstance(node, ast.Subscript): quoted = [node.slice, *getattr(node.slice, "elts", [])]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast": quoted = node.args[:1]
            for q in quoted:
                if isinstance(q, ast.Constant) and isinstance(q.value, str) and q.value.isidentifier() and q.value[0].isupper():
                    if q.value in own and f.module: new = self.sym(f.module, q.value)
                    else:
                        tt = self.local_target(f, b.module.imports, q.value)
                        new = self.import_as(f, tt, q.value)[1] if tt and tt[0] == "sym" else q.value
                    if new != q.value:
                        a, e = f.span(q); edits.append((a, e, f'"{new}"'))
            if isinstance(node, ast.Assign) and f.module and any(isinstance(x, ast.Name) and x.id == "__all__" for x in node.targets):
                for item in getattr(node.value, "elts", []):
                    real = self.p.origin(f.module, item.value)
                    new = self.sym(*real[1:]) if real[0] == "sym" else item.value
                    if new != item.value:
                        a, e = f.span(item); edits.append((a, e, f'"{new}"'))
        # imports
        cut = []
        for node in ast.walk(f.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                scope = b.scope_of[id(node)]
                top = self._top_level(f, node)
                if merged and top:
                    imports.append((node, top)); continue
                self._import_edit(f, node, edits)
        return edits, imports

    def _check_shadow(self, f, name, scope, found, new):
        s = scope
        while s is not None and s is not found:
            if new in s.bound and new not in s.globals:
                self.problems.append(f"SHADOW {f.path}:{name.lineno}: {name.id} -> {new} is bound in a function")
                return
            s = s.parent

    def _setattr(self, f, node, edits):
        """monkeypatch.setattr(module, "name", …) and patch strings."""
        args = node.args
        if len(args) >= 2 and isinstance(args[0], ast.Name) and isinstance(args[1], ast.Constant) and isinstance(args[1].value, str):
            imp = f.binder.module.imports.get(args[0].id)
            target = self.local_target(f, f.binder.module.imports, args[0].id) if imp else None
            if target and target[0] == "mod":
                real = self.p.origin(target[1], args[1].value)
                m, n = (target[1], args[1].value) if real[0] != "sym" else real[1:]
                new = self.sym(m, n)
                if new != args[1].value:
                    a, e = f.span(args[1]); edits.append((a, e, f'"{new}"'))

    def _top_level(self, f, node):
        """'run' or 'type' for an import at the top of the module, or None."""
        if node in f.tree.body: return "run"
        for n in f.tree.body:
            if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING" and node in n.body:
                return "type"
        return None

    def specs(self, f, node):
        """What an import statement becomes: a list of (module, name, asname); module None for `import x`."""
        out = []
        if isinstance(node, ast.Import):
            for a in node.names:
                if self.p.is_ours(a.name):
                    new = self.new(a.name)
                    out.append((None, new, a.asname))
                else:
                    out.append((None, a.name, a.asname))
            return out
        module = self.p.absolute(f, node)
        for a in node.names:
            if not self.p.is_ours(module):
                out.append((module, a.name, a.asname)); continue
            target = self.p.origin(module, a.name)
            spec, _ = self.import_as(f, target, a.asname or a.name)
            if spec: 
                # a name that the code has under an alias keeps it
                out.append(spec)
        return out

    def _import_edit(self, f, node, edits):
        if isinstance(node, ast.ImportFrom) and not self.p.is_ours(self.p.absolute(f, node)): return
        if isinstance(node, ast.Import) and not any(self.p.is_ours(a.name) for a in node.names): return
        if isinstance(node, ast.ImportFrom) and node.level and f.module and self.new(f.module).split(".")[0] != "archsplit":
            return  # relative imports of what ships stay as they are
        specs = self.specs(f, node)
        if isinstance(node, ast.ImportFrom):
            was = [(self.p.absolute(f, node), x.name, x.asname) for x in node.names]
        else:
            was = [(None, x.name, x.asname) for x in node.names]
        if sorted(map(str, was)) == sorted(map(str, specs)): return
        a, e = f.span(node)
        if not specs:
            # the whole line, with its comment
            start = f.starts[node.lineno - 1]
            end = f.starts[node.end_lineno - 1] + len(f.lines[node.end_lineno - 1])
            edits.append((start, end, "")); return
        by = defaultdict(list)
        for m, n, s in specs: by[m].append((n, s))
        lines = []
        for m, names in by.items():
            for_ = [n if not s else f"{n} as {s}" for n, s in names]
            if m is None: lines += [f"import {x}" for x in for_]
            else: lines.append(f"from {m} import {', '.join(sorted(set(for_)))}")
        comment = ""
        first = f.lines[node.lineno - 1].decode()
        indent = first[: len(first) - len(first.lstrip())]
        tail = f.lines[node.end_lineno - 1][node.end_col_offset:].decode()
        if "#" in first[node.col_offset:] and node.end_lineno != node.lineno:
            comment = "  " + first[first.index("#"):].strip()
            self.problems.append(f"comment in import {f.path}:{node.lineno} {comment}")
        if "#" not in tail and node.end_lineno != node.lineno:
            notes = [l.decode() for l in f.lines[node.lineno - 1 : node.end_lineno] if b"#" in l]
            if notes and "\n".join(lines).count("#") == 0: lines[-1] += "  " + notes[0][notes[0].index("#"):].strip()
        if len(lines) > 1 and "#" in tail:
            note = "  " + tail.strip()
            lines[:-1] = [l + note for l in lines[:-1]]
        edits.append((a, e, ("\n" + indent).join(lines)))

    # -- words in comments and strings: names in backticks

    def backticks(self, text, f_names):
        def change(m):
            word = m.group(2)
            head, dot, rest = word.partition(".")
            if word in f_names: return m.group(1) + f_names[word] + m.group(3)
            if head in f_names and dot: return m.group(1) + f_names[head] + dot + rest + m.group(3)
            return m.group(0)
        return re.sub(r"(`+)([A-Za-z_][\w.]*)(`+|\()", change, text)

    def names_for_words(self, f):
        out = {}
        b = f.binder
        if f.module:
            for n in f.top_defs():
                if self.sym(f.module, n) != n: out[n] = self.sym(f.module, n)
        for n in b.module.imports:
            t = self.local_target(f, b.module.imports, n)
            if t and t[0] == "sym" and t[2] == n and self.sym(t[1], n) != n: out[n] = self.sym(t[1], n)
        for old, new in self.map.items():
            if old != new and old.count("."):
                out.setdefault(old, new)
        for (m, n), new in self.rename.items():
            out[f"{m}.{n}"] = f"{self.new(m)}.{new}"
        for m, new in self.map.items():
            fm = self.p.modules.get(m)
            if fm:
                for n in fm.top_defs():
                    out.setdefault(f"{m}.{n}", f"{new}.{self.sym(m, n)}")
        return out

    # -- output

    def run(self):
        """{path: text} of all files, and the paths that go."""
        written, gone = {}, set()
        for f in self.p.files:
            merged = bool(f.module) and len(self.groups[self.new(f.module)]) > 1
            edits, imports = self.edits(f, merged)
            if not merged:
                text = splice(f.data, dict.fromkeys(edits)).decode()
                text = self.backticks(text, self.names_for_words(f))
                path = self.target_path(self.new(f.module), f) if f.module else f.path
                written[path] = text
                if path != f.path: gone.add(f.path)
        for target, files in self.groups.items():
            if len(files) < 2: continue
            path = self.target_path(target, files[0])
            written[path] = self.merge(target, files)
            gone.update(x.path for x in files if x.path != path)
        return written, gone

    def order(self, files):
        """Merged modules with what they import when they are imported first."""
        names = {f.module: f for f in files}
        done, out = set(), []
        def visit(f, stack=()):
            if f.module in done: return
            if f.module in stack:
                self.problems.append(f"RING in {self.new(f.module)}: {' -> '.join([*stack, f.module])}"); return
            for n in f.tree.body:
                if isinstance(n, ast.ImportFrom):
                    m = self.p.absolute(f, n)
                    for a in n.names:
                        o = self.p.origin(m, a.name) if self.p.is_ours(m) else None
                        if o and o[1] in names and o[1] != f.module: visit(names[o[1]], (*stack, f.module))
            done.add(f.module); out.append(f)
        priority = list(self.map)
        for f in sorted(files, key=lambda f: priority.index(f.module) if f.module in priority else 9999): visit(f)
        return out

    def merge(self, target, files):
        run, typ, notes = {}, {}, {}
        bodies, docs = [], []
        pure = False
        for f in self.order(files):
            edits, imports = self.edits(f, True)
            edits = list(dict.fromkeys(edits))
            cuts = []
            for node, kind in imports:
                start = f.starts[node.lineno - 1]
                end = f.starts[node.end_lineno - 1] + len(f.lines[node.end_lineno - 1])
                cuts.append((start, end))
                line = f.lines[node.lineno - 1].decode()
                note = "  " + line[line.index("#"):].strip() if "#" in line else ""
                if isinstance(node, ast.ImportFrom) and node.module == "__future__": continue
                for s in self.specs(f, node):
                    (run if kind == "run" else typ).setdefault(s, f.module)
                    if note: notes[s] = note
            first = f.tree.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                docs.append(self.backticks(first.value.value.strip(), self.names_for_words(f)))
                cuts.append((f.starts[first.lineno - 1], f.starts[first.end_lineno - 1] + len(f.lines[first.end_lineno - 1])))
            for n in f.tree.body:
                if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING" and not n.orelse:
                    if all(isinstance(x, (ast.Import, ast.ImportFrom)) for x in n.body):
                        inner = [c for c in cuts if f.starts[n.lineno - 1] <= c[0] and c[1] <= f.starts[n.end_lineno - 1] + len(f.lines[n.end_lineno - 1])]
                        for c in inner: cuts.remove(c)
                        cuts.append((f.starts[n.lineno - 1], f.starts[n.end_lineno - 1] + len(f.lines[n.end_lineno - 1])))
            keep = [x for x in edits if not any(a <= x[0] and x[1] <= b for a, b in cuts)]
            text = splice(f.data, [*keep, *[(a, b, "") for a, b in cuts]]).decode()
            text = self.backticks(text, self.names_for_words(f))
            if "__pure__ = True" in text:
                pure = True
                text = re.sub(r"^__pure__ = True\n", "", text, flags=re.M)
            bodies.append(text.strip("\n"))
        local = {}
        for (m, n, s), who in {**typ, **run}.items():
            name = s or (n.split(".")[0] if m is None else n)
            if name in local and local[name][0] != (m, n): self.problems.append(f"IMPORT {target}: {name} is {local[name]} and {(m, n)} ({who})")
            local[name] = ((m, n), who)
        defined = set()
        for f in files: defined |= {self.sym(f.module, n) for n in f.top_defs()}
        for name, (what, who) in local.items():
            if name in defined: self.problems.append(f"IMPORT-DEF {target}: {name} is imported ({what}, {who}) and defined")
        for key in list(typ):
            if key in run: del typ[key]
        if any(k[1] == "TYPE_CHECKING" for k in run) is False and typ: run[("typing", "TYPE_CHECKING", None)] = target
        def show(specs, indent=""):
            out = []
            for m, n, s in sorted(specs, key=lambda x: (x[0] or "", x[1], x[2] or "")):
                tail = f" as {s}" if s else ""
                tail += notes.get((m, n, s), "")
                out.append(f"{indent}import {n}{tail}" if m is None else f"{indent}from {m} import {n}{tail}")
            return "\n".join(out)
        doc = self.doc.get(target) or "\n\n".join(docs)
        parts = [f'"""{doc}' + ("" if "\n" not in doc else "\n") + '"""', "from __future__ import annotations", show(run)]
        if typ: parts.append("if TYPE_CHECKING:\n" + show(typ, "    "))
        if pure: parts.append("__pure__ = True")
        return "\n\n".join([*parts, *[b for b in bodies if b]]) + "\n"
