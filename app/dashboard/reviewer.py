"""Who may write, and under which name: a person at this machine, or a logged-in person on a shared one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import streamlit as st

from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.guard import asked_on_this_machine
from q36eval.app.dashboard.launch_options import Started
from q36eval.errors import UsageError


@dataclass(frozen=True)
class Permission:
    """`name` is that of the login, None where the reviewer types one; `why` says why nothing may be written."""

    why: str | None = None
    name: str | None = None

    @property
    def may_write(self) -> bool:
        """Whether waivers, signatures and blessings are taken."""
        return self.why is None


def permission_of(started: Started, user: Mapping[str, Any], section: Mapping[str, Any]) -> Permission:
    """A person's permissions here.

    `user` holds the claims of Streamlit's OIDC login, with `is_logged_in` if one is configured, else it is empty.
    `section` is that of `[q36eval]` in secrets.toml, whose `reviewers` is a pattern of addresses (`*@example.org`) or
    a list of them; without a section, everybody who can log in may write.
    """
    if started.read_only:
        return Permission("This dashboard was started with --read-only.")
    if "is_logged_in" not in user:
        why = "Others can reach this address and no login is configured; docs/ui.md says how to set one up."
        return Permission(None if started.local else why)
    if not user["is_logged_in"]:
        return Permission("Log in to waive, sign or bless.")
    name = _name(user)
    if name is None:
        return Permission("The login gives no verified e-mail address to write under.")
    given = section.get("reviewers", [] if section else "*")
    reviewers = given if isinstance(given, list) else [given]
    if not any(fnmatch(name.lower(), str(pattern).lower()) for pattern in reviewers):
        return Permission(f"{name} is not among the reviewers of this dashboard.")
    return Permission(name=name)


def _name(user: Mapping[str, Any]) -> str | None:
    address = user.get("email")
    # some providers let a person claim any address until it is verified
    return str(address) if address and user.get("email_verified", True) in (True, "true") else None


def permission() -> Permission:
    """The permission of the page's viewer."""
    user = st.user.to_dict()
    section = st.secrets.get("q36eval", {}) if "is_logged_in" in user else {}
    started = Started.of()
    local = started.local and asked_on_this_machine(st.context.headers)
    return permission_of(replace(started, local=local), user, section)


def writer(typed: str) -> str:
    """The name to write under: of the login, else as typed.

    Raises:
        UsageError: nothing may be written, or no name was typed that others could read.
    """
    allowed = permission()
    if allowed.why is not None:
        raise UsageError("writing-not-allowed", allowed.why)
    name = (allowed.name or typed).strip()
    if not name:
        raise UsageError("reviewer-required", "Type your name first, so that later readers can ask you.")
    if name != line(name) or not any(map(str.isalnum, name)):
        raise UsageError(
            "reviewer-invalid", "Type a name that others can read: letters, without invisible or control characters."
        )
    return name


def draw_login() -> None:
    """The logged-in person, and the button to change it; nothing without a configured login."""
    user = st.user.to_dict()
    if "is_logged_in" not in user:
        return
    if user["is_logged_in"]:
        st.caption("Logged in as")
        st.text(line(_name(user) or "somebody without a verified address"))
        st.button("Log out", on_click=st.logout, key="log_out")
    else:
        st.button("Log in", on_click=st.login, key="log_in")
