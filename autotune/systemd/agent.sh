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
    systemctl daemon-reload
}

# What an export has written goes, what it replaced comes back.
take_export_back() {
    if [ -e "$UNDO" ]; then
        mv "$UNDO" "$EXPORT" || return 1
    else
        rm -f "$EXPORT" || return 1
    fi
    rm -f "$EXPORT_DIR/.autotune-export.new"
    rmdir "$EXPORT_DIR" 2>/dev/null
    return 0
}

# -- facts about processes ---------------------------------------------------------------------

inodes() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v port="$(printf '%04X' "$1")" \
            '$4 == "0A" { n = split($2, part, ":"); if (part[n] == port) print $10 }'
}

pids_of_cgroup() {
    [ -n "$1" ] || return 0
    for root in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
        [ -d "$root$1" ] && find "$root$1" -name cgroup.procs -exec cat {} + 2>/dev/null
    done | sort -un
}

# PID <tab> cgroup <tab> uid <tab> command line, one line per process id on stdin
describe() {
    while read -r pid; do
        group=$(sed -n -e 's/^0:://p' -e 's/^[0-9]*:name=systemd://p' "/proc/$pid/cgroup" \
            2>/dev/null | tail -n 1)
        owner=$(stat -c %u "/proc/$pid" 2>/dev/null) || continue
        words=$(tr '\000-\037' ' ' <"/proc/$pid/cmdline" 2>/dev/null | head -c 300)
        printf '%s\t%s\t%s\t%s\n' "$pid" "$group" "$owner" "$words"
    done
}

owners() {
    for inode in $(inodes "$1"); do
        found=$(find /proc/[0-9]*/fd -maxdepth 1 -lname "socket:\[$inode\]" 2>/dev/null |
            cut -d / -f 3 | sort -un)
        if [ -n "$found" ]; then
            printf '%s\n' "$found" | describe
        else
            printf '0\t\t\t\n'
        fi
    done
}

# Whether a process of the unit listens on the port.
listens() {
    wanted=$(inodes "$1" | sed 's/.*/^socket:\\[&\\]$/')
    [ -n "$wanted" ] || return 1
    [ "$(fact listen)" = any ] && return 0
    for pid in $(pids_of_cgroup "$(show ControlGroup)"); do
        find "/proc/$pid/fd" -maxdepth 1 -type l -printf '%l\n' 2>/dev/null |
            grep -q "$wanted" && return 0
    done
    return 1
}

# -- lease -------------------------------------------------------------------------------------

arm() {
    mkdir -p "$UNITS" || return 1
    cat >"$UNITS/$SERVICE" <<END || return 1
[Unit]
Description=autotune: put $UNIT back as it was found
StartLimitIntervalSec=0

[Service]
Type=oneshot
Slice=system.slice
ExecStart=/bin/sh $FOLDER/agent restore
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=5s
END
    cat >"$UNITS/$TIMER" <<END || return 1
[Unit]
Description=autotune: $UNIT is put back when its tuner is silent for $1 s

[Timer]
OnActiveSec=$1
AccuracySec=1s
END
    chmod 644 "$UNITS/$SERVICE" "$UNITS/$TIMER" || return 1
    systemctl daemon-reload || return 1
    systemctl restart "$TIMER"
}

# A reader whose tuner is out of reach never learns that nobody reads: sshd keeps its pipe open.
end_followers() {
    for path in "$FOLDER"/follower.*; do
        pid=${path##*.}
        case $(cat "/proc/$pid/comm" 2>/dev/null) in
            journalctl) kill "$pid" ;;
        esac
    done
}

# Take everything of ours away.  The lease goes first: whatever interrupts this, what is left is
# harmless and the next call takes it away.
clear_all() {
    systemctl stop "$TIMER" 2>/dev/null
    if [ -d "$LEASE_DIR" ]; then
        # In one step, so that nobody reads half a lease.
        mv "$LEASE_DIR" "$FOLDER/lease.gone" || rm -rf "$LEASE_DIR"
    fi
    rm -rf "$FOLDER/lease.gone" "$LEASE_DIR.new"
    end_followers
    if [ -e "$UNITS/$SERVICE" ] || [ -e "$UNITS/$TIMER" ]; then
        rm -f "$UNITS/$SERVICE" "$UNITS/$TIMER"
        systemctl daemon-reload
    fi
    rm -rf "$FOLDER"
    rmdir /run/autotune 2>/dev/null
    rm -f "$LOCK"
}

acquire() {
    lock
    if [ -d "$LEASE_DIR" ]; then
        holder
        exit 71
    fi
    new=$LEASE_DIR.new
    rm -rf "$new"
    mkdir "$new" || fail 74 "$new cannot be made"
    while read -r key value; do
        case $key in
            active | invocation | cmdline | listen | port | wait | after | owner | record)
                printf '%s' "$value" >"$new/$key" || fail 74 "$new cannot be written" ;;
            *) fail 64 "unknown fact $key" ;;
        esac
    done
    printf '%s' "$1" >"$new/id" && : >"$new/claim" && : >"$new/armed" ||
        fail 74 "$new cannot be written"
    arm "$(cat "$new/after")" || {
        clear_all
        fail 74 "the dead man's switch could not be armed"
    }
    mv "$new" "$LEASE_DIR" || fail 74 "$LEASE_DIR cannot be made"
}

