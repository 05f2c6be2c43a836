"""Starts an ssh server on each node of a lab, with keys of the lab's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab.lab import Lab
from tests.lab.shell import LabError, sh

SERVER = "/usr/sbin/sshd"


def start_ssh(lab: Lab) -> Path:
    """Start the servers; return a folder whose `ssh` uses the lab's keys and asks for nothing.

    Raises LabError if the server is not installed.  It ends with the lab.
    """
    if not shutil.which(SERVER):
        raise LabError("ssh in the lab needs `apt-get install openssh-server`")
    folder = lab.home / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    options = f"-i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    client.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -q -F none {options} "$@"\n')
    client.chmod(0o755)
    settings = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "/tmp/sshd.pid",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    Path("/run/sshd").mkdir(exist_ok=True)  # the package's service makes it, where one runs
    for node in lab.nodes:
        node.run(SERVER, "-f", "/dev/null", *words)
    return client.parent
