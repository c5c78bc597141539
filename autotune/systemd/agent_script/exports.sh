# -- configurations that stay -------------------------------------------------------------------
#
#   $EXPORT, $UNDO           an export as a drop-in, and the export before it
#   FILE.autotune-before     the unit's own file as its user had it, beside an export in place
#   FILE.autotune-export     says what the export wrote: comments and `sha256 HASH`
#
# While one is written the lease has `exporting`: its kind, then the file in place.

BEFORE=.autotune-before
NOTE=.autotune-export

own_file() { readlink -f -- "$(show FragmentPath)"; }
hash_of() { sha256sum <"$1" | cut -c 1-64; }
same() { [ -e "$2" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
written_hash() { sed -n 's/^sha256 //p' "$1$NOTE" 2>/dev/null; }

keep_drop_in() {
    mkdir -p -m 755 "$EXPORT_DIR" || fail 74 "$EXPORT_DIR cannot be made"
    {
        keep_before "$EXPORT" export-before && keep_before "$UNDO" undo-before &&
            echo drop-in | put exporting
    } || fail 74 "$LEASE_DIR cannot be written"
    put_before export-before "$UNDO" || fail 74 "$UNDO cannot be written"
    new=$EXPORT_DIR/.autotune-export.new
    { payload >"$new" && chmod 644 "$new" && mv "$new" "$EXPORT"; } || {
        rm -f "$new"
        fail 74 "$EXPORT cannot be written"
    }
}

# A file as it was, beside the lease; nothing where there is none.
keep_before() { [ ! -e "$1" ] || cp -p "$1" "$LEASE_DIR/$2"; }

# A file is again what was kept of it, also when that was done before.
put_before() {
    if [ -e "$LEASE_DIR/$1" ]; then
        same "$LEASE_DIR/$1" "$2" || replace "$LEASE_DIR/$1" "$2"
    else
        rm -f "$2"
    fi
}

# The payload: the note in base64 on a line of its own, then the file.
keep_in_place() {
    file=$(own_file)
    [ "$(hash_of "$file")" = "$1" ] || fail 72 "$file has changed since it was read"
    payload >"$LEASE_DIR/payload" || fail 74 "$LEASE_DIR cannot be written"
    note=$(head -n 1 "$LEASE_DIR/payload")
    {
        cp -p "$file" "$LEASE_DIR/unit-file" &&
            if [ -e "$file$NOTE" ]; then
                cp -p "$file$NOTE" "$LEASE_DIR/unit-note" &&
                    cp -p "$file$BEFORE" "$LEASE_DIR/unit-before"
            fi && printf 'in-place\n%s\n' "$file" | put exporting
    } || fail 74 "$LEASE_DIR cannot be written"
    # What is kept is the user's own text: over an export that nobody has touched it stays.
    if [ ! -e "$file$BEFORE" ] || [ "$(written_hash "$file")" != "$1" ]; then
        replace "$LEASE_DIR/unit-file" "$file$BEFORE" || fail 74 "$file$BEFORE cannot be written"
    fi
    new=$file.autotune-new
    {
        printf '%s' "$note" | base64 -d >"$new" && chmod 644 "$new" && mv "$new" "$file$NOTE" &&
            cp -p "$file" "$new" && tail -n +2 "$LEASE_DIR/payload" >"$new" && mv "$new" "$file"
    } || {
        rm -f "$new"
        fail 74 "$file cannot be written"
    }
}

# One file for another, in one step, with its mode, owner and time.
replace() {
    cp -p "$1" "$2.autotune-new" && mv "$2.autotune-new" "$2" && return
    rm -f "$2.autotune-new"
    return 1
}

take_drop_in_back() {
    if [ -e "$UNDO" ]; then
        mv "$UNDO" "$EXPORT" || return 1
    else
        rm -f "$EXPORT" || return 1
    fi
    tidy_export_dir
}

tidy_export_dir() {
    rm -f "$EXPORT_DIR/.autotune-export.new"
    rmdir "$EXPORT_DIR" 2>/dev/null
    return 0
}

# An export that was not finished goes, what it replaced comes back.
take_export_back() {
    [ "$(fact exporting | head -n 1)" = in-place ] || {
        # The disk may be full: what the next undo would go back to is the same file.
        put_before export-before "$EXPORT" || {
            same "$LEASE_DIR/export-before" "$UNDO" && mv "$UNDO" "$EXPORT"
        } || return 1
        put_before undo-before "$UNDO" || return 1
        tidy_export_dir
        return
    }
    file=$(fact exporting | tail -n 1)
    rm -f "$file.autotune-new"
    # Where it was never changed it may be because nobody can write there.
    same "$LEASE_DIR/unit-file" "$file" ||
        replace "$LEASE_DIR/unit-file" "$file" || return 1
    if [ -e "$LEASE_DIR/unit-note" ]; then
        replace "$LEASE_DIR/unit-before" "$file$BEFORE" &&
            replace "$LEASE_DIR/unit-note" "$file$NOTE"
    else
        rm -f "$file$NOTE" "$file$BEFORE"
    fi
}

undo_in_place() {
    file=$(own_file)
    [ "$(hash_of "$file")" = "$(written_hash "$file")" ] ||
        fail 72 "$file has changed since the export wrote it; $file$BEFORE is what it was before"
    { mv "$file$BEFORE" "$file" && rm -f "$file$NOTE"; } || fail 74 "$file cannot be put back"
}

