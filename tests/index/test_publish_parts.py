"""The parts: reports, places, attestations, patience, and what twine is told."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import ssl
import subprocess
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from publish_samples import SECRET, Asked, FakeClock, Fault, Scene

from archsplit.errors import (
    IndexRefusedError,
    IndexUnreachableError,
    InputError,
    ToolFailedError,
    TryLaterError,
    UsageError,
    VerifyError,
)
from archsplit.index.client import Index, IndexFile, find_repository, index_address
from archsplit.index.preflight import check_descriptions, preflight_check
from archsplit.index.release import CORE, PLUGIN, SOURCE, read_release
from archsplit.index.retry import Clock, RetryableError, RetryPolicy, utc_text
from archsplit.index.state import ReadBack
from archsplit.index.static_update import new_wheels
from archsplit.index.upload import TwineResult
from archsplit.release.completeness import CheckOptions
from archsplit.release.report import (
    REPORT_FILE,
    BuildDetails,
    Plugin,
    Release,
    ReleaseWheel,
    read_report,
)
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.findings import DescriptionCheck
    from archsplit.release.report import Role

SPLIT = "archsplit-report.json"
ANYTHING = CheckOptions(install=False)


def retry_policy(clock: FakeClock, seconds: float = 10) -> RetryPolicy:
    return RetryPolicy(seconds=seconds, clock=clock, note=lambda _: None)


def build_report(dist: Path, *roles: tuple[str, str], build: str = "b" * 64) -> None:
    """Write the report that ``archsplit build`` would write for some wheels."""
    wheels = tuple(
        ReleaseWheel(
            file=name,
            role=cast("Role", role),
            distribution="",
            size=(dist / name).stat().st_size,
            sha256=sha256(dist / name),
        )
        for name, role in roles
    )
    report = Release(
        project="toyfat",
        version="1.0",
        build_id=build,
        interface_hash="",
        build=BuildDetails(epoch=0, targets=()),
        wheels=wheels,
    )
    (dist / REPORT_FILE).write_text(report.as_json())


def test_only_reported_files_are_published(scene: Scene) -> None:
    shutil.copy(scene.wheel("_cc80"), scene.dist / "toyfat_cc70-1.0-py3-none-any.whl")
    release = read_release([scene.dist])
    assert (release.project, release.version) == ("toyfat", "1.0")
    assert [one.role for one in release.artifacts] == [PLUGIN, PLUGIN, CORE]
    assert release.projects == ("toyfat-cc80", "toyfat-cc90", "toyfat")
    assert [one.path for one in release.of(CORE)] == [scene.wheel("")]


def test_pack_for_join_only_is_checked_but_not_published(scene: Scene) -> None:
    report = read_report(scene.dist / REPORT_FILE)
    rows = [
        row if row.label != "cc80" else replace(row, plugin=Plugin(kind="pack", name="rest"))
        for row in report.wheels
    ]
    (scene.dist / REPORT_FILE).write_text(replace(report, wheels=tuple(rows)).as_json())
    release = read_release([scene.dist])
    assert release.projects == ("toyfat-cc90", "toyfat")
    assert len(release.builds[report.build_id]) == 3
    published = {one.path.name for one in release.artifacts}
    assert {path.name for path, _ in new_wheels([scene.dist])} == published


def test_parts_of_a_build_in_several_folders_are_joined(scene: Scene, tmp_path: Path) -> None:
    core, first, second = (scene.wheel(part).name for part in ("", "_cc80", "_cc90"))
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, names in zip(folders, ((core, first), (core, second)), strict=True):
        folder.mkdir()
        for name in names:
            shutil.copy(scene.dist / name, folder)
        build_report(folder, (core, CORE), (names[1], PLUGIN))
    release = read_release(folders)
    assert len(release.artifacts) == 3
    assert len(release.builds["b" * 64]) == 3
    build_report(folders[1], (core, CORE), (second, PLUGIN), build="c" * 64)
    assert len(read_release(folders).builds) == 2
    (folders[1] / core).write_bytes(b"another one")
    build_report(folders[1], (core, CORE), (second, PLUGIN))
    with pytest.raises(VerifyError, match="same name but different content"):
        read_release(folders)


def test_all_faults_of_files_are_told_at_once(scene: Scene) -> None:
    scene.wheel("_cc80").unlink()
    scene.wheel("_cc90").write_bytes(b"other")
    with pytest.raises(VerifyError) as caught:
        preflight_check(read_release([scene.dist]), scene.publisher().effects, ANYTHING)
    found = [one.found for one in caught.value.findings]
    assert "archsplit-report.json lists it, but it is not here" in found
    assert "is not the file that archsplit-report.json lists" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a release's report"),
        ('{"schema": 1}', "has schema 1, expected 2"),
        (
            '{"schema": 2, "project": "", "version": "", "build_id": "", "interface_hash": "",'
            ' "wheels": []}',
            "one core is published",
        ),
    ],
)
def test_invalid_reports_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / REPORT_FILE).write_text(text)
    with pytest.raises(InputError, match=message):
        read_release([tmp_path])


def test_roles_and_versions_are_one_release(scene: Scene) -> None:
    (scene.dist / SPLIT).unlink()
    core, pack = scene.wheel("").name, scene.wheel("_cc80").name
    build_report(scene.dist, (core, CORE), (pack, "curiosity"))
    with pytest.raises(InputError, match=r"wheels\.1\.role: Input should be 'core'"):
        read_release([scene.dist])
    other = scene.dist / pack.replace("1.0", "1.1")
    shutil.copy(scene.dist / pack, other)
    build_report(scene.dist, (core, CORE), (other.name, PLUGIN))
    with pytest.raises(InputError, match="one version is published"):
        read_release([scene.dist])


def test_source_distribution_goes_after_the_core(scene: Scene) -> None:
    source = scene.dist / "toyfat-1.0.tar.gz"
    source.write_bytes(b"")
    release = read_release([scene.dist], source=source)
    assert [one.role for one in release.artifacts][-2:] == [CORE, SOURCE]
    with pytest.raises(InputError, match="is not a source distribution"):
        read_release([scene.dist], source=scene.wheel(""))


def test_attestations_go_with_their_files(scene: Scene) -> None:
    wheel = scene.wheel("_cc80")
    attestation = scene.dist / f"{wheel.name}.publish.attestation"

    def write(digest: str) -> None:
        subject = [{"name": wheel.name, "digest": {"sha256": digest}}]
        statement = base64.b64encode(json.dumps({"subject": subject}).encode()).decode()
        attestation.write_text(json.dumps({"version": 1, "envelope": {"statement": statement}}))

    write("0" * 64)
    publisher = scene.publisher()
    with pytest.raises(VerifyError, match="does not attest"):
        preflight_check(read_release([scene.dist]), publisher.effects, ANYTHING)
    attestation.write_text("{")
    with pytest.raises(VerifyError, match="does not attest"):
        preflight_check(read_release([scene.dist]), publisher.effects, ANYTHING)
    write(sha256(wheel))
    preflight_check(read_release([scene.dist]), publisher.effects, ANYTHING)
    publisher.publish(read_release([scene.dist]), scene.plans.append)
    sent = {asked.file: asked.body for asked in scene.server.asked if asked.is_upload}
    assert b'name="attestations"' in sent[wheel.name]
    assert b'name="attestations"' not in sent[scene.wheel("_cc90").name]


def test_twine_check_decides_too(scene: Scene) -> None:
    wheel = scene.wheel("_cc80")
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            head = content.partition(b"\nDescription-Content-Type")[0] + b"\n\n"
            archive.writestr(name, head if name.endswith("METADATA") else content)
    found = check_descriptions([scene.wheel(""), wheel], scene.publisher().twine)
    assert found.faults == (
        (wheel.name, "`long_description_content_type` missing. defaulting to `text/x-rst`."),
        (wheel.name, "`long_description` missing."),
    )


def test_missing_description_is_a_warning_and_a_broken_one_an_error(scene: Scene) -> None:
    core = scene.wheel("")
    with zipfile.ZipFile(core) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    place = next(name for name in members if name.endswith(".dist-info/WHEEL"))
    generator = re.compile(rb"^Generator:.*$", re.MULTILINE)

    def write(page: bytes) -> DescriptionCheck:
        with zipfile.ZipFile(core, "w") as archive:
            for name, content in members.items():
                head = content.partition(b"\nDescription-Content-Type")[0] + b"\n\n" + page
                text = (
                    generator.sub(b"Generator: upstream 1", content) if name == place else content
                )
                archive.writestr(name, head if name.endswith("METADATA") else text)
        return check_descriptions([core], scene.publisher().twine)

    assert write(b"A page.\n").warnings == (
        f"{core.name}: `long_description_content_type` missing. defaulting to `text/x-rst`.",
    )
    ((file, text), *_) = write(b"Title\n=\n\n.. include:: x\n").faults
    assert file == core.name
    assert text.startswith("`long_description` has syntax errors in markup")
    assert len(text.splitlines()) == 1


def test_addresses_with_passwords_are_refused(scene: Scene) -> None:
    with pytest.raises(UsageError) as caught:
        replace(scene.publisher().twine, repository_url=f"https://me:{SECRET}@host/")
    assert SECRET not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        index_address(f"https://me:{SECRET}@host/")
    assert SECRET not in str(caught.value)
    for wrong in ("pypi", "ftp://host/", "https:///simple/"):
        with pytest.raises(UsageError, match="is not the address of an index"):
            index_address(wrong)


def test_index_of_an_upload_address_is_found(scene: Scene) -> None:
    calm = retry_policy(scene.clock)
    for slash in ("", "/"):
        public = find_repository(f"https://upload.pypi.org/legacy{slash}", None, calm)
        assert (public.index, public.is_public) == ("https://pypi.org/simple/", True)
    test = find_repository("https://test.pypi.org/legacy/", "https://mirror/simple", calm)
    assert (test.index, test.is_public) == ("https://mirror/simple/", True)
    found = find_repository(scene.server.url, None, calm)
    assert (found.index, found.is_public) == (f"{scene.server.url}simple/", False)

    def devpi(asked: Asked) -> Fault | None:
        answer = json.dumps({"result": {"simpleindex": f"{scene.server.url}simple"}}).encode()
        kind = {"Content-Type": "application/json"}
        return Fault(status=200, headers=kind, body=answer) if "+api" in asked.path else None

    scene.server.before = devpi
    assert (
        find_repository(f"{scene.server.url}u/i", None, calm).index == f"{scene.server.url}simple/"
    )
    scene.server.before = lambda asked: Fault(status=403 if "+api" in asked.path else 404)
    with pytest.raises(UsageError, match="is not an index"):
        find_repository(f"{scene.server.url}u/i", None, calm)


def test_json_and_yanked_and_metadata_are_read(scene: Scene) -> None:
    """A canned answer in PEP 691's JSON; the real index of these tests speaks HTML."""
    page = {
        "meta": {"api-version": "1.9"},
        "name": "toyfat",
        "project-status": {"status": "archived"},
        "versions": ["1.0"],
        "files": [
            {
                "filename": "toyfat-1.0-py3-none-any.whl",
                "url": "../../f.whl",
                "hashes": {"sha256": "a" * 64},
                "size": 7,
                "upload-time": "2026-11-20T12:00:00Z",
                "yanked": "broken",
                "core-metadata": {"sha256": "b" * 64},
                "provenance": "https://host/provenance",
            }
        ],
    }
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    scene.server.before = lambda _: Fault(status=200, headers=kind, body=json.dumps(page).encode())
    project = Index(f"{scene.server.url}simple/", retry_policy(scene.clock)).project("toyfat")
    (file,) = project.files.values()
    assert (project.status, project.size, project.unmeasured) == ("archived", 7, 0)
    assert file.url == f"{scene.server.url}f.whl"
    assert (file.yanked, file.metadata, file.is_attested) == ("broken", {"sha256": "b" * 64}, True)
    assert file.metadata_url.endswith("/f.whl.metadata")
    assert {asked.headers["Cache-Control"] for asked in scene.server.asked} == {
        "no-cache, max-age=0"
    }


