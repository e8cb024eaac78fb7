"""Keys: made, shown, rotated and revoked, on a stopped journal and through a running node."""

from tests.cli.conftest import Folder


def test_new_show_fingerprint(here: Folder) -> None:
    made = here.json("keys", "new", "north.key", "--comment", "drone 7")
    assert (here.path / "north.key").stat().st_mode & 0o777 == 0o600
    line = here.cli("keys", "show", "north.key").stdout.strip()
    assert line == made["line"]
    assert line.endswith(" drone 7")
    (here.path / "north.pub").write_text(line + "\n")
    for key in ("north.key", "north.pub", line, made["public_key"]):
        assert here.cli("keys", "fingerprint", key).stdout.strip() == made["fingerprint"]
    secret = next(one for one in (here.path / "north.key").read_text().splitlines() if one.startswith("private: "))
    assert secret.removeprefix("private: ") not in here.cli("keys", "show", "north.key", "--json").stdout
    assert "exists; a key file is never replaced" in here.error("keys", "new", "north.key", code=2)
    (here.path / "north.key").chmod(0o644)
    assert "chmod 600" in here.error("keys", "show", "north.key", code=4)
    assert "neither a key file nor a public key" in here.error("keys", "show", "nothere.key", code=2)


def test_a_wrong_key_is_refused(here: Folder) -> None:
    here.start().end()
    here.json("keys", "new", "other.key")
    said = here.error("run", "drone:fleet", "--key", "other.key", code=4)
    assert "is not enrolled in this journal" in said
    assert "stigmergy keys rotate" in said


def test_rotate_and_revoke_a_stopped_journal(here: Folder) -> None:
    here.start().end()
    here.json("keys", "new", "next.key")
    here.error("keys", "rotate", "--old", "next.key", "--new", "next.key", code=4)
    assert here.json("keys", "rotate", "--old", "delivery.key", "--new", "next.key")["enrolled"] is True
    assert "is enrolled already" in here.error("keys", "rotate", "--new", "next.key", code=4)
    said = here.error("keys", "revoke", "delivery.key", "--with", "delivery.key", code=4)
    assert "signs this journal now" in said
    node = here.start("drone:fleet", "--key", "next.key")
    here.json("send", "Drone/D-17", "StartMission", "mission=M1")
    node.end()
    assert here.json("keys", "revoke", "delivery.key", "--with", "next.key")["revoked"] is True
    assert "was revoked in this journal" in here.error("run", "drone:fleet", "--key", "delivery.key", code=4)
    found = here.json("log", "verify", "--key", "next.key")
    assert found["sound"] is True
    assert [(signer["enrolled_at"], signer["revoked_after"]) for signer in found["signers"]] == [(1, 4), (2, None)]
    assert here.json("log", "verify", "--key", "delivery.key")["sound"] is True
    node = here.start("drone:fleet", "--key", "next.key")
    assert here.json("state", "Drone/D-17")["state"]["mission"] == "M1"


def test_rotate_and_revoke_through_a_running_node(here: Folder) -> None:
    node = here.start()
    here.json("keys", "new", "next.key")
    here.json("keys", "rotate", "--new", "next.key")
    assert "signs this journal now" in here.error("keys", "revoke", "delivery.key", code=4)
    assert [signer["signs_now"] for signer in here.json("status")["signers"]] == [True, False]
    node.end()
    said = here.error("run", "drone:fleet", "--key", "next.key", code=4)
    assert "the log ends with a signature by" in said
    assert "--trust" in said
    node = here.start("drone:fleet", "--key", "next.key", "--trust", "delivery.key")
    here.json("keys", "revoke", "delivery.key")
    assert "is revoked already" in here.error("keys", "revoke", "delivery.key", code=4)
    node.end()
    assert here.json("log", "verify")["sound"] is True


def test_a_key_that_is_no_good(here: Folder) -> None:
    here.start().end()
    assert "small order" in here.error("keys", "rotate", "--new", "00" * 32, code=4)
