"""The numbers of an inventory against sums that are made in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability
from archsplit.devicecode.model import File, Image, Inventory, Place, Unit
from archsplit.devicecode.select import Coverage, is_code, selected_images
from archsplit.devicecode.stats import (
    SizeChange,
    SizeLimits,
    compare_inventories,
    limit_findings,
    template_changes,
)
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage

if TYPE_CHECKING:
    from compiled_samples import Samples


def inspected(samples: Samples, name: str, *, kernels: bool = False) -> Inventory:
    return read_inventory(InspectRequest(subject=str(samples / name), kernels=kernels))


def test_each_gpu_has_its_coverage_and_targets(samples: Samples) -> None:
    inventory = inspected(samples, "pkg-1.0-py3-none-any.whl")
    devices = {str(each.capability): each for each in device_usage(inventory, GPU_BY_CAPABILITY)}
    services = {
        name: [service for service in Coverage if device.containers[service]]
        for name, device in devices.items()
    }
    assert services["8.0"] == [Coverage.NATIVE]
    assert services["8.9"] == [Coverage.OLDER_MINOR]
    assert services["9.0"] == [Coverage.NATIVE]
    assert services["12.0"] == [Coverage.PTX]
    assert services["7.5"] == [Coverage.NONE]
    assert [str(target) for target in devices["9.0"].targets] == ["sm_90a"]
    assert devices["7.5"].used == 0


def test_used_and_unused_images_add_up_without_link_input(samples: Samples) -> None:
    inventory = inspected(samples, "liboutside.so")
    units = [unit for unit in inventory.units() if unit.place is not Place.RELOCATABLE]
    for device in device_usage(inventory, GPU_BY_CAPABILITY):
        usable = sum(
            image.file_bytes
            for unit in units
            for image in selected_images(unit.images, device.capability)
        )
        code = sum(image.file_bytes for unit in units for image in unit.images if is_code(image))
        assert (device.used, device.unused) == (usable, code - usable)


def test_image_for_linkers_counts_for_no_gpu() -> None:
    images = [
        Image(
            kind=kind,
            kind_number=512,
            target=None,
            arch=0,
            suffix="",
            compression=Compression.NONE,
            offset=0,
            file_bytes=100,
            wheel_bytes=None,
        )
        for kind in (None, EntryKind.INDEX)
    ]
    unit = Unit(section=".nv_fatbin", place=Place.EXECUTABLE, images=tuple(images))
    file = File(path="x", size=1, wheel_bytes=None, units=(unit,))
    inventory = Inventory(path="x", sha256=None, size=1, is_wheel=False, files=(file,))
    (device,) = device_usage(inventory, [Capability(9, 0)])
    assert (device.used, device.unused) == (0, 0)
    assert limit_findings(inventory, SizeLimits(forbid=("*",))) == ()


def found(inventory: Inventory, limits: SizeLimits) -> tuple[str, ...]:
    findings = limit_findings(inventory, limits)
    assert all(one.code and one.hint for one in findings)
    return tuple(one.text for one in findings)


def changed(target: str, name: str, old: int, new: int) -> SizeChange:
    return SizeChange(target=target, name=name, old=old, new=new)


def test_changes_are_added_up_by_template_and_renamed_kernels_are_paired() -> None:
    kernels = (
        # ns::add<float>() became ns::add<float, int>() for both targets.
        changed("sm_80", "_ZN2ns3addIfEEvv", 900, 0),
        changed("sm_80", "_ZN2ns3addIfiEEvv", 0, 1000),
        changed("sm_90", "_ZN2ns3addIfEEvv", 900, 0),
        changed("sm_90", "_ZN2ns3addIfiEEvv", 0, 900),
        changed("sm_90", "_ZN2ns3addIdEEvv", 0, 50),
        changed("sm_90", "_Z5otherPf", 700, 100),
    )
    other, add = template_changes(kernels)
    assert (other.name, other.target, other.growth) == ("other", "sm_90", -600)
    assert add.name == "ns::add (3 kernels, 2 renamed)"
    assert (add.target, add.old, add.new) == ("sm_80 sm_90", 1800, 1950)
    (one,) = template_changes(changed(f"sm_{n}", "_Z5otherPf", 7, 0) for n in (80, 90, 100))
    assert one.target == "3 targets"


def test_only_size_limits_cause_findings(samples: Samples) -> None:
    damaged = File(path="x.so", size=1, wheel_bytes=None, units=(), problem="cut short")
    inventory = Inventory(path="x", sha256=None, size=1, is_wheel=False, files=(damaged,))
    assert limit_findings(inventory, SizeLimits()) == ()
    assert found(inventory, SizeLimits(budget=9)) == ("x.so: cut short",)
    assert found(inspected(samples, "libempty.so"), SizeLimits(require=("sm_90",))) == (
        "sm_90 is required; found no device code",
    )


def test_exceeding_any_size_limit_is_found(samples: Samples) -> None:
    inventory = inspected(samples, "libkernels.so", kernels=True)
    kept = SizeLimits(
        budget=10**6,
        max_targets=(("sm_*", 10**6),),
        forbid=("compute_8*",),
        require=("sm_80", "sm_9*"),
    )
    assert limit_findings(inventory, kept) == ()
    strict = SizeLimits(
        budget=1000,
        max_targets=(("sm_90a", 10), ("compute_*", 10**6)),
        forbid=("compute_*",),
        require=("sm_86",),
    )
    budget, heavy, forbidden, missing = found(inventory, strict)
    assert budget.endswith("more than its budget of 1.0 kB")
    assert heavy.startswith("sm_90a has ")
    assert forbidden.startswith("compute_90 is forbidden (compute_*), and has ")
    assert missing == "sm_86 is required; found sm_80, sm_90, sm_90a, compute_90"


def test_comparison_lists_grown_targets_and_kernels(samples: Samples) -> None:
    old = inspected(samples, "zstd.o", kernels=True)
    new = inspected(samples, "kernels.o", kernels=True)
    growth = compare_inventories(old, new)
    assert not growth.in_download
    changes = {change.target: change for change in growth.targets}
    assert changes["sm_90a"].old == 0
    assert changes["sm_90a"].growth == changes["sm_90a"].new > 0
    assert {change.target for change in growth.kernels} == {"sm_90a"}
    sizes = [abs(change.growth) for change in growth.kernels]
    assert sizes == sorted(sizes, reverse=True)


def test_two_wheels_are_compared_by_their_download(samples: Samples) -> None:
    wheel = inspected(samples, "pkg-1.0-py3-none-any.whl")
    growth = compare_inventories(wheel, wheel)
    assert growth.in_download
    assert {change.growth for change in growth.targets} == {0}
    assert sum(change.new for change in growth.targets) == sum(r.weight for r in wheel.rows())
