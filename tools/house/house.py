"""Carry out the redesign's tables: `house.py ROOT rename` moves and renames, `house.py ROOT merge` merges."""
import json, re, subprocess, sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tables
from engine import File, Project, Transform, splice
import ast

ROOT = Path(sys.argv[1]).resolve()
STATE = Path(__file__).parent / "stage.json"


def tracked(*ends):
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / x for x in out if x and x.endswith(ends) and (ROOT / x).is_file()]


def others(skip):
    return [p for p in tracked(".py") if not any(p.is_relative_to(ROOT / s) for s in skip)]


def final_map(project):
    house = tables.house(); house.update(tables.EXTRA)
    out = {}
    for old, new in house.items():
        m = "splitter." + old.replace("/", ".")
        if m in project.modules: out[m] = "archsplit." + new.replace("/", ".")
        else: print("NO SUCH MODULE", m)
    for m, f in project.modules.items():
        if m in out or not m.startswith("splitter"): continue
        parts = m.split(".")
        if f.is_package: continue
        if len(parts) == 2: out[m] = "archsplit." + parts[1]; continue
        out[m] = ".".join(["archsplit", tables.PACKAGE[parts[1]], *parts[2:]])
        print("UNLISTED", m, "->", out[m])
    return out


def first_map(project, final):
    """Each module by itself: the one with the most lines gets the name of the merged one."""
    groups = defaultdict(list)
    for m, new in final.items(): groups[new].append(m)
    out, used = {}, set(final.values())
    for new, members in groups.items():
        stem = new.rpartition(".")[2]
        main = max(members, key=lambda m: (m.rpartition(".")[2] == stem, project.modules[m].text.count("\n")))
        for m in members:
            if m == main: out[m] = new; continue
            package = new.rpartition(".")[0]
            name = f"{package}.{m.rpartition('.')[2]}"
            if name in used: name = f"{package}.{'_'.join(m.split('.')[1:])}"
            assert name not in used, name
            used.add(name); out[m] = name
    return out


def words(text, mapping, names):
    """Dotted names and paths of modules in any text."""
    paths = {}
    for old, new in mapping.items():
        if old.startswith("splitter"):
            paths[old.replace(".", "/") + ".py"] = "splitter/" + new.replace(".", "/") + ".py"
    text = re.sub(r"\bsplitter/[\w/]+\.py\b", lambda m: paths.get(m.group(0), m.group(0)), text)
    def dotted(m):
        word = m.group(0)
        if word in mapping: return mapping[word]
        head, _, tail = word.rpartition(".")
        if head in mapping: return f"{mapping[head]}.{names.get((head, tail), tail)}"
        return word
    return re.sub(r"\bsplitter(?:\.\w+)+", dotted, text)


def write(written, gone):
    for path in gone: path.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text: path.write_text(text)
    for d in sorted((ROOT / "splitter").rglob("*"), reverse=True):
        if d.is_dir() and not any(x for x in d.iterdir() if x.name != "__pycache__"):
            subprocess.run(["rm", "-rf", str(d)], check=True)