def test_answer_other_than_an_index_page_is_refused(scene: Scene) -> None:
    index = Index(f"{scene.server.url}simple/", retry_policy(scene.clock))
    scene.server.before = lambda _: Fault(
        status=200, headers={"Content-Type": "image/png"}, body=b"x"
    )
    with pytest.raises(IndexUnreachableError, match="is not an index's page"):
        index.project("toyfat")
    assert index.document(index.address) is None
    scene.server.before = lambda _: Fault(status=401)
    with pytest.raises(IndexRefusedError, match="netrc"):
        index.project("toyfat")


def test_retries_end_at_the_time_limit() -> None:
    clock = FakeClock()
    notes: list[str] = []
    one = RetryPolicy(seconds=10, clock=clock, note=notes.append)

    def fail() -> None:
        raise RetryableError("500")

    with pytest.raises(IndexUnreachableError, match="gave up after 7 s"):
        one.keep_trying("asking", fail)
    assert clock.slept == [1, 2, 4]
    assert notes == [f"asking: 500; retrying in {seconds} s" for seconds in (1, 2, 4)]

    def busy() -> None:
        raise RetryableError("429", wait=3600)

    with pytest.raises(TryLaterError, match="2026-11-21T13:00:07Z"):
        one.keep_trying("asking", busy)
    pauses = FakeClock()
    long = RetryPolicy(seconds=1000, clock=pauses, note=notes.append)
    with pytest.raises(IndexUnreachableError):
        long.keep_trying("asking", fail)
    assert max(pauses.slept) == 60


