"""What the tables can't say: settings, strings, folders. After `rename`."""
import re, subprocess, sys
from pathlib import Path
ROOT = Path(sys.argv[1]).resolve()
def sub(path, *pairs, must=True):
    p = ROOT / path
    text = p.read_text()
    for old, new in pairs:
        if old not in text:
            if must: print("POST: not found", path, repr(old))
            continue
        text = text.replace(old, new)
    p.write_text(text)
LAYERS = '''layers = [
    "archsplit.cli | archsplit.backend | (archsplit.api)",
    "archsplit.build | archsplit.split | archsplit.slim | archsplit.index | archsplit.inspect",
    "archsplit.release | archsplit.compiler",
    "archsplit.recipe",
    "archsplit.devicecode | archsplit.wheels | archsplit.nvcc | archsplit.scheduler | archsplit.cache",
    "archsplit.formats",
    "archsplit.arch",
    "archsplit.system : archsplit.errors",
]
'''
p = ROOT / "pyproject.toml"; t = p.read_text()
t = re.sub(r'\[tool\.importlinter\]\nroot_packages = .*?\n', '[tool.importlinter]\nroot_packages = ["archsplit", "archsplit_loader"]\n', t)
t = re.sub(r'layers = \[\n.*?\n\]\n', LAYERS, t, count=1, flags=re.S)
t = re.sub(r'\[\[tool\.importlinter\.contracts\]\]\nname = "Stages don\'t know each other".*?\n\n', '', t, flags=re.S)
t = t.replace('source_modules = ["plugin_loader"]\nforbidden_modules = ["splitter"]', 'source_modules = ["archsplit_loader"]\nforbidden_modules = ["archsplit"]')
t = re.sub(r'packages\.find\.include = .*\npackage-data\.splitter = (.*)\npackage-data\.plugin_loader = .*\n', '''packages.find.where = ["splitter", "plugin_loader"]
packages.find.include = ["archsplit*"]
# The C sources lie beside the Python package in the tree, and inside it in the wheel.
package-data.archsplit = \\1
package-data.archsplit_loader = ["py.typed"]
''', t)
t = re.sub(r'package-data\.splitter', 'package-data.archsplit', t)
for name in ("_install.py", "pyinstaller/*.py", "pyinstaller/hook.py", "doctor.py"):
    t = t.replace(f'"plugin_loader/{name}" =', f'"plugin_loader/archsplit_loader/{name}" =')
t = t.replace('"splitter/cli/**"', '"splitter/archsplit/cli/**"')
t = t.replace('packages = ["splitter", "plugin_loader"]\nmypy_path = ["tests"]', 'packages = ["archsplit", "archsplit_loader"]\nmypy_path = ["splitter", "plugin_loader", "tests"]')
t = t.replace('source = ["splitter", "plugin_loader"]', 'source = ["archsplit", "archsplit_loader"]')
t = t.replace('"splitter/system/run.py" =', '"splitter/archsplit/system/process.py" =').replace('splitter/archsplit/system/process.py" = ["S404", "S603", "TID251"]', 'splitter/archsplit/system/process.py" = ["S404", "S603", "TID251"]')
p.write_text(t)
for f in ("splitter/archsplit/split/core_wheel.py", "splitter/archsplit/release/plugin_wheels.py", "splitter/archsplit/release/loader_build.py"):
    sub(f, ('resources.files("plugin_loader")', 'resources.files("archsplit_loader")'), must=False)
main = ROOT / "splitter/archsplit/cli/main.py"
main.write_text(main.read_text().replace('f"splitter.cli.{', 'f"archsplit.cli.{'))
p = ROOT / "pyproject.toml"; t = p.read_text()
t = t.replace('# The C sources lie beside the Python package in the tree, and inside it in the wheel.\n', '# The folders of C are links in the tree, and real in the wheel.\n')
t = t.replace('package-data.archsplit_loader = ["py.typed"]', 'package-data.archsplit_loader = ["py.typed", "include/*.h", "src/*.c", "src/*.h", "stub/*.c"]')
p.write_text(t)
for name in ("include", "src", "stub"):
    link = ROOT / "plugin_loader" / "archsplit_loader" / name
    if not link.is_symlink(): link.symlink_to(f"../{name}")
sub("noxfile.py", ('"mypy", "splitter", "plugin_loader", "bench", "tools", "noxfile.py", "tests/conftest.py"', '"mypy", "splitter/archsplit", "plugin_loader/archsplit_loader", "bench", "tools", "noxfile.py",\n        "tests/conftest.py"'))
sub("tools/gpu_tables.py", ("splitter.arch.__path__", "archsplit.arch.__path__"), ("splitter/arch/", "splitter/archsplit/arch/"))
for f in ("bench/loader_site.py",):
    sub(f, ('/ "plugin_loader").glob("*.py")', '/ "plugin_loader" / "archsplit_loader").glob("*.py")'))

p = ROOT / "pyproject.toml"; t = p.read_text()
t = t.replace('line-length = 100\n', 'line-length = 100\nsrc = ["splitter", "plugin_loader", "tests"]\n')
p.write_text(t)

for f in ("tests/loader/loader_stubs.py", "tests/loader/loader_packs.py"):
    sub(f, ('LOADER.glob("*.py")', '(LOADER / "archsplit_loader").glob("*.py")'))


sub("tools/gpu_tables.py", ('"""Generate the tables of GPUs from ``splitter/archsplit/arch/gpus.toml``; ``--check`` compares them instead.', '"""Generate the tables of GPUs from ``archsplit/arch/gpus.toml``; ``--check`` compares them.'), must=False)
for path in ROOT.rglob("tests/**/*.py"):
    text = path.read_text()
    new = text.replace("import splitter.backend as b", "import archsplit.backend as b").replace("import splitter.cli.main;", "import archsplit.cli.main;").replace("import splitter\n", "import archsplit\n").replace("splitter.__path__", "archsplit.__path__")
    new = new.replace('"splitter.drop_in", "splitter.engine", "splitter.devicecode", "splitter.recipe"', '"archsplit.scheduler", "archsplit.devicecode", "archsplit.recipe"').replace('"-m", "splitter.cli"', '"-m", "archsplit.cli"')
    if new != text: path.write_text(new)
p = ROOT / "splitter/archsplit/cache/cache.py"; t = p.read_text()
t = t.replace("from archsplit.cache.remote import Remotes\n", "from archsplit.cache.remote import Remotes  # noqa: PLC0415\n"); p.write_text(t)
sub("tools/gpu_tables.py", ("splitter/archsplit/arch/", "archsplit/arch/"))
sub("tests/cli/test_command.py", ('"-m", "splitter", "--version"', '"-m", "archsplit", "--version"'))
