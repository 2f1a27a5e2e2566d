"""Wrap the lines that new names made too long: in docstrings, and f-strings on a line of their own."""
import ast, json, re, subprocess, sys
from pathlib import Path
root = Path(sys.argv[1])
out = subprocess.run(["ruff", "check", ".", "--output-format", "json", "--select", "E501"], cwd=root, capture_output=True, text=True).stdout
by = {}
for d in json.loads(out): by.setdefault(d["filename"], []).append(d["location"]["row"])
for f, rows in by.items():
    text = Path(f).read_text()
    inside = set()
    for n in ast.walk(ast.parse(text)):
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str):
            inside.update(range(n.lineno, n.end_lineno + 1))
    lines = text.split("\n")
    for row in sorted(rows, reverse=True):
        line = lines[row - 1]
        indent = re.match(r" *", line).group(0)
        if row in inside:
            if line.lstrip().startswith('"""'): print("LONG", f, row); continue
            at = line.rfind(" ", 0, 100)
            more = "    " if re.match(r"\s+\w+: ", line) else ""
            lines[row - 1 : row] = [line[:at], indent + more + line[at + 1 :]]
            continue
        m = re.match(r'(\s*)(return )?f"(.*)"$', line)
        if not m: print("LONG", f, row); continue
        body = m.group(3); at = body.rfind(" {", 0, 80) + 1
        two = [f'f"{body[:at]}"', f'f"{body[at:]}"']
        lines[row - 1 : row] = [f"{indent}return (", *[f"{indent}    {x}" for x in two], f"{indent})"] if m.group(2) else [indent + x for x in two]
    Path(f).write_text("\n".join(lines))
