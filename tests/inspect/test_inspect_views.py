"""Views of inventories as text, JSON and HTML."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from operator import mul
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability
from archsplit.devicecode.model import KernelRow
from archsplit.devicecode.stats import compare_inventories
from archsplit.inspect.breakdown import (
    OTHER_COLOR,
    REST_LABEL,
    breakdown,
    remaining_part,
    share_text,
    target_color,
)
from archsplit.inspect.html import PageOrigin, growth_page, inventory_page
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.inspection import growth_json, inventory_json
from archsplit.inspect.sizes import device_usage
from archsplit.inspect.text import growth_text, inventory_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from archsplit.devicecode.model import Inventory
    from compiled_samples import Samples

WHEEL = "pkg-1.0-py3-none-any.whl"


def inspected(samples: Samples, name: str, *, kernels: bool = False) -> Inventory:
    request = InspectRequest(subject=str(samples / name), kernels=kernels, digest=True, zstd=True)
    return read_inventory(request)


def printed(parts: Iterable[RenderableType], width: int = 160) -> str:
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def test_colours_tell_generations_apart() -> None:
    names = ["sm_75", "sm_80", "sm_90a", "compute_100", "sm_120f"]
    assert len({target_color(name) for name in names}) == len(names)
    assert target_color("sm_80") == target_color("compute_86") == target_color("lto_89")
    assert target_color(None) == target_color("index") == target_color("sm_990") == OTHER_COLOR


def test_parts_and_rest_add_up_to_the_size(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL)
    parts = breakdown(inventory.rows())
    rest = remaining_part(inventory.size, parts)
    assert sum(part.weight for part in (*parts, rest)) == inventory.size
    notes = [part.note for part in parts]
    assert notes == sorted(notes)
    assert share_text(1, 0) == ""


def test_the_text_says_it_at_a_glance(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL, kernels=True)
    text = printed(
        inventory_text(inventory, device_usage(inventory, GPU_BY_CAPABILITY), targets=True)
    )
    for target in ("sm_80", "sm_90", "sm_90a", "compute_90", REST_LABEL):
        assert re.search(rf"^{target} +[█▉▊▋▌▍▎▏]", text, re.MULTILINE), target
    assert "PTX for a device link" in text
    assert "9.0 H100, H200" in text
    assert "nothing in it runs on: 3.0, 3.2" in text
    assert "sm_80: 3 kernels" in text
    assert "pkg/libkernels.so" in text


def test_text_reports_a_library_without_device_code(samples: Samples) -> None:
    inventory = inspected(samples, "libempty.so")
    text = printed(inventory_text(inventory, ()))
    assert text.splitlines()[1].endswith("in all; no device code")


def test_text_reports_objects_without_registration(samples: Samples) -> None:
    inventory = inspected(samples, "rdc.o")
    text = printed(inventory_text(inventory, device_usage(inventory, GPU_BY_CAPABILITY)))
    assert "nothing in it is registered at run time" in text


def test_text_names_only_gpus_without_code(samples: Samples) -> None:
    inventory = inspected(samples, "libkernels.so")
    served = printed(inventory_text(inventory, device_usage(inventory, [Capability(9, 0)])))
    assert "nothing in it" not in served
    left_out = printed(inventory_text(inventory, device_usage(inventory, [Capability(6, 0)])))
    assert "\nA P100 finds no code here that it can run\n" in left_out
    unknown = printed(inventory_text(inventory, device_usage(inventory, [Capability(9, 9)])))
    assert "A GPU of 9.9 uses" in unknown


def test_many_kernels_are_cut_short(samples: Samples) -> None:
    (file,) = inspected(samples, "libkernels.so").files
    rows = tuple(
        KernelRow(target="sm_90", name=f"kernel_{n}", count=1, code_bytes=n) for n in range(30)
    )
    inventory = inspected(samples, "libkernels.so")
    many = type(inventory)(
        path="x",
        sha256=None,
        size=inventory.size,
        is_wheel=False,
        files=(
            type(file)(path="x", size=file.size, wheel_bytes=None, units=file.units, kernels=rows),
        ),
    )
    assert "… and 10 more kernels; --json has them all" in printed(inventory_text(many, ()))
    growth = compare_inventories(inventory, many)
    assert "… and 10 more templates of kernels that changed" in printed(growth_text(growth))


def test_text_of_growth_lists_targets(samples: Samples) -> None:
    old, new = (inspected(samples, name) for name in ("zstd.o", "kernels.o"))
    text = printed(growth_text(compare_inventories(old, new)))
    assert re.search(r"^sm_90a +0 B +\S+ kB +\+\S+ kB", text, re.MULTILINE)
    assert "kernel" not in text


def test_json_is_schema_1(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL)
    content = json.loads(inventory_json(inventory, device_usage(inventory, [Capability(9, 0)])))
    expected = [
        "schema",
        "path",
        "sha256",
        "size",
        "files",
        "totals",
        "devices",
        "other_files",
        "zstd_saves",
    ]
    assert list(content) == expected
    assert content["schema"] == 1
    first = content["files"][0]
    assert list(first) == ["path", "size", "wheel_bytes", "containers", "images"]
    image = ["kind", "target", "section", "compression", "count", "file_bytes", "wheel_bytes"]
    assert list(first["images"][0]) == list(content["totals"][0]) == image
    for key in ("count", "file_bytes", "wheel_bytes"):
        parts = sum(row[key] for file in content["files"] for row in file["images"])
        assert parts == sum(row[key] for row in content["totals"])
    (device,) = content["devices"]
    assert device["targets"] == ["sm_90a"]
    assert device["containers"]["native"] == 1


def test_json_has_existing_problems_and_kernels(samples: Samples) -> None:
    content = json.loads(inventory_json(inspected(samples, "libstripped.so", kernels=True), ()))
    (file,) = content["files"]
    assert file["problem"].startswith("it has no section headers")
    assert {kernel["target"] for kernel in file["kernels"]} == {"sm_80", "sm_90", "sm_90a"}


def test_json_of_growth_lists_old_new_and_difference(samples: Samples) -> None:
    old, new = (inspected(samples, name, kernels=True) for name in ("zstd.o", "kernels.o"))
    content = json.loads(growth_json(old, new, compare_inventories(old, new)))
    assert list(content) == ["schema", "old", "new", "unit", "targets", "kernels"]
    assert content["unit"] == "file_bytes"
    assert all(row["growth"] == row["new"] - row["old"] for row in content["kernels"])


def test_a_hostile_name_stays_text(samples: Samples, tmp_path: Path) -> None:
    name = "<script>alert(1)<script>&.so"
    path = tmp_path / name
    path.write_bytes((samples / "libkernels.so").read_bytes())
    inventory = read_inventory(InspectRequest(subject=str(path)))
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY))
    assert "alert" in page
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_the_page_asks_for_nothing_else(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL)
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY))
    assert not re.search(r"https?:|src=|href=|url\(|@import", page)
    policy = re.search(r"default-src 'none'; [^\"]*script-src 'sha256-([^']+)'", page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy is not None
    assert script is not None
    digest = hashlib.sha256(script[1].encode()).digest()
    assert base64.b64decode(policy[1]) == digest, "the browser would not run it"


def page_data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_map_of_the_page_adds_up(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL, kernels=True)
    data = page_data(inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY)))
    root = data["root"]
    assert data["measures"] == ["download", "files"]
    assert root["bytes"]["download"] == inventory.size
    for node in (root, *(part for part in root["parts"] if part["parts"])):
        for measure in data["measures"]:
            parts = [part["bytes"].get(measure, 0) for part in node["parts"]]
            assert sum(parts) == pytest.approx(node["bytes"][measure], rel=0.01)
    targets = [part for file in root["parts"] for part in file["parts"]]
    kernels = {target["target"]: target["parts"] for target in targets if target["parts"]}
    assert set(kernels) == {row.target for row in inventory.kernels()}
    assert {gpu["id"] for gpu in data["gpus"]} >= {"9.0", "12.0"}


def test_the_page_shows_the_largest_kernels_and_the_sum_of_the_others(samples: Samples) -> None:
    inventory = inspected(samples, "libkernels.so", kernels=True)
    (file,) = inventory.files
    target = file.kernels[0].target
    many = tuple(
        KernelRow(target=target, name=f"kernel{number}", count=1, code_bytes=number)
        for number in range(1, 101)
    )
    crowded = replace(inventory, files=(replace(file, kernels=many),))
    data = page_data(inventory_page(crowded, ()))
    (parts,) = (
        part["parts"]
        for file in data["root"]["parts"]
        for part in file["parts"]
        if part.get("target") == target and part["parts"]
    )
    assert [part["label"] for part in parts[:2]] == ["kernel100", "kernel99"]
    assert parts[-1]["label"] == "75 more kernels"
    assert sum(part["bytes"]["files"] for part in parts) == sum(range(101))


def test_paper_has_the_map_without_its_controls(samples: Samples) -> None:
    page = inventory_page(inspected(samples, "libkernels.so"), ())
    rule = re.search(r"@media print \{.*?\n  ([^{}]*) \{ display: none \}", page, re.DOTALL)
    assert rule is not None
    hidden = set(rule[1].split(", "))
    assert {".controls", ".note", "p.needs-script"} <= hidden
    # The map is in an element of this class, which is there with scripts only.
    assert not {".needs-script", "div.needs-script", ".map", ".legend"} & hidden


@pytest.mark.parametrize(
    ("name", "form"), [("liboutside.so", "unregistered"), ("rdc.o", "link code")]
)
def test_all_boxes_of_a_file_have_names_of_their_own(
    samples: Samples, name: str, form: str
) -> None:
    inventory = inspected(samples, name)
    page = inventory_page(inventory, ())
    file = page_data(page)["root"]["parts"][0]
    boxes = [part.get("name", part["label"]) for part in file["parts"]]
    assert len(boxes) == len(set(boxes))
    assert f"sm_80 ({form})" in boxes
    assert f"</span>sm_80 ({form})</button>" in page, "in the legend"


def test_page_names_its_command(samples: Samples) -> None:
    inventory = inspected(samples, "libkernels.so")
    origin = PageOrigin(command=("archsplit", "inspect", "a b.so"), date="2026-01-02")
    page = inventory_page(inventory, (), origin)
    assert "2026-01-02 · <code>archsplit inspect &#x27;a b.so&#x27;</code>" in page
    assert 'id="measure"' not in page, "a library has no download"


def test_page_of_growth_has_both_signs(samples: Samples) -> None:
    whole = inspected(samples, "libkernels.so", kernels=True)
    empty = replace(whole, files=())
    there, back = compare_inventories(whole, empty), compare_inventories(empty, whole)
    assert 'class="number grown"' not in growth_page(whole, empty, there)
    page = growth_page(empty, whole, back)
    assert 'class="number grown"' in page
    assert "Kernels that changed" in page
    first = back.kernels[0]
    kernels = tuple(replace(first, name=f"kernel_{number}") for number in range(600))
    many = replace(back, kernels=kernels)
    assert "and 100 more; --json has them all" in growth_page(empty, whole, many)


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(parts: Sequence[float]) -> tuple[float, float, float]:
    """Return the place of a linear color in the CIE's space of 1976, for daylight (D65)."""
    red, green, blue = (min(1.0, max(0.0, part)) for part in parts)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    cube = [part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)]
    return 116 * cube[1] - 16, 500 * (cube[0] - cube[1]), 200 * (cube[1] - cube[2])


