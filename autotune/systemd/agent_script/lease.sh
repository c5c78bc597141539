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

# Take everything of ours away.  The lease goes first: whatever interrupts this, what is left is
# harmless and the next call takes it away.  Says whether the lease is gone.
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
    [ ! -e "$LEASE_DIR" ]
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