def test_system_clock_advances_and_is_utc() -> None:
    clock = Clock()
    before = clock.monotonic()
    clock.sleep(0.01)
    assert clock.monotonic() > before
    assert utc_text(clock.now()).endswith("Z")


def test_reply_of_an_index_is_one_line() -> None:
    assert (
        TwineResult(outcome="answered", status=400, reason="Bad", text="Bad").reply() == "400 Bad"
    )
    assert (
        TwineResult(outcome="answered", status=400, reason="Bad", text="x").reply() == "400 Bad: x"
    )
    assert TwineResult(outcome="unreachable").reply() == "unreachable"


def test_missing_credentials_get_a_hint(scene: Scene) -> None:
    publisher = scene.publisher()
    environment = {
        name: text
        for name, text in publisher.twine.environment.items()
        if not name.startswith("TWINE_")
    }
    environment["HOME"] = str(scene.state.parent)
    bare = replace(publisher, twine=replace(publisher.twine, environment=environment))
    with pytest.raises(ToolFailedError, match="TWINE_USERNAME and TWINE_PASSWORD"):
        bare.publish(read_release([scene.dist]), scene.plans.append)


def test_killed_twine_is_reported(scene: Scene) -> None:
    twine = replace(scene.publisher().twine, python_path="/nonexistent")
    broken = replace(twine, environment={**twine.environment, "PYTHONHOME": "/nonexistent"})
    with pytest.raises(ToolFailedError, match="twine where crashed"):
        broken.where()