VISIONS = {
    # Source: Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color
    # Vision Deficiency", 2009, severity 1.0.
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


@pytest.mark.parametrize("vision", VISIONS)
def test_every_reader_can_tell_generations_apart(vision: str) -> None:
    names = [f"sm_{major}0" for major in (5, 6, 7, 8, 9, 10, 11, 12)]
    places = {}
    for name in [*names, "no target"]:
        seen = [sum(map(mul, row, linear(target_color(name)))) for row in VISIONS[vision]]
        places[name] = lab(seen)
    for one, other in itertools.combinations(places, 2):
        assert math.dist(places[one], places[other]) >= 15, (one, other)


def test_the_answer_without_a_device_is_for_a_card_and_not_for_an_embedded_gpu(
    samples: Samples,
) -> None:
    inventory = inspected(samples, WHEEL)
    (card,) = device_usage(inventory, [Capability(9, 0)])
    embedded = replace(card, capability=Capability(10, 1), used=card.used + 1)
    for order in ((card, embedded), (embedded, card)):
        assert "An H100 uses" in printed(inventory_text(inventory, order))


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2.2 between two colors."""
    lights = sorted(luminance(each) for each in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(color: str) -> float:
    color = "#ffffff" if color == "#fff" else color
    red, green, blue = linear(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("color", sorted({target_color(f"sm_{n}0") for n in range(2, 14)}))
def test_white_on_every_color_can_be_read(color: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: a contrast of at least 4.5."""
    assert contrast("#fff", color) >= 4.5


def style_color(selector: str, property_name: str, indent: str = "") -> str:
    css = files("archsplit.inspect").joinpath("page.css").read_text()
    rules = re.findall(rf"^{indent}{re.escape(selector)} {{([^}}]*)}}", css, re.MULTILINE)
    (found,) = re.findall(rf"(?:^|[; ]){property_name}:[^#;]*(#\w+)", " ".join(rules))
    assert isinstance(found, str)
    return found


def test_boxes_of_a_gpu_can_be_told_apart_and_read() -> None:
    """WCAG 2.2: letters have 4.5 (1.4.3), and what a picture needs has 3 (1.4.11)."""
    used, unused, rest = (style_color(selector, "background-color") for selector in BOXES.values())
    ink, edge = style_color(".rest", "color"), style_color(EDGED, "border-color")
    assert contrast(used, unused) >= 3
    assert min(contrast(edge, each) for each in (used, unused, rest, "#fff")) >= 3
    assert contrast("#fff", used) >= 4.5
    assert min(contrast(ink, each) for each in (unused, rest)) >= 4.5


def test_boxes_of_a_gpu_can_be_told_apart_on_a_dark_page() -> None:
    boxes = {name: style_color(one, "background-color", "  ") for name, one in BOXES.items()}
    assert contrast(boxes["used"], boxes["unused"]) >= 3
    edge = style_color(EDGED, "border-color", "  ")
    assert min(contrast(edge, boxes[name]) for name in ("unused", "rest")) >= 3
    for name, box in boxes.items():
        ink = style_color(BOXES[name], "color", "  ")
        assert contrast(ink, box) >= 4.5, name
        assert contrast(box, "#ffffff") >= 2, "no white box on a dark page"


EDGED = ".tile.used, .tile.unused, .tile.rest"
BOXES = {"used": ".used", "unused": ".unused:not(tr)", "rest": ".rest"}
"""Selectors of the map's boxes, and of the legend's, which have their colors."""


def schemes() -> dict[str, dict[str, str]]:
    css = files("archsplit.inspect").joinpath("page.css").read_text()
    roots = re.findall(r":root {(.*?)}", css, re.DOTALL)
    found = [dict(re.findall(r"--(\w+): (#\w+)", root)) for root in roots]
    return dict(zip(("light", "dark"), found, strict=False))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_controls_of_a_page_can_be_told_from_it(scheme: str) -> None:
    colors = schemes()[scheme]
    for paper in (colors["paper"], colors["field"]):
        assert min(contrast(colors[name], paper) for name in ("ink", "soft")) >= 4.5
        assert min(contrast(colors[name], paper) for name in ("focus", "grown", "usable")) >= 3
    assert contrast(colors["usable"], colors["dead"]) >= 3


def test_page_opens_on_the_answer_and_has_no_folder(samples: Samples) -> None:
    inventory = inspected(samples, WHEEL)
    origin = PageOrigin(command=("archsplit", "inspect", str(samples / WHEEL)))
    page = inventory_page(inventory, device_usage(inventory, GPU_BY_CAPABILITY), origin)
    assert re.search(r'<h1 id="answer" class="headline">An? .* uses .* is for other GPUs', page)
    assert str(samples) not in page
    data = page_data(page)
    assert data["gpu"] in {gpu["id"] for gpu in data["gpus"]}
    assert data["gpus"][0]["text"].splitlines()[1::2] == [
        f"archsplit slim pkg-1.0-py3-none-any.whl --device {data['gpus'][0]['id']}",
        "archsplit split pkg-1.0-py3-none-any.whl --out split",
    ]


def test_page_of_a_library_without_device_code_has_one_sentence(samples: Samples) -> None:
    page = inventory_page(inspected(samples, "libempty.so"), ())
    assert "in all; no device code</h1>" in page
    assert '<div id="map"' not in page