# STATE LEASE CLAIM, then owner, record and the last failure of the restore in base64
holder() {
    while :; do
        [ -d "$LEASE_DIR" ] || { echo free; return; }
        if [ -e "$LEASE_DIR/armed" ]; then state=armed; else state=restoring; fi
        before=$(fact id)
        answer=$(
            printf '%s %s %s' "$state" "$before" "$(fact claim)"
            for key in owner record failure; do
                echo
                fact "$key"
            done
        )
        # The folder comes and goes in one step: the same id before and after means no torn answer.
        [ -n "$before" ] && [ "$(fact id)" = "$before" ] && break
    done
    printf '%s\n' "$answer"
}

# -- the way back ------------------------------------------------------------------------------

explain() {
    printf '%s\n' "$*" >&2
    printf '%s' "$*" | base64 -w 0 >"$LEASE_DIR/failure" 2>/dev/null
    exit 1
}

# Whether the process that runs is the original's, or one that a restore has started.
untouched() {
    case $(show ActiveState) in
        active | reloading | activating) ;;
        *) return 1 ;;
    esac
    now=$(show InvocationID)
    [ "$now" = "$(fact invocation)" ] && return 0
    [ -n "$now" ] && [ "$now" = "$(fact restarted)" ] && return 0
    [ -e "$LEASE_DIR/applied" ] && return 1
    [ "$(sha256sum <"/proc/$(show MainPID)/cmdline" | cut -c 1-64)" = "$(fact cmdline)" ]
}

bring_back() {
    if ! untouched; then
        systemctl stop -- "$UNIT"
        left=300
        while [ -n "$(inodes "$(fact port)")" ] && [ "$left" -gt 0 ]; do
            sleep 0.2
            left=$((left - 1))
        done
        before=$(show InvocationID)
        systemctl reset-failed -- "$UNIT" 2>/dev/null
        systemctl start --no-block -- "$UNIT" || explain "systemd refused to start $UNIT"
        left=300
        while now=$(show InvocationID) && { [ -z "$now" ] || [ "$now" = "$before" ]; }; do
            [ "$left" -gt 0 ] || explain "$UNIT did not start"
            sleep 0.1
            left=$((left - 1))
        done
        printf '%s' "$now" | put restarted
    fi
    ends=$(($(seconds) + $(fact wait)))
    while :; do
        case $(show ActiveState) in
            failed | inactive) explain "$UNIT ended: result $(show Result)" ;;
            active)
                [ "$(fact port)" = 0 ] && return
                listens "$(fact port)" && return ;;
        esac
        # Restart= of the unit may have started it again, from the same original files.
        now=$(show InvocationID)
        [ -n "$now" ] && printf '%s' "$now" | put restarted
        [ "$(seconds)" -lt "$ends" ] || explain "$UNIT runs but does not listen on $(fact port)"
        sleep 0.2
    done
}

restore() {
    lock
    if [ ! -d "$LEASE_DIR" ]; then
        clear_all
        exit 0
    fi
    if [ -e "$LEASE_DIR/armed" ]; then
        mv "$LEASE_DIR/armed" "$LEASE_DIR/restoring" || explain "/run cannot be written"
    fi
    unlock
    # An export that was not finished is taken back too.
    if [ -e "$LEASE_DIR/exporting" ]; then
        take_export_back || explain "$EXPORT cannot be taken back"
    fi
    remove_dropin || explain "the drop-in cannot be removed"
    if [ "$(fact active)" = 1 ]; then
        bring_back
    else
        systemctl stop -- "$UNIT" || explain "$UNIT does not stop"
        systemctl reset-failed -- "$UNIT" 2>/dev/null
    fi
    lock
    clear_all
}

# -- verbs -------------------------------------------------------------------------------------

if [ "${1-}" = restore ]; then
    restore
    exit 0
