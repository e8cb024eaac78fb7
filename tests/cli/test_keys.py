"""Keys: made, shown, rotated and revoked, on a stopped journal and through a running node."""

from tests.cli.conftest import Folder


def test_new_show_fingerprint(folder: Folder) -> None:
    made = folder.json("keys", "new", "north.key", "--comment", "drone 7")
    assert (folder.path / "north.key").stat().st_mode & 0o777 == 0o600
    line = folder.cli("keys", "show", "north.key").stdout.strip()
    assert line == made["line"]
    assert line.endswith(" drone 7")
    (folder.path / "north.pub").write_text(line + "\n")
    for key in ("north.key", "north.pub", line, made["public_key"]):
        assert folder.cli("keys", "fingerprint", key).stdout.strip() == made["fingerprint"]
    secret = next(one for one in (folder.path / "north.key").read_text().splitlines() if one.startswith("private: "))
    assert secret.removeprefix("private: ") not in folder.cli("keys", "show", "north.key", "--json").stdout
    assert "exists; a key file is never replaced" in folder.error("keys", "new", "north.key", code=2)
    (folder.path / "north.key").chmod(0o644)
    assert "chmod 600" in folder.error("keys", "show", "north.key", code=4)
    assert "neither a key file nor a public key" in folder.error("keys", "show", "nothere.key", code=2)


def test_a_wrong_key_is_refused(folder: Folder) -> None:
    folder.start().end()
    folder.json("keys", "new", "other.key")
    said = folder.error("run", "drone:fleet", "--key", "other.key", code=4)
    assert "is not enrolled in this journal" in said
    assert "stigmergy keys rotate" in said


def test_rotate_and_revoke_a_stopped_journal(folder: Folder) -> None:
    folder.start().end()
    folder.json("keys", "new", "next.key")
    folder.error("keys", "rotate", "--old", "next.key", "--new", "next.key", code=4)
    assert folder.json("keys", "rotate", "--old", "delivery.key", "--new", "next.key")["enrolled"] is True
    assert "is enrolled already" in folder.error("keys", "rotate", "--new", "next.key", code=4)
    said = folder.error("keys", "revoke", "delivery.key", "--with", "delivery.key", code=4)
    assert "signs this journal now" in said
    node = folder.start("drone:fleet", "--key", "next.key")
    folder.json("send", "Drone/D-17", "StartMission", "mission=M1")
    node.end()
    assert folder.json("keys", "revoke", "delivery.key", "--with", "next.key")["revoked"] is True
    assert "was revoked in this journal" in folder.error("run", "drone:fleet", "--key", "delivery.key", code=4)
    found = folder.json("log", "verify", "--key", "next.key")
    assert found["sound"] is True
    assert [(signer["enrolled_at"], signer["revoked_after"]) for signer in found["signers"]] == [(1, 4), (2, None)]
    assert folder.json("log", "verify", "--key", "delivery.key")["sound"] is True
    node = folder.start("drone:fleet", "--key", "next.key")
    assert folder.json("state", "Drone/D-17")["state"]["mission"] == "M1"


def test_rotate_and_revoke_through_a_running_node(folder: Folder) -> None:
    node = folder.start()
    folder.json("keys", "new", "next.key")
    folder.json("keys", "rotate", "--new", "next.key")
    assert "signs this journal now" in folder.error("keys", "revoke", "delivery.key", code=4)
    assert [signer["signs_now"] for signer in folder.json("status")["signers"]] == [True, False]
    node.end()
    said = folder.error("run", "drone:fleet", "--key", "next.key", code=4)
    assert "the log ends with a signature by" in said
    assert "--trust" in said
    node = folder.start("drone:fleet", "--key", "next.key", "--trust", "delivery.key")
    folder.json("keys", "revoke", "delivery.key")
    assert "is revoked already" in folder.error("keys", "revoke", "delivery.key", code=4)
    node.end()
    assert folder.json("log", "verify")["sound"] is True


def test_a_key_that_is_no_good(folder: Folder) -> None:
    folder.start().end()
    assert "small order" in folder.error("keys", "rotate", "--new", "00" * 32, code=4)
