# -- verbs -------------------------------------------------------------------------------------

if [ "${1-}" = restore ]; then
    restore
    exit 0
fi
read -r verb lease claim first second || fail 64 "no verb"
case $verb in
    hello)
        sha256sum <"$FOLDER/agent" | cut -c 1-64
        cat /proc/sys/kernel/random/boot_id ;;
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
            mark "$LEASE_DIR/made-folder" && mkdir -p -m 755 "$DROPIN_DIR" ||
                fail 74 "$DROPIN_DIR cannot be made"
        fi
        mark "$LEASE_DIR/applied" || fail 74 "$LEASE_DIR cannot be written"
        new=$DROPIN_DIR/.zzzz-autotune.new
        { payload >"$new" && chmod 644 "$new" && mv "$new" "$DROPIN"; } || {
            rm -f "$new"
            fail 74 "$DROPIN cannot be written"
        }
        systemctl daemon-reload || fail 74 "systemd refused to reload" ;;
    unapply)
        lock
        guard "$lease" "$claim"
        remove_dropin || fail 74 "$DROPIN cannot be removed" ;;
    keep)
        # The command line that runs becomes the unit's own, without another restart: it is written
        # where it stays and the runtime drop-in goes. Until `kept` the way back takes it back.
        lock
        guard "$lease" -
        case $first in
            drop-in) keep_drop_in ;;
            in-place) keep_in_place "$second" ;;
            *) fail 64 "unknown export $first" ;;
        esac
        let_go remove_dropin || fail 74 "$DROPIN cannot be removed" ;;
    kept)
        lock
        guard "$lease" -
        rm -f "$LEASE_DIR/exporting"
        # The lease is what counts: without it the timer takes nothing back.
        clear_all || [ ! -e "$LEASE_DIR" ] || fail 74 "/run cannot be written" ;;
    exported)
        # Which export stands, and where.
        if [ -e "$EXPORT" ]; then
            echo "drop-in $EXPORT"
        elif [ -e "$(own_file)$NOTE" ]; then
            echo "in-place $(own_file)"
        fi ;;
    undo)
        lock
        if [ -d "$LEASE_DIR" ]; then
            fail 71 "somebody tunes this unit; let it end first"
        fi
        if [ -e "$EXPORT" ]; then
            take_drop_in_back || fail 74 "$EXPORT cannot be taken back"
        elif [ -e "$(own_file)$NOTE" ]; then
            undo_in_place
        else
            echo none
            exit 0
        fi
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
        read -r path || path=
        lock
        guard "$lease" "$claim"
        show InvocationID
        cut -d ' ' -f 1 /proc/uptime
        stat -L -c %s -- "$path" 2>/dev/null || echo 0
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
        if [ ! -d "$LEASE_DIR" ]; then
            end_way_back
            clear_all || fail 74 "/run cannot be written"
        fi ;;
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
    texts)
        while IFS= read -r path; do
            if [ -f "$path" ]; then
                head -c 65536 -- "$path" | base64 -w 0
                echo
            else
                echo -
            fi
        done ;;
    cat) exec systemctl cat --no-pager -- "$UNIT" ;;
    masked) if [ -e "$MASK" ] || [ -L "$MASK" ]; then echo masked; fi ;;
    follow-file)
        # A file from a byte on.  The reader's end of stdin ends it: a `tail` that has nothing to
        # write would never notice that nobody reads.
        read -r path
        pipe=$FOLDER/pipe.$$
        mkfifo "$pipe" || fail 74 "$pipe cannot be made"
        tail -c "+$((first + 1))" -F -- "$path" >"$pipe" 2>/dev/null &
        tail=$!
        (: >"$FOLDER/follower.$tail") 2>/dev/null
        stdbuf -oL tr '\r' '\n' <"$pipe" &
        cat >/dev/null
        kill "$tail"
        rm -f "$pipe" ;;
    tail-file)
        read -r path
        tail -c "+$((first + 1))" -- "$path" 2>/dev/null | tr '\r' '\n' | tail -n "$second" ;;
    gpus) gpus ;;
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
