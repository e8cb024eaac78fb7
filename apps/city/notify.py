"""Notifications leave by a port: a webhook over HTTP, mail over SMTP. Blocking: call them on a thread.

Every try of a notification has the same mark: as the header `Idempotency-Key` of a request, and in the `Message-ID` of
a mail. A receiver that keeps marks acts once, however often and by whichever gateway it is told.
"""

from __future__ import annotations

import http.client
import json
import smtplib
from email.message import EmailMessage
from typing import Protocol
from urllib.parse import urlsplit

from apps.city.messages import Notify
from stigmergy import DeviceRefused, Unreachable

WITHIN_S = 5.0
MARK = "Idempotency-Key"


class Notifier(Protocol):
    """Tells somebody outside. Raises Unreachable if it is worth another try, DeviceRefused if it is not."""

    def send(self, notice: Notify) -> None:
        """Returns when the receiver has it."""
        ...


class Webhook:
    """Posts JSON to `http://host:port/path`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid address of a webhook {url!r}; give http://host:port/path")
        self._is_tls = parts.scheme == "https"
        self._place = (parts.hostname, parts.port)
        self._path = parts.path or "/"

    def send(self, notice: Notify) -> None:
        """As the port has it."""
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(*self._place, timeout=WITHIN_S)
        what = {"incident": notice.incident, "stage": notice.stage, "severity": notice.severity, "text": notice.text}
        try:
            connection.request(
                "POST", self._path, json.dumps(what), {"Content-Type": "application/json", MARK: notice.mark}
            )
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the webhook does not answer ({error}); it is tried again") from None
        finally:
            connection.close()
        if answer.status >= 500 or answer.status in (408, 429):
            raise Unreachable(f"the webhook answers {answer.status}; it is tried again")
        if answer.status >= 400:
            raise DeviceRefused(f"the webhook refuses with {answer.status}; look at its log")


class Mail:
    """Mails by the server at `host:port`."""

    def __init__(self, server: str, sender: str, to: str) -> None:
        self._host, _, port = server.partition(":")
        self._port = int(port or 25)
        self._sender, self._to = sender, to

    def send(self, notice: Notify) -> None:
        """As the port has it. Notices that are not severe enough are not mailed."""
        if not notice.mail:
            return
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self._sender, self._to, notice.text
        mail["Message-ID"] = f"<{notice.mark.replace(':', '.')}@stigmergy.city>"
        mail[MARK] = notice.mark
        mail.set_content(f"{notice.text}\nIncident {notice.incident}, {notice.stage}.\n")
        try:
            with smtplib.SMTP(self._host, self._port, timeout=WITHIN_S) as server:
                server.send_message(mail)
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused) as error:
            raise DeviceRefused(f"the mail server refuses ({error}); correct the addresses") from None
        except (OSError, smtplib.SMTPException) as error:
            raise Unreachable(f"the mail server does not answer ({error}); it is tried again") from None
