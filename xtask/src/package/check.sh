# Tries packages out under systemd, in namespaces on top of this system, which stays unchanged.
set -euo pipefail
scratch=$(dirname "$(realpath "$0")")

# Makes the namespaces, prints the output from them, and ends with their result.
outside() {
    mkdir -p "$scratch"/{root,first}
    cp "$1"/*.deb "$scratch/first"
    # The static worker, if it was made, too.
    cp "$1"/switchml-worker-*-static "$scratch/static-worker" 2> /dev/null || true
    touch "$scratch/log"
    local code=0
    unshare --mount --pid --ipc --net --uts --fork --kill-child bash "$0" boot || code=$?
    cat "$scratch/log"
    [[ $code == 0 && $(tail -1 "$scratch/log") == "all is well" ]]
}

# Runs in the namespaces as process 1: becomes systemd, on an overlay in memory.
boot() {
    local root=$scratch/root
    mount -t tmpfs tmpfs "$root"
    mkdir "$root"/{upper,work,all}
    mount -t overlay overlay "$root/all" \
        -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work"
    cd "$root/all"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t bpf -o mode=0700 bpf sys/fs/bpf
    mount -t tmpfs tmpfs run
    mount --rbind /dev dev
    mount -t tmpfs tmpfs sys/fs/cgroup
    if mount -t cgroup2 cgroup2 sys/fs/cgroup && grep -q cpu sys/fs/cgroup/cgroup.controllers; then
        :
    else
        # The system's controllers are in version 1 hierarchies: systemd needs none of them, but two
        # hierarchies of its own.
        umount sys/fs/cgroup
        mount -t tmpfs tmpfs sys/fs/cgroup
        mkdir sys/fs/cgroup/{unified,systemd}
        mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
        mount -t cgroup -o none,name=systemd,xattr cgroup sys/fs/cgroup/systemd
    fi
    # Container images have this file, so that no service is started.
    rm -f usr/sbin/policy-rc.d
    mkdir check
    mount --bind "$scratch" check
    cat > etc/systemd/system/check.service << UNIT
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=/bin/bash /check/check.sh inside
ExecStopPost=/bin/systemctl exit
StandardOutput=append:/check/log
StandardError=append:/check/log
UNIT
    export container=other
    exec unshare --cgroup chroot . /lib/systemd/systemd --unit=check.service --log-target=null
}

# The files where packages put theirs.
files() {
    find /etc /opt /srv /usr /var \( -path /var/cache -o -path /var/lib/dpkg \
        -o -path /var/lib/systemd -o -path /var/log \) -prune -o -print | sort
}

# A rack of two workers at a bridge, whose address the aggregator serves.
rack() {
    ip link set lo up
    ip link add br0 type bridge
    ip address add 10.88.0.254/24 dev br0
    ip link set br0 up
    local rank
    for rank in 0 1; do
        ip netns add "w$rank"
        ip link add "p$rank" type veth peer name eth0 netns "w$rank"
        ip link set "p$rank" master br0 up
        ip -n "w$rank" address add "10.88.0.$((rank + 1))/24" dev eth0
        ip -n "w$rank" link set eth0 up
    done
}

# Runs $1 all-reduces of two ranks, and checks every element. If there is a static worker, it is one
# of the ranks.
bench() {
    local rank others=() workers=(switchml-worker switchml-worker)
    if [[ -e /check/static-worker ]]; then workers[1]=/check/static-worker; fi
    for rank in 0 1; do
        ip netns exec "w$rank" "${workers[$rank]}" bench --aggregator 10.88.0.254 --rank "$rank" \
            --world-size 2 --job check -b 4M -e 4M -w 0 -n "$1" -c "$1" > "/check/rank$rank" 2>&1 &
        others+=($!)
    done
    wait "${others[0]}" && wait "${others[1]}" || {
        cat /check/rank*
        false
    }
}

daemon() { systemctl show --property MainPID --value switchml-aggregator; }

inside() {
    exec 2>&1
    trap 'echo "failed in line $LINENO"; journalctl --no-pager -n 30 -u switchml-aggregator' ERR
    local before
    before=$(files)
    rack
    dpkg -i /check/first/*.deb
    systemctl is-active switchml-aggregator
    switchml-aggregator status
    echo "installed, and serves this host"

    printf 'iface = ["p0", "p1"]\n' > /etc/switchml/aggregator.toml
    systemctl restart switchml-aggregator
    grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' "/proc/$(daemon)/status"
    # CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF are bits 12, 38 and 39.
    grep -q '^CapEff:[[:space:]]*000000c000001000$' "/proc/$(daemon)/status"
    bench 20
    cat /check/rank0
    echo "the benchmark passes"

    local old load
    old=$(daemon)
    bench 100 &
    load=$!
    until switchml-aggregator jobs | grep -q started; do sleep 0.1; done
    dpkg -i --force-confold /check/next/*.deb
    [[ $(daemon) != "$old" ]]
    kill -0 "$load"
    wait "$load"
    journalctl --no-pager -u switchml-aggregator | grep 'restored, started'
    echo "an upgrade under load lost nothing"

    dpkg --purge switchml-aggregator switchml-worker libswitchml-dev libswitchml0
    diff <(printf '%s\n' "$before") <(files)
    [[ ! -e /sys/fs/bpf/switchml-aggregator && -z $(getent passwd switchml) ]]
    [[ $(systemctl show --property LoadState --value switchml-aggregator) == not-found ]]
    ! tc filter show dev p0 ingress | grep .
    echo "all is well"
}

"$@"
