# -- the way back ------------------------------------------------------------------------------

explain() {
    printf '%s\n' "$*" >&2
    printf '%s' "$*" | base64 -w 0 >"$LEASE_DIR/failure" 2>/dev/null
    exit 1
}

# A change that needs a reload; again with the ballast let go where that is refused.  Not before: what
# fills /run in between would leave nothing to let go.
let_go() {
    "$@" || { [ -e "$BALLAST" ] && rm -f "$BALLAST" && "$@"; } || return 1
    rm -f "$BALLAST"
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
        clear_all || explain "/run cannot be written"
        exit 0
    fi
    if [ -e "$LEASE_DIR/armed" ]; then
        mv "$LEASE_DIR/armed" "$LEASE_DIR/restoring" || explain "/run cannot be written"
    fi
    unlock
    # An export that was not finished is taken back too.
    if [ -e "$LEASE_DIR/exporting" ]; then
        take_export_back || explain "the export cannot be taken back"
        rm -f "$LEASE_DIR/exporting"
    fi
    # Once is enough: the next time there is nothing to reload, and no ballast for it.
    if [ ! -e "$LEASE_DIR/reloaded" ]; then
        said=
        let_go remove_dropin || explain "the drop-in cannot be removed: $said"
        mark "$LEASE_DIR/reloaded"
    fi
    if [ "$(fact active)" = 1 ]; then
        bring_back
    else
        systemctl stop -- "$UNIT" || explain "$UNIT does not stop"
        systemctl reset-failed -- "$UNIT" 2>/dev/null
    fi
    lock
    # Not done while it cannot be cleared away: systemd starts this again.
    clear_all || explain "/run cannot be written"
}

