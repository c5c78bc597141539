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

# Memory of each GPU in MiB, then of each process on one; nothing without the vendor's tool.
gpus() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    for what in gpu=uuid,memory.used compute-apps=gpu_uuid,pid,used_memory; do
        timeout 20 nvidia-smi "--query-$what" --format=csv,noheader,nounits 2>/dev/null |
            sed "s/^/${what%%=*}, /"
    done
}

