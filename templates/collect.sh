#!/bin/sh
# nccl-forensics collect-script: gathers what tells why a distributed GPU job died on this node, into one tar.gz.
# It changes nothing on the system, needs no root (with root it gets more), and says in MANIFEST.txt what it could not
# get. No command can hang it: a GPU that fell off the bus makes tools wait for ever, so none of them is waited for
# longer than LIMIT seconds. Bourne shell of POSIX; dash, bash and busybox ash.
#
#   sh collect.sh [-o DIR] [-l PATH]... [-s SINCE] [-t LIMIT]
#     -o DIR    where the tar.gz goes (default: here)
#     -l PATH   a job log, a Flight Recorder dump, or a folder or pattern of them; may be given several times
#     -s SINCE  kernel log from then on only, as journalctl --since takes it
#     -t LIMIT  seconds for one command (default 60; five times as long for nvidia-bug-report.sh)
set -u
LC_ALL=C
export LC_ALL

out=. since='' limit=60 wanted=''
usage() {
    echo "usage: sh collect.sh [-o DIR] [-l PATH]... [-s SINCE] [-t LIMIT]" >&2
    exit 2
}
while getopts o:l:s:t: option; do
    case $option in
    o) out=$OPTARG ;;
    l) wanted="$wanted$OPTARG
" ;;
    s) since=$OPTARG ;;
    t) limit=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 0 ] || usage
case $limit in '' | *[!0-9]*) usage ;; esac

host=$(hostname 2>/dev/null || uname -n)
host=$(printf %s "${host%%.*}" | tr -c 'A-Za-z0-9_-' _)
stamp=$(date -u +%Y%m%dT%H%M%SZ)
work=$(mktemp -d "${TMPDIR:-/tmp}/collect.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
top=$work/$host
mkdir "$top" || exit 1
manifest=$top/MANIFEST.txt
{
    echo "nccl-forensics collection of $host"
    echo "made $(date '+%Y-%m-%dT%H:%M:%S%z') by $(id -un 2>/dev/null || id -u)"
} >"$manifest"
session=''
command -v setsid >/dev/null 2>&1 && session=setsid
number=0

got() { echo "got      $1" >>"$manifest"; }
lacks() { echo "missing  $1: $2" >>"$manifest"; }

# run SECONDS FILE COMMAND...: what the command prints goes to FILE. A process that cannot even be killed is left behind.
run() {
    seconds=$1 file=$2
    shift 2
    if ! command -v "$1" >/dev/null 2>&1; then
        lacks "$file" "no $1 on this node"
        return
    fi
    number=$((number + 1))
    pid_file=$work/pid.$number status=$work/status.$number
    (
        # shellcheck disable=SC2086
        $session "$@" >"$top/$file" 2>"$work/errors" </dev/null &
        echo $! >"$pid_file"
        wait $!
        echo $? >"$status"
    ) 2>/dev/null &
    tenths=0
    while [ ! -s "$status" ] && [ "$tenths" -lt $((seconds * 10)) ]; do
        if sleep 0.1 2>/dev/null; then
            tenths=$((tenths + 1))
        else
            sleep 1
            tenths=$((tenths + 10))
        fi
    done
    if [ ! -s "$status" ]; then
        pid=$(cat "$pid_file")
        kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null
        lacks "$file" "$* did not end within $seconds s (a hung tool is a finding of its own)"
    elif [ "$(cat "$status")" != 0 ]; then
        lacks "$file" "$* ended with status $(cat "$status"): $(head -n 1 "$work/errors" | cut -c1-200)"
    else
        got "$file"
    fi
    [ -s "$top/$file" ] || rm -f "$top/$file"
}

# copy FOLDER PATH: a file or folder of this node, into FOLDER of the collection.
copy() {
    mkdir -p "$top/$1" && cp -R "$2" "$top/$1/" 2>"$work/errors" && got "$1/${2##*/} (from $2)" && return
    lacks "$1/${2##*/}" "$(head -n 1 "$work/errors" | cut -c1-200)"
}

# --- kernel, clocks ----------------------------------------------------------------------------------------------------
run "$limit" dmesg.txt dmesg
run "$limit" dmesg-wall.txt dmesg -T
for boot in 0 -1 -2; do
    if [ -n "$since" ]; then
        run "$limit" "journal-kernel-boot$boot.txt" journalctl -k -b "$boot" -o short-iso-precise --no-pager --since "$since"
    else
        run "$limit" "journal-kernel-boot$boot.txt" journalctl -k -b "$boot" -o short-iso-precise --no-pager
    fi
done
run "$limit" clock-date.txt date '+%Y-%m-%dT%H:%M:%S%z %Z'
run "$limit" clock-timedatectl.txt timedatectl
run "$limit" clock-chrony.txt chronyc -n tracking
run "$limit" uptime.txt cat /proc/uptime

# What the kernel said as it died, where firmware or systemd kept it.
kept=0
for path in /sys/fs/pstore/* /var/lib/systemd/pstore/*; do
    if [ -r "$path" ]; then
        copy pstore "$path"
        kept=$((kept + 1))
    fi
done
[ "$kept" -gt 0 ] || lacks pstore "no last words of a kernel in /sys/fs/pstore or /var/lib/systemd/pstore (reading them needs root)"

# --- GPUs, boards, network, file systems -------------------------------------------------------------------------------
run "$limit" nvidia-smi-L.txt nvidia-smi -L
run "$limit" nvidia-smi-q.txt nvidia-smi -q
run "$limit" nvidia-smi-topo.txt nvidia-smi topo -m
run "$limit" nvidia-smi-query.csv nvidia-smi \
    --query-gpu=timestamp,index,pci.bus_id,uuid,serial,name,temperature.gpu,power.draw,pstate,pcie.link.gen.current,pcie.link.width.current,ecc.errors.uncorrected.volatile.total \
    --format=csv
run "$limit" lspci.txt lspci -D -vvv
run "$limit" dmidecode.txt dmidecode -t baseboard -t 39
run "$limit" bmc-sel.txt ipmitool sel elist
run "$limit" bmc-sensors.txt ipmitool sdr elist
run "$limit" ibstat.txt ibstat
for path in /sys/class/net/*; do
    name=${path##*/}
    [ -e "$path/device" ] && run "$limit" "ethtool-$name.txt" ethtool -S "$name"