fi
read -r verb lease claim first second || fail 64 "no verb"
case $verb in
    hello) sha256sum <"$FOLDER/agent" | cut -c 1-64 ;;
    holder) holder ;;
    acquire) acquire "$lease" ;;
    beat)
        # Without waiting for the lock when it is lost already.
        guard "$lease" -
        lock
        guard "$lease" -
        systemctl restart "$TIMER" || fail 74 "the timer cannot be started again" ;;
    guard) guard "$lease" "$claim" ;;
    claim)
        lock
        guard "$lease" -
        printf '%s' "$claim" | put claim || fail 74 "the claim cannot be written" ;;
    apply)
        lock
        guard "$lease" "$claim"
        if [ -e "$MASK" ] || [ -L "$MASK" ]; then
            fail 72 "$MASK masks the drop-in of the tuner"
        fi
        if [ ! -d "$DROPIN_DIR" ]; then
            : >"$LEASE_DIR/made-folder" && mkdir -p -m 755 "$DROPIN_DIR" ||
                fail 74 "$DROPIN_DIR cannot be made"
        fi
        : >"$LEASE_DIR/applied" || fail 74 "$LEASE_DIR cannot be written"
        new=$DROPIN_DIR/.zzzz-autotune.new
        { cat >"$new" && chmod 644 "$new" && mv "$new" "$DROPIN"; } || {
            rm -f "$new"
            fail 74 "$DROPIN cannot be written"
        }
        systemctl daemon-reload || fail 74 "systemd refused to reload" ;;
    unapply)
        lock
        guard "$lease" "$claim"
        remove_dropin || fail 74 "$DROPIN cannot be removed" ;;
    keep)
        # The command line that runs becomes the unit's own, without another restart: the permanent
        # drop-in comes, the runtime one goes, and with them the lease.
        lock
        guard "$lease" -
        mkdir -p -m 755 "$EXPORT_DIR" || fail 74 "$EXPORT_DIR cannot be made"
        rm -f "$UNDO"
        if [ -e "$EXPORT" ]; then
            cp -p "$EXPORT" "$UNDO" || fail 74 "$UNDO cannot be written"
        fi
        : >"$LEASE_DIR/exporting" || fail 74 "$LEASE_DIR cannot be written"
        new=$EXPORT_DIR/.autotune-export.new
        { cat >"$new" && chmod 644 "$new" && mv "$new" "$EXPORT"; } || {
            rm -f "$new"
            fail 74 "$EXPORT cannot be written"
        }
        remove_dropin || fail 74 "$DROPIN cannot be removed"
        rm -f "$LEASE_DIR/exporting"
        clear_all ;;
    undo)
        lock
        if [ -d "$LEASE_DIR" ]; then
            fail 71 "somebody tunes this unit"
        fi
        if [ ! -e "$EXPORT" ]; then
            echo none
            exit 0
        fi
        take_export_back || fail 74 "$EXPORT cannot be taken back"
        systemctl daemon-reload || fail 74 "systemd refused to reload"
        show InvocationID
        case $(show ActiveState) in
            active | reloading | activating)
                systemctl restart --no-block -- "$UNIT" || fail 74 "$UNIT cannot be restarted" ;;
        esac ;;
    stop)
        lock
        guard "$lease" "$claim"
        systemctl stop --no-block -- "$UNIT" || fail 74 "systemd refused to stop $UNIT" ;;
    kill)
        lock
        guard "$lease" "$claim"
        systemctl kill --signal=KILL -- "$UNIT" 2>/dev/null ;;
    start)
        lock
        guard "$lease" "$claim"
        show InvocationID
        cut -d ' ' -f 1 /proc/uptime
        journalctl -q -n 0 --show-cursor 2>/dev/null | sed -n 's/^-- cursor: //p'
        systemctl reset-failed -- "$UNIT" 2>/dev/null
        systemctl start --no-block -- "$UNIT" || fail 74 "systemd refused to start $UNIT" ;;
    release)
        # Only asks for the way back; it runs as a service and outlives this connection.
        lock
        if [ -d "$LEASE_DIR" ]; then
            [ "$lease" = any ] || [ "$(fact id)" = "$lease" ] || fail 70 "somebody else holds it"
            # Somebody may have cleaned /run/systemd up.
            [ -e "$UNITS/$SERVICE" ] || arm "$(fact after)" || fail 74 "the switch is broken"
            systemctl start --no-block "$SERVICE" || fail 74 "the restore cannot be started"
        fi ;;
    leave)
        lock
        [ -d "$LEASE_DIR" ] || clear_all ;;
    proc)
        [ -d "/proc/$first" ] || exit 3
        base64 -w 0 <"/proc/$first/cmdline" || exit 3
        echo
        base64 -w 0 <"/proc/$first/environ" || exit 3
        echo
        cat "/proc/$first/stat" || exit 3
        getconf CLK_TCK ;;
    owners) owners "$first" ;;
    left)
        read -r group
        pids_of_cgroup "$group" | describe ;;
    hash)
        while IFS= read -r path; do
            if [ -e "$path" ]; then
                sha256sum <"$path" | cut -c 1-64
            else
                echo missing
            fi
        done ;;
    cat) exec systemctl cat --no-pager -- "$UNIT" ;;
    masked) if [ -e "$MASK" ] || [ -L "$MASK" ]; then echo masked; fi ;;
    follow | tail)
        read -r cursor || cursor=
        set -- --all --no-pager -q -o json --output-fields=@FIELDS@
        if [ "$verb" = follow ]; then
            (: >"$FOLDER/follower.$$") 2>/dev/null
            set -- "$@" --follow --no-tail
        else
            set -- "$@" -n "$second"
        fi
        # Not --after-cursor: where the entry at the cursor is none of ours, systemd 252 skips the
        # first one that is.  The reader drops the entry that has the cursor itself.
        [ -n "$cursor" ] && set -- "$@" --cursor="$cursor"
        exec journalctl "$@" "_SYSTEMD_INVOCATION_ID=$first" + "INVOCATION_ID=$first" + \
            "_SYSTEMD_UNIT=$UNIT" ;;
    *) fail 64 "unknown verb $verb" ;;
esac
exit 0
}
