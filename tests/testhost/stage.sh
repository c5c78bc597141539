#!/bin/sh
# PID 1 of a test host until it becomes systemd: mounts what every boot starts with, then leaves
# the machine's files behind. Runs in new pid, mount, cgroup (and time) namespaces.
# Arguments: ROOT CONSOLE NOTIFY MACHINE_ID CAPABILITIES [BIND...]; prints its process id as the machine sees it.
set -eu
umask 022
root=$1 console=$2 notify=$3 machine_id=$4 capabilities=$5
shift 5
read -r pid _ </proc/self/stat # still the machine's /proc
echo "$pid"

cd "$root"
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs tmp
mount -t tmpfs -o nosuid,mode=755 tmpfs dev
mkdir run/host dev/pts dev/shm
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs dev/shm
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${node%:*}" c 1 "${node#*:}"
done
mknod -m 666 dev/tty c 5 0
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${stream%:*}" "dev/${stream#*:}"; done
touch dev/console run/host/notify
mount --bind "$console" dev/console
mount --bind "$notify" run/host/notify

# The kernel has one boot id for all; a host has its own at each boot.
cat /proc/sys/kernel/random/uuid >run/host/boot_id
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount --bind run/host/boot_id proc/sys/kernel/random/boot_id
# Root in the host is root of the machine: what could change the machine is read-only or hidden.
mount -o remount,bind,ro proc/sys
for path in proc/sysrq-trigger proc/irq proc/bus; do
    [ ! -e $path ] || { mount --bind $path $path && mount -o remount,bind,ro $path; }
done
for path in proc/kcore proc/kmsg; do [ ! -e $path ] || mount --bind dev/null $path; done

for path; do
    if [ -d "$path" ]; then mkdir -p ".$path"; else mkdir -p ".${path%/*}" && touch ".$path"; fi
    mount --bind "$path" ".$path"
    mount -o remount,bind,ro,nosuid,nodev ".$path"
done

pivot_root . mnt
cd /
umount -l mnt
exec </dev/null >/dev/null 2>&1
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
    container=testhost container_uuid="$machine_id" NOTIFY_SOCKET=/run/host/notify \
    setpriv --inh-caps=-all "--bounding-set=$capabilities" -- \
    /lib/systemd/systemd --system --show-status=true
