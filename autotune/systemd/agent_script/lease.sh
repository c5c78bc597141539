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
ExecStart=/bin/sh -c '{ [ ! -e $FOLDER/agent ] || /bin/sh $FOLDER/agent restore; } && [ ! -e $FOLDER/lease ]'
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=5s
END
    cat >"$UNITS/$TIMER" <<END || return 1
[Unit]
Description=autotune: $UNIT is put back when its tuner is silent for $1 s
# Every heartbeat starts it again: systemd's limit, 5 starts in 10 s, would leave it stopped.
StartLimitIntervalSec=0

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
            journalctl | tail) kill "$pid" ;;
        esac
    done
}

# Nothing of an earlier lease begins any more: a way back that has only to clear up would take the next
# lease for its own, and fail where its unit is gone.
end_way_back() {
    systemctl stop "$TIMER" "$SERVICE"
    systemctl reset-failed "$SERVICE"
} >/dev/null 2>&1

# Take everything of ours away; 0 when all of it is gone.  The lease goes first: whatever interrupts
# this, what is left is harmless and the next call takes it away.  The agent goes last: until then
# systemd can start the way back again, which it has loaded even where its file is gone.
clear_all() {
    if [ -d "$LEASE_DIR" ]; then
        # In one step, so that nobody reads half a lease.
        mv "$LEASE_DIR" "$FOLDER/lease.gone" || rm -rf "$LEASE_DIR" || return 1
    fi
    # While there is a lease its timer runs.
    systemctl stop "$TIMER" 2>/dev/null
    end_followers
    if [ -d "$FOLDER" ]; then
        find "$FOLDER" -mindepth 1 -maxdepth 1 ! -name agent -exec rm -rf {} + || return 1
    fi
    loaded=
    if [ -e "$UNITS/$SERVICE" ] || [ -e "$UNITS/$TIMER" ]; then
        rm -f "$UNITS/$SERVICE" "$UNITS/$TIMER" || return 1
        loaded=1
    fi
    rm -rf "$FOLDER" || return 1
    rmdir /run/autotune 2>/dev/null
    rm -f "$LOCK"
    # Refused it does no harm: systemd forgets by itself what ended and has no file.
    [ -z "$loaded" ] || systemctl daemon-reload
    return 0
}

acquire() {
    facts=$(payload) || fail 74 "the facts did not come"
    lock
    # Somebody who freed the host meanwhile has taken this agent away: it is to be installed again.
    [ -e "$FOLDER/agent" ] || exit 127
    if [ -d "$LEASE_DIR" ]; then
        holder
        exit 71
    fi
    end_way_back
    new=$LEASE_DIR.new
    rm -rf "$new"
    mkdir "$new" || fail 74 "$new cannot be made"
    head -c 20M /dev/zero >"$BALLAST" || {
        rm -rf "$BALLAST" "$new"
        fail 74 "/run has no 20 MB to spare: they keep a way back when it is full"
    }
    while read -r key value; do
        case $key in
            active | invocation | cmdline | listen | port | wait | after | owner | record)
                printf '%s' "$value" >"$new/$key" || fail 74 "$new cannot be written" ;;
            *) fail 64 "unknown fact $key" ;;
        esac
    done <<END
$facts
END
    printf '%s' "$1" >"$new/id" && mark "$new/claim" && mark "$new/armed" ||
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

