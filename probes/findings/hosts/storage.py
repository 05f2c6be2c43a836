"""Findings of HOSTS: shared folders and files of models."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause, Severity

STORAGE: dict[str, Entry] = {
    "HOST-MODEL-FILES": Entry(
        "Files of a model are missing on a node, or are not the same as on the other nodes.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Put the files of the model on {nodes}",
        {
            "ls -l {file}": "Missing: download the model there, or put it on the shared folder.",
            "sha256sum {file}": "Compare with another node. Another sum: download it again.",
        },
        "Every node has the same files of the model.",
        "Compare `sha256sum` of the named file on two nodes. Download the model again on the named node, or put it on the shared folder.",
    ),
    "HOST-SHARED": Entry(
        "A node cannot write to the shared folder, or does not see the files of the others there.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Mount the shared folder on {nodes}",
        {
            "findmnt -T {folder}": "Another file system than on other nodes, or the local disk: mount the shared one.",
            "ls -ld {folder}": "Missing: create the mount point. Not writable for the job's user: correct the rights.",
        },
        "{node} writes to {folder}, and sees the files of the others there.",
        "Mount the shared file system on the named node at the agreed path, writable for jobs.",
    ),
    "HOST-STORAGE-LATE": Entry(
        "Files that one node wrote are seen on other nodes only after a long time.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Let {nodes} see new files of {folder} sooner",
        {
            "findmnt -T {folder}": "NFS with nocto, or with acdirmax over 60: remount without. Object storage: shorten the cache of its lists.",
        },
        "Files of other nodes are seen in {folder} within the agreed time.",
        "Run `findmnt -T FOLDER` on the named nodes and on another. NFS: remount without nocto, and with acdirmax of 60 or less. Object storage: shorten the cache of its lists.",
    ),
    "HOST-STORAGE-EXCL": Entry(
        "Two nodes created the same file in the shared folder, so lock files protect nothing.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Keep lock files out of {folder}",
        {
            "findmnt -T {folder}": "Run it on all nodes. Kind, source or options differ: mount it alike. Object storage: it cannot create files exclusively.",
        },
        "Each file in {folder} is created by exactly one node.",
        "Run `findmnt -T FOLDER` on all nodes: kind, source and options must be the same. Object storage does not create files exclusively: keep lock files elsewhere, and agree on HOSTS.double_creations.",
    ),
    "HOST-STORAGE-RENAME": Entry(
        "While a file is replaced by rename, other nodes find no file or a part of one.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Write checkpoints to a file system that renames at once",
        {
            "findmnt -T {folder}": "Object storage (s3fs, gcsfuse): it copies in place of a rename. Use another file system for checkpoints.",
        },
        "Readers always find a complete file while it is replaced.",
        "Run `findmnt -T FOLDER` on the named nodes. Object storage copies and deletes in place of a rename: write checkpoints to a file system. Otherwise agree on HOSTS.rename_gaps.",
    ),
    "HOST-STORAGE-APPEND": Entry(
        "Lines were lost that several nodes appended to one file.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Let each node write a file of its own in {folder}",
        {
            "findmnt -T {folder}": "NFS: it does not append atomically. Lustre or a local disk: see the report for the node that lost lines.",
        },
        "No appended line is lost in {folder}.",
        "Let each node write a file of its own. NFS does not append atomically: if jobs need it, use another file system.",
    ),
    "HOST-STORAGE-LOCK": Entry(
        "Two nodes held the same lock (flock) in the shared folder at once.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Mount {folder} with locks that hold on all nodes",
        {
            "findmnt -T {folder}": "Lustre with localflock: mount it with flock. NFS version 3 with nolock: mount version 4.",
        },
        "No update under a lock is lost in {folder}.",
        "Run `findmnt -T FOLDER` on all nodes. Lustre: mount with flock, not localflock. NFS: mount version 4, or version 3 without nolock.",
    ),
    "HOST-STORAGE-FULL": Entry(
        "The shared folder has too little room for checkpoints.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Make room in {folder}",
        {
            "df -h {folder}": "The free space. Too little: remove old checkpoints.",
            "df -i {folder}": "No free inodes: remove small files.",
            "quota -s": "A limit of the user: raise it. Lustre: `lfs quota -u USER FOLDER`.",
        },
        "{folder} has room for the agreed number of checkpoints.",
        "Run `df -h FOLDER`, `df -i FOLDER` and `quota -s` (Lustre: `lfs quota -u USER FOLDER`) on the named nodes. Remove old checkpoints, or raise the quota.",
    ),
    "HOST-STORAGE-ERROR": Entry(
        "A node cannot write its shard of a checkpoint, or read one.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Make {folder} writable on {nodes}",
        {
            "findmnt -T {folder}": "Read-only (ro): mount it writable. Not mounted: mount it.",
            "touch {folder}/try": 'Writes an empty file. Run it as the job\'s user. "Permission denied": correct the rights.',
            'dmesg -T | grep -iE "nfs|lustre|i/o error"': "Errors of the file system: ask the storage's operator.",
        },
        "{node} writes and reads its shard in {folder}.",
        "Run `findmnt -T FOLDER` and `touch FOLDER/try` on the named nodes as the job's user. Read `dmesg -T` there for errors of the file system. Mount it writable.",
    ),
    "HOST-STORAGE-SLOW": Entry(
        "A node writes or reads the shared folder much slower than the others.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Bring the storage of {node} to the speed of the others",
        {
            "findmnt -T {folder}": "Other options than on a fast node (rsize, wsize, nconnect): mount it alike.",
            "ip -s link": "Errors or dropped packets of the interface to the storage: cable or port.",
            "nfsstat -m": "For NFS. Another server or version than on a fast node: mount it alike.",
        },
        "{node} reads and writes {folder} as fast as the others.",
        "Compare `findmnt -T FOLDER` (NFS: `nfsstat -m`) on the named node with another node. Run `ip route get SERVER` on both: storage traffic must take the same network. Read the interface's errors with `ip -s link`.",
    ),
    "HOST-STORAGE-RATE": Entry(
        "All nodes together write or read the shared folder slower than was agreed.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Raise the rate of {folder}",
        {
            "findmnt -T {folder}": "The server and the options. One node alone is slow: its network to the storage. All together: the servers.",
            "nfsstat -m": "For NFS. nconnect missing: several connections are faster.",
        },
        "All nodes together reach the agreed rate in {folder}.",
        "Compare the speed of one node alone with all together, in the report. If one node alone is slow, check its network to the storage. Otherwise add servers, or spread files over them (Lustre: `lfs setstripe`).",
    ),
    "HOST-STORAGE-LOST": Entry(
        "The shared folder of a node went away, or became read-only, during the run.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Keep {folder} mounted on {nodes}",
        {
            "findmnt -T {folder}": "Another file system now: the mount is gone. Read-only: an error of the disk or server.",
            'dmesg -T | grep -iE "nfs|lustre|i/o error|remount"': '"not responding": the server or its network. An I/O error: the disk.',
        },
        "{folder} stays mounted and writable during a whole run.",
        "Run `findmnt -T FOLDER` and `dmesg -T` on the named node. Look for a server that did not answer, and for units of systemd that unmount. Mount the folder again.",
    ),
}