done
run "$limit" df.txt df -hT
run "$limit" mount.txt mount

# --- schedulers --------------------------------------------------------------------------------------------------------
run "$limit" slurm-node.txt scontrol show node "$host"
run "$limit" slurm-topology.txt scontrol show topology
run "$limit" slurm-jobs.txt sacct -P -X -S now-3days -o JobID,JobName,State,ExitCode,Start,End,NodeList
run "$limit" kubernetes-nodes.txt kubectl get nodes -o wide
run "$limit" kubernetes-events.txt kubectl get events -A --sort-by=.lastTimestamp

# --- the job's own files -----------------------------------------------------------------------------------------------
newline='
'
IFS=$newline
# unquoted on purpose: patterns are expanded, one a line
# shellcheck disable=SC2086
for path in $wanted; do
    if [ -e "$path" ]; then copy job "$path"; else lacks "job/${path##*/}" "there is no $path"; fi
done
found=0
for prefix in "${TORCH_FR_DUMP_TEMP_FILE:-}" "${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-}" /tmp/nccl_trace_rank_ /tmp/comm_lib_trace_rank_; do
    [ -n "$prefix" ] || continue
    for path in "$prefix"*; do
        if [ -f "$path" ] && [ ! -e "$top/job/${path##*/}" ]; then
            copy job "$path"
            found=$((found + 1))
        fi
    done
done
[ "$found" -gt 0 ] || lacks "Flight Recorder dumps" "none at TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE or /tmp"
unset IFS

# --- last, since it takes longest --------------------------------------------------------------------------------------
if [ "$(id -u)" -eq 0 ]; then
    run $((limit * 5)) nvidia-bug-report.out nvidia-bug-report.sh --output-file "$top/nvidia-bug-report.log"
    rm -f "$top/nvidia-bug-report.out"
else
    lacks nvidia-bug-report.log.gz "needs root: sudo nvidia-bug-report.sh"
fi

name=collect-$host-$stamp.tar.gz
(cd "$work" && tar -cf - "$host") | gzip >"$out/.$name" && mv "$out/.$name" "$out/$name" || exit 1
grep '^missing' "$manifest" >&2
echo "$out/$name"