def move_definitions():
    """Give definitions of the table a module of their own; the old module imports what it still uses."""
    made = {}
    for old, names, new in tables.MOVES:
        path = ROOT / "splitter" / f"{old}.py"
        f = File(path, "splitter." + old.replace("/", "."))
        taken, used = [], set()
        for n in f.tree.body:
            defined = set(); f._defs(n, defined)
            if not defined & set(names): continue
            first = min([n.lineno, *[d.lineno for d in getattr(n, "decorator_list", [])]])
            while f.lines[first - 2].startswith(b"#"): first -= 1
            taken.append((f.starts[first - 1], f.starts[n.end_lineno - 1] + len(f.lines[n.end_lineno - 1])))
            used |= {x.id for x in ast.walk(n) if isinstance(x, ast.Name)}
        if not taken: print("NOTHING TO MOVE", old, names); continue
        text = b"".join(f.data[a:b] + b"\n\n" for a, b in taken).decode()
        head = []
        for n in f.tree.body:
            if isinstance(n, (ast.Import, ast.ImportFrom)) or (isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"):
                a, b = f.span(n); head.append(f.data[a:b].decode())
        back = sorted((used & f.top_defs()) - set(names))
        if back: head.append(f"from {f.module} import {', '.join(back)}")
        target = ROOT / "splitter" / f"{new}.py"
        doc = f'"""Moved from {f.module}."""\n\n'
        if target in made:
            was = target.read_text().replace("from __future__ import annotations\n", "from __future__ import annotations\n\n" + "\n".join(h for h in head if "__future__" not in h) + "\n", 1)
            target.write_text(was + "\n\n" + text)
        else:
            target.write_text(doc + "\n".join(head) + "\n\n\n" + text)
        made[target] = True
        rest = splice(f.data, [(a, b, "") for a, b in taken]).decode()
        line = f"from splitter.{new.replace('/', '.')} import {', '.join(sorted(names))}\n"
        at = rest.index("from __future__ import annotations\n") + len("from __future__ import annotations\n")
        path.write_text(rest[:at] + "\n" + line + rest[at:])
    subprocess.run(["ruff", "check", "-q", "--fix", "--select", "F401,I001,E402,F811,TC", "--unsafe-fixes", *map(str, made)], cwd=ROOT)


def rename():
    move_definitions()
    p = Project(ROOT, {"splitter": "splitter", "plugin_loader": "plugin_loader"}, others(("splitter", "plugin_loader")))
    final = final_map(p)
    first = first_map(p, final)
    names = {("splitter." + m.replace("/", "."), o): n for (m, o), n in tables.pairs(tables.RENAMES).items()}
    private = {("splitter." + m.replace("/", "."), o): n for (m, o), n in tables.pairs(tables.PRIVATE).items()}
    names.update(private)
    for (m, o) in list(names):
        f = p.modules.get(m)
        if f is None or o not in f.top_defs(): print("NO SUCH NAME", m, o); del names[(m, o)]
    drop = [f for f in p.files if f.module and f.module.startswith("splitter") and f.is_package]
    for f in drop: p.files.remove(f)
    mapping = {**first, **{m: "archsplit_loader" + m.removeprefix("plugin_loader") for m in p.modules if m.startswith("plugin_loader")},
               **{f.module: "archsplit" + f.module.removeprefix("splitter") for f in drop if f.module.count(".") == 0}}
    def target(module, f):
        if module.startswith("archsplit_loader"):
            return ROOT / "plugin_loader" / "archsplit_loader" / f.path.relative_to(ROOT / "plugin_loader")
        return ROOT / "splitter" / (module.replace(".", "/") + ".py")
    t = Transform(p, mapping, names, target)
    written, gone = t.run()
    for x in sorted(set(t.problems)): print(x)
    for path in list(written): written[path] = words(written[path], mapping, names)
    for module, doc in tables.DOCS.items():
        written[ROOT / "splitter" / module.replace(".", "/") / "__init__.py"] = f'"""{doc}"""\n'
    root_init = ROOT / "splitter" / "__init__.py"
    written[ROOT / "splitter" / "archsplit" / "__init__.py"] += root_init.read_text().partition('"""\n')[2].partition('"""\n')[2] if root_init.read_text().count('"""\n') > 1 else root_init.read_text().partition('"""\n')[2]
    for path in tracked(".toml"):
        if path.is_relative_to(ROOT / "splitter"):
            new = ROOT / "splitter" / "archsplit" / tables.PACKAGE[path.parent.name] / path.name
            new.parent.mkdir(parents=True, exist_ok=True); path.rename(new)
    gone.update(f.path for f in drop)
    gone -= set(written)
    for path in tracked(".md", ".toml", ".json", ".c", ".h", ".yml", ".yaml", ".txt", ".sh", "run"):
        old = path.read_text(); new = words(old, {k: final.get(k, v) for k, v in mapping.items()}, names)
        if new != old: written[path] = new
    (ROOT / "splitter" / "archsplit").mkdir(exist_ok=True)
    for old_name, new_name in (("splitter/py.typed", "splitter/archsplit/py.typed"), ("plugin_loader/py.typed", "plugin_loader/archsplit_loader/py.typed")):
        (ROOT / new_name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / old_name).rename(ROOT / new_name)
    write(written, gone)
    STATE.write_text(json.dumps({first[m]: final[m] for m in final}))


def merge():
    p = Project(ROOT, {"archsplit": "splitter/archsplit"}, others(("splitter",)))
    mapping = json.loads(STATE.read_text())
    mapping = {m: n for m, n in mapping.items() if m in p.modules}
    def target(module, f):
        if f.is_package: return f.path
        return ROOT / "splitter" / (module.replace(".", "/") + ".py")
    t = Transform(p, mapping, {}, target)
    written, gone = t.run()
    for x in sorted(set(t.problems)): print(x)
    def dotted(text):
        return re.sub(r"\barchsplit(?:\.\w+){2,}", lambda m: mapping.get(m.group(0)) or (
            mapping.get(m.group(0).rpartition(".")[0], m.group(0).rpartition(".")[0]) + "." + m.group(0).rpartition(".")[2]), text)
    for path in written: written[path] = dotted(written[path])
    for path in tracked(".md", ".toml", ".json", ".c", ".h", ".yml", ".yaml", ".txt", ".sh"):
        old = path.read_text(); new = dotted(old)
        if new != old: written[path] = new
    write(written, gone)

{"rename": rename, "merge": merge}[sys.argv[2]]()