def test_file_without_a_sha256_on_its_page_is_downloaded_and_compared(scene: Scene) -> None:
    (core,) = read_release([scene.dist]).of(CORE)
    index = Index(f"{scene.server.url}simple/", retry_policy(scene.clock))
    read_back = ReadBack(index=index, retry=retry_policy(scene.clock))
    content = core.path.read_bytes()
    shutil.copy(core.path, scene.files)
    url = f"{scene.server.url}packages/{core.path.name}"
    for digests in ({"md5": hashlib.md5(content).hexdigest()}, {"crc32": "0"}, {}):
        file = IndexFile(name=core.path.name, url=url, digests=digests)
        (scene.files / core.path.name).write_bytes(content)
        assert read_back.is_same(core, file)
        (scene.files / core.path.name).write_bytes(content + b"more")
        assert not read_back.is_same(core, file)


def test_metadata_beside_a_wheel_is_compared(scene: Scene) -> None:
    """Canned pages: the real index of these tests has no PEP 658."""
    (core,) = read_release([scene.dist]).of(CORE)
    with zipfile.ZipFile(core.path) as archive:
        own = archive.read("toyfat-1.0.dist-info/METADATA")
    listed, served = hashlib.sha256(own).hexdigest(), own

    def answer(asked: Asked) -> Fault | None:
        if asked.path.endswith(".metadata"):
            return Fault(status=200, body=served)
        names = f'href="/f/{core.path.name}#sha256={core.sha256}"'
        link = f'<a {names} data-core-metadata="sha256={listed}">'
        page = f"<!DOCTYPE html><html><body>{link}{core.path.name}</a></body></html>"
        return Fault(status=200, headers={"Content-Type": "text/html"}, body=page.encode())

    scene.server.before = answer
    index = Index(f"{scene.server.url}simple/", retry_policy(scene.clock))
    read_back = ReadBack(index=index, retry=retry_policy(scene.clock), download=False)
    assert read_back.verify([core])[core.path.name].metadata == {"sha256": listed}
    served = b"other"
    with pytest.raises(VerifyError, match="other metadata than the wheel has"):
        read_back.verify([core])
    listed = "0" * 64
    with pytest.raises(VerifyError, match="the index lists other metadata"):
        read_back.verify([core])


def test_missing_file_has_no_digest(scene: Scene) -> None:
    index = Index(f"{scene.server.url}simple/", retry_policy(scene.clock, 1))
    scene.server.before = lambda _: Fault(status=404)
    with pytest.raises(IndexUnreachableError):
        index.digest(f"{scene.server.url}packages/x.whl")
    scene.server.before = lambda _: Fault(drop="before")
    with pytest.raises(IndexUnreachableError):
        index.digest(f"{scene.server.url}packages/x.whl")


@pytest.fixture
def certificate(scene: Scene, tmp_path: Path) -> Path:
    """A self-signed certificate, which the index uses from now on."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", *names)
    command = ("openssl", *words, "-keyout", str(key), "-out", str(certificate))
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    scene.server.socket = context.wrap_socket(scene.server.socket, server_side=True)
    return certificate


def pages(scene: Scene) -> Index:
    address = scene.server.url.replace("http:", "https:")
    return Index(f"{address}simple/", retry_policy(scene.clock))


@pytest.mark.usefixtures("certificate")
def test_untrusted_certificate_is_not_tried_again(scene: Scene) -> None:
    with pytest.raises(IndexUnreachableError, match="its certificate isn't trusted") as raised:
        pages(scene).project("toyfat")
    assert scene.clock.slept == []
    assert "REQUESTS_CA_BUNDLE" in str(raised.value.hint)


def test_certificate_named_by_the_hints_variable_is_trusted(
    scene: Scene, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert pages(scene).project("toyfat").files == {}
