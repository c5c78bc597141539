#!/bin/sh
{
# autotune agent: everything that needs root on this host, for one unit.
#
# Installed to /run/autotune/NAME/agent and called with no argument; the first line of stdin says
#     VERB LEASE CLAIM [WORD...]
# and the rest is the payload of the verb.  The restore service calls it as `agent restore`.
#
#   /run/autotune/NAME/lease/     one file per fact; the folder is the lease.  `armed` is in it while
#                                 the lease holds; it is renamed to `restoring` when the way back has
#                                 begun (a rename needs no space), and from then on every change by
#                                 a tuner is refused
#   /run/autotune/NAME/ballast    20 MB of nothing, let go by the way back where systemd
#                                 refuses a reload while less than 16 MB of /run are free
#   /run/lock/autotune-NAME.lock  flock: verbs that change something run one at a time
#
# Exit: 0 done, 3 no such process, 64 wrong call, 70 lease or claim is not the newest one,
#       71 somebody holds the lease (his record on stdout), 72 our drop-in is masked or foreign,
#       73 the lock is held for too long, 74 the host refused (read-only or full /run, systemd).
#
# The whole file is one group: the shell has read all of it before the first command runs, so it
# may be removed or replaced under a running copy, and half a file does nothing.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
SYSTEMD_PAGER=cat
export PATH LC_ALL SYSTEMD_PAGER
umask 077

UNIT=@UNIT@
NAME=@NAME@
FOLDER=/run/autotune/$NAME
LEASE_DIR=$FOLDER/lease
LOCK=/run/lock/autotune-$NAME.lock
BALLAST=$FOLDER/ballast
DROPIN_DIR=/run/systemd/system/$UNIT.d
DROPIN=$DROPIN_DIR/zzzz-autotune.conf
MASK=/etc/systemd/system/$UNIT.d/zzzz-autotune.conf
EXPORT_DIR=/etc/systemd/system/$UNIT.d
EXPORT=$EXPORT_DIR/@EXPORT@
UNDO=$EXPORT_DIR/@EXPORT@.undo
INSTANCE=$(systemd-escape -- "$NAME")
SERVICE=autotune-restore@$INSTANCE.service
TIMER=autotune-restore@$INSTANCE.timer
UNITS=/run/systemd/system

fail() {
    status=$1
    shift
    printf '%s\n' "$*" >&2
    exit "$status"
}

lock() {
    while :; do
        (: >>"$LOCK") 2>/dev/null || fail 74 "$LOCK cannot be opened"
        exec 9>>"$LOCK"
        flock -w 20 9 || fail 73 "$LOCK is held by another command"
        # The holder before us may have removed the file; then this lock is nobody's.
        [ "$(stat -L -c %d:%i /proc/self/fd/9)" = "$(stat -c %d:%i "$LOCK" 2>/dev/null)" ] && return
        exec 9>&-
    done
}

unlock() { exec 9>&-; }

fact() { cat "$LEASE_DIR/$1" 2>/dev/null; }

# An empty file. In a shell of its own: `:` is a special builtin, whose failure would end this one.
mark() { (: >"$1") 2>/dev/null; }

# What the tuner sends, to its end. The lock is held meanwhile: a link that goes black in the middle of
# it must not keep it from the way back.
payload() { timeout 30 cat; }

# Write stdin to a fact of the lease, whole or not at all.
put() { cat >"$LEASE_DIR/.$1" && mv "$LEASE_DIR/.$1" "$LEASE_DIR/$1"; }

show() { systemctl show --property="$1" --value -- "$UNIT"; }

# Whole seconds since the boot; the wall clock may jump.
seconds() { cut -d . -f 1 /proc/uptime; }

guard() {
    [ -e "$LEASE_DIR/armed" ] || fail 70 "no lease holds here any more"
    [ "$(fact id)" = "$1" ] || fail 70 "somebody else holds the lease"
    if [ "$2" != - ]; then
        [ "$(fact claim)" = "$2" ] || fail 70 "a newer claim holds"
    fi
}

remove_dropin() {
    if [ -e "$DROPIN" ] || [ -L "$DROPIN" ]; then
        rm -f "$DROPIN" || return 1
    fi
    rm -f "$DROPIN_DIR/.zzzz-autotune.new" 2>/dev/null
    if [ -e "$LEASE_DIR/made-folder" ]; then
        rmdir "$DROPIN_DIR" 2>/dev/null
    fi
    said=$(systemctl daemon-reload 2>&1) && return
    printf '%s\n' "$said" >&2
    return 1
}

