# ruff: noqa: E501 - the lines of logs are as long as they are
"""Logs of machines and jobs that are well, full of words that scare: a negative corpus, made from a seed.

    python tests/healthy.py FOLDER [MEGABYTES] [SEED]

Shapes are those of the writers' sources and of public logs; names, numbers and times are drawn. Nothing in it is a
reason to accuse anybody: corrected errors come once, links go up after they were down, retries succeed, caught
exceptions are followed by steps, and every job ends.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

FIELD = re.compile(r"<([a-z]+)(?::(\d+):(\d+))?>")
Draw = Callable[[random.Random], str]

BOOT = """
Linux version <kernel> (buildd@builder) (gcc (Ubuntu 13.3.0) 13.3.0, GNU ld 2.42) #53 SMP PREEMPT_DYNAMIC Sat Jan 11 00:06:25 UTC 2025
Command line: BOOT_IMAGE=/vmlinuz-<kernel> root=/dev/mapper/vg0-root ro crashkernel=512M iommu=pt nomodeset panic=10
BIOS-provided physical RAM map:
[Firmware Bug]: TSC_DEADLINE disabled due to Errata; please update microcode to version: 0x52 (or later)
ACPI: RSDP 0x00000000000F05B0 000024 (v02 ALASKA)
ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.RP<n:1:9>._PRT], AE_NOT_FOUND (20230628/psargs-330)
ACPI Error: Aborting method \\_SB.PC00.RP<n:1:9>._PRT due to previous error (AE_NOT_FOUND) (20230628/psparse-529)
ACPI: \\_SB_.PC0<n:1:4>: _OSC: platform does not support [AER LTR DPC]
mce: CPU<n:0:63>: Thermal monitoring enabled (TM1)
MCE: In-kernel MCE decoding enabled.
EDAC MC: Ver: 3.0.0
EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0: DEV 0000:7e:0c.0 (INTERRUPT)
HEST: Table parsing has been initialized.
ERST: Error Record Serialization Table (ERST) support is initialized.
GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.
pstore: Registered erst as persistent store backend
PCI: Using configuration type 1 for base access
pci 0000:00:1c.0: BAR 13: no space for [io  size 0x1000]
pci 0000:00:1c.0: BAR 13: failed to assign [io  size 0x1000]
pci <pci>: <n:16:63>.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at 0000:00:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)
pcieport 0000:00:01.1: PME: Signaling with IRQ 36
pcieport 0000:00:01.1: AER: enabled with IRQ 36
pcieport 0000:00:01.1: pciehp: Slot #<n:1:9> AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl+ IbPresDis- LLActRep+
pcieport 0000:00:01.1: pciehp: Slot(<n:1:9>): Card not present
DMAR: IOMMU enabled
DMAR: Host address width 52
DMAR-IR: Enabled IRQ remapping in x2apic mode
AMD-Vi: Interrupt remapping enabled
rtc_cmos rtc_cmos: setting system clock to 2026-03-02T05:12:41 UTC (1772428361)
audit: initializing netlink subsys (disabled)
audit: type=2000 audit(1772428361.234:1): state=initialized audit_enabled=0 res=1
x86/amd: Previous system reset reason [0x00080800]: software wrote 0x6 to reset control register 0xCF9
x86/cpu: SGX disabled or unsupported by BIOS.
microcode: Current revision: 0x0b000571
random: crng init done
squashfs: version 4.0 (2009/01/31) Phillip Lougher
ata<n:1:8>: SATA max UDMA/133 abar m2048@0x92080000 port 0x92080100 irq 55
ata<n:1:8>: SATA link down (SStatus 0 SControl 300)
ata<n:1:8>: SATA link down (SStatus 4 SControl 300)
ata<n:1:8>: SATA link up 6.0 Gbps (SStatus 133 SControl 300)
ata1.00: supports DRM functions and may not be fully accessible
nvme nvme<n:0:7>: missing or invalid SUBNQN field.
nvme nvme<n:0:7>: 64/0/0 default/read/poll queues
nvme nvme<n:0:7>: Shutdown timeout set to 10 seconds
md/raid1:md0: active with 2 out of 2 mirrors
EXT4-fs (dm-0): INFO: recovery required on readonly filesystem
EXT4-fs (dm-0): recovery complete
EXT4-fs (dm-0): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none.
XFS (nvme1n1): Mounting V5 Filesystem
XFS (nvme1n1): Ending clean mount
usb 1-<n:1:9>: device descriptor read/64, error -71
usb 1-<n:1:9>: can't set config #1, error -71
usb 1-<n:1:9>: USB disconnect, device number <n:2:40>
xhci_hcd 0000:00:14.0: xHC error in resume, USBSTS 0x401, Reinit
i8042: No controller found
cfg80211: failed to load regulatory.db
platform regulatory.0: Direct firmware load for regulatory.db failed with error -2
iwlwifi 0000:03:00.0: Direct firmware load for iwlwifi-so-a0-gf-a0-83.ucode failed with error -2
Bluetooth: hci0: command 0xfc05 tx timeout
ast 0000:02:00.0: [drm] Using default configuration
thermal thermal_zone0: failed to read out thermal zone (-61)
ipmi_si IPI0001:00: IPMI message handler: Found new BMC (man_id: 0x002a7c, prod_id: 0x1d0a, dev_id: 0x20)
igb 0000:06:00.0 eno1: igb: eno1 NIC Link is Down
igb 0000:06:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX
ixgbe 0000:19:00.0: Multiqueue Enabled: Rx Queue count = 63, Tx Queue count = 63 XDP Queue count = 0
i40e 0000:1a:00.0 ens1f0: NIC Link is Down
i40e 0000:1a:00.0 ens1f0: NIC Link is Up, 25 Gbps Full Duplex, Requested FEC: None, Negotiated FEC: None
bnxt_en 0000:c1:00.0 ens3f0np0: NIC Link is Down
bnxt_en 0000:c1:00.0 ens3f0np0: NIC Link is Up, 100000 Mbps full duplex, Flow control: none
mlx5_core 0000:49:00.0: firmware version: 28.39.<n:1000:4000>
mlx5_core 0000:49:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)
mlx5_core 0000:49:00.0: E-Switch: Total vports 2, per vport: max uc(128) max mc(2048)
mlx5_core 0000:49:00.0: Port module event: module 0, Cable unplugged
mlx5_core 0000:49:00.0: Port module event: module 0, Cable plugged
mlx5_core 0000:49:00.0: mlx5_pcie_event:301:(pid 9): PCIe slot advertised sufficient power (75W).
mlx5_core 0000:49:00.0: MLX5E: StrdRq(1) RqSz(8) StrdSz(2048) RxCqeCmprss(0 enhanced)
mlx5_core 0000:49:00.0 ens6np0: Link down
mlx5_core 0000:49:00.0 ens6np0: Link up
IPv6: ADDRCONF(NETDEV_UP): ib<n:0:7>: link is not ready
IPv6: ADDRCONF(NETDEV_CHANGE): ib<n:0:7>: link becomes ready
bond0: (slave eth1): link status definitely down, disabling slave
bond0: (slave eth1): link status definitely up, 100000 Mbps full duplex
nvidia: loading out-of-tree module taints kernel.
nvidia: module license 'NVIDIA' taints kernel.
Disabling lock debugging due to kernel taint
nvidia: module verification failed: signature and/or required key missing - tainting kernel
nvidia-nvlink: Nvlink Core is being initialized, major device number 510
nvidia <pci>: enabling device (0000 -> 0003)
nvidia <pci>: vgaarb: changed VGA decodes: olddecodes=io+mem,decodes=none:owns=none
NVRM: loading NVIDIA UNIX <flavour>x86_64  <driver>  Mon Dec 30 17:44:08 UTC 2024
resource sanity check: requesting [mem 0x000c0000-0x000fffff], which spans more than PCI Bus 0000:00 [mem 0x000c0000-0x000dffff window]
caller os_map_kernel_space.part.0+0x8d/0xb0 [nvidia] mapping multiple BARs
nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  <driver>  Mon Dec 30 17:36:03 UTC 2024
[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver
[drm] Initialized nvidia-drm 0.0.0 20160202 for <pci> on minor <n:0:7>
nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia, inheriting taint.
nvidia-uvm: Loaded the UVM driver, major device number 235.
nvidia-nvswitch<n:0:3>: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link <n:0:63> Minion Link DLREQ interrupt
nvidia-nvswitch<n:0:3>: SXid (PCI:0000:05:00.0): 22013, Severity 0 Engine instance <n:0:63> Sub-engine instance 00
nvidia-nvswitch<n:0:3>: SXid (PCI:0000:05:00.0): 22013, Data {0x00000004, 0x00000004, 0x00000000}
nvidia-gpu 0000:01:00.3: i2c timeout error e0000000
ucsi_ccg 0-0008: i2c_transfer failed -110
ucsi_ccg 0-0008: ucsi_ccg_init failed - -110
ucsi_ccg: probe of 0-0008 failed with error -110
nvidia_peermem: module license 'unspecified' taints kernel
RPC: Registered named UNIX socket transport module.
FS-Cache: Netfs 'nfs' registered for caching
NFS: Registering the id_resolver key type
Key type id_legacy registered
Lustre: Lustre: Build Version: 2.15.5
Lustre: Mounted scratch-client
libceph: mon0 (1)10.0.3.<n:1:200>:6789 session established
bridge: filtering via arp/ip/ip6tables is no longer available by default. Update your scripts to load br_netfilter if you need this.
systemd[1]: systemd-journald.service: Deactivated successfully.
watchdog: iTCO_wdt: unable to reset NO_REBOOT flag, device disabled by hardware/BIOS
floppy0: no floppy controllers found
blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
Buffer I/O error on dev fd0, logical block 0, async page read
sd 0:0:0:0: [sda] No Caching mode page found
sd 0:0:0:0: [sda] Assuming drive cache: write through
sd 6:0:0:0: Power-on or device reset occurred
ata2: softreset failed (device not ready)
NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.
nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device DP-0
mlx5_core 0000:49:00.0: mlx5_pcie_event:304:(pid 9): Detected insufficient power on the PCIe slot (27W).
nvme nvme0: Ignoring bogus Namespace Identifiers
snd_hda_intel 0000:01:00.1: azx_get_response timeout, switching to polling mode: last cmd=0x00170500
tpm tpm0: A TPM error (256) occurred attempting the self test
i915 0000:00:02.0: [drm] *ERROR* GT0: GuC initialization failed -ENOENT
NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.
kvm_amd: SVM disabled (by BIOS) in MSR_VM_CR on CPU 0
"""
"""Kernel messages of a boot that went well, in the order of a boot, from workstations and servers mixed."""

LATER = """
docker0: port <n:1:9>(veth<hex>) entered blocking state
docker0: port <n:1:9>(veth<hex>) entered disabled state
device veth<hex> entered promiscuous mode
device veth<hex> left promiscuous mode
veth<hex>: renamed from eth0
eth0: renamed from veth<hex>
IPv6: ADDRCONF(NETDEV_CHANGE): veth<hex>: link becomes ready
cni0: port <n:1:30>(veth<hex>) entered forwarding state
cali<hex>: Caught tx_queue_len zero misconfig
overlayfs: fs on '/var/lib/docker/overlay2/l/<hex>' does not support file handles, falling back to xino=off.
perf: interrupt took too long (<n:2500:9000> > 2500), lowering kernel.perf_event_max_sample_rate to 79750
hrtimer: interrupt took <n:4000:90000> ns
workqueue: mlx5_cmd_work_handler hogged CPU for >10000us <n:4:64> times, consider switching to WQ_UNBOUND
audit: type=1400 audit(<epoch>.<n:100:999>:<n:100:99999>): apparmor="DENIED" operation="open" profile="/usr/sbin/cupsd" name="/etc/paperspecs" pid=<pid> comm="cupsd" requested_mask="r" denied_mask="r" fsuid=0 ouid=0
audit: type=1326 audit(<epoch>.<n:100:999>:<n:100:99999>): auid=1000 uid=1000 gid=1000 ses=3 subj=snap.firefox pid=<pid> comm="firefox" exe="/snap/firefox/x" sig=0 arch=c000003e syscall=314 compat=0 ip=0x7f code=0x50000
audit: type=1131 audit(<epoch>.<n:100:999>:<n:100:99999>): pid=1 uid=0 auid=4294967295 ses=4294967295 msg='unit=fwupd comm="systemd" exe="/usr/lib/systemd/systemd" hostname=? addr=? terminal=? res=failed'
[UFW BLOCK] IN=eno1 OUT= MAC=01:00:5e:00:00:01 SRC=10.0.0.<n:1:250> DST=224.0.0.1 LEN=32 TOS=0x00 PREC=0xC0 TTL=1 ID=0 DF PROTO=2
TCP: request_sock_TCP: Possible SYN flooding on port <n:20000:60000>. Sending cookies.
process '/opt/conda/bin/python' started with executable stack
python3 (<pid>): drop_caches: 3
capability: warning: `python3' uses 32-bit capabilities (legacy support in use)
pt_main_thread[<pid>]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set
kauditd_printk_skb: <n:2:90> callbacks suppressed
systemd-journald[<n:400:900>]: Time jumped backwards, rotating.
EXT4-fs (nvme0n1p2): re-mounted <hex>-b8a1 r/w. Quota mode: none.
nvidia-uvm: Unloaded the UVM driver.
nvidia-uvm: Loaded the UVM driver, major device number 235.
usb 3-<n:1:9>: new high-speed USB device number <n:3:60> using xhci_hcd
usb 3-<n:1:9>: reset high-speed USB device number <n:3:60> using xhci_hcd
input: Logitech USB Receiver as /devices/pci0000:00/0000:00:14.0/usb3/3-2/input/input<n:9:40>
ACPI Error: No handler for Region [POWR] (00000000a1b2c3d4) [IPMI] (20230628/evregion-130)
ACPI Error: Region IPMI (ID=7) has no handler (20230628/exfldio-261)
power_meter ACPI000D:00: Ignoring unsafe software power cap!
SELinux:  Context system_u:object_r:container_file_t:s0 is not valid (left unmapped).
sched: RT throttling activated
clocksource: timekeeping watchdog on CPU<n:0:63>: hpet wd-wd read-back delay of <n:50000:90000>ns
bpf: LSM program attach failed with -EOPNOTSUPP, feature is not available
nfs: Deprecated parameter 'intr'
NFS: state manager: lease expired check skipped
loop<n:0:30>: detected capacity change from 0 to <n:1000:900000>
"""
"""Kernel messages of a machine at work. What is drawn here may come any number of times."""

ONCE = """
mce: [Hardware Error]: Machine check events logged
mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010091
EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1f3a2 offset:0x40 grain:32 syndrome:0x0 -  err_code:0x0101:0x0091)
pcieport 0000:c0:01.1: AER: Corrected error received: 0000:c1:00.0
nvidia 0000:c1:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
nvidia 0000:c1:00.0:   device [10de:2330] error status/mask=00000001/0000a000
nvidia 0000:c1:00.0:    [ 0] RxErr                  (First)
CPU<n:0:63>: Core temperature is above threshold, cpu clock is throttled (total events = 1)
CPU<n:0:63>: Core temperature/speed normal (total events = 1)
CPU<n:0:63>: Package temperature is above threshold, cpu clock is throttled (total events = 1)
CPU<n:0:63>: Package temperature/speed normal (total events = 1)
gnome-shell[<pid>]: segfault at 8 ip 00007f3ad0a1b2c4 sp 00007ffd1c9a0c80 error 4 in libmutter-10.so.0.0.0[7f3ad09c0000+16f000]
traps: chrome[<pid>] trap invalid opcode ip:55d0c1a2b3c4 sp:7ffc0a1b2c30 error:0 in chrome[55d0bd000000+a1b2000]
"""
"""Once a boot, hours before or after anything else: corrected, throttled for a moment, or not the job's."""

DAEMONS = """
systemd[1]: Starting Cleanup of Temporary Directories...
systemd[1]: fwupd-refresh.service: Main process exited, code=exited, status=1/FAILURE
systemd[1]: fwupd-refresh.service: Failed with result 'exit-code'.
systemd[1]: Failed to start Refresh fwupd metadata and update motd.
systemd[1]: snapd.service: State 'stop-sigterm' timed out. Killing.
systemd[1]: snapd.service: Killing process <pid> (snapd) with signal SIGKILL.
systemd[1]: session-<n:1:900>.scope: Deactivated successfully.
systemd[1]: user@1000.service: Killing process <pid> (at-spi2-registr) with signal SIGKILL.
systemd-networkd-wait-online[<n:400:900>]: Timeout occurred while waiting for network connectivity.
systemd-logind[<n:400:900>]: New session <n:1:900> of user trainer.
systemd-resolved[<n:400:900>]: Using degraded feature set UDP instead of UDP+EDNS0 for DNS server 10.0.0.2.
systemd-udevd[<n:400:900>]: nvidia: Process '/usr/bin/bash -c ...' failed with exit code 1.
systemd-oomd[<n:400:900>]: No swap; memory pressure usage will be degraded
sshd[<pid>]: error: kex_exchange_identification: Connection closed by remote host
sshd[<pid>]: Connection reset by 10.0.0.<n:1:250> port <n:30000:60000> [preauth]
sshd[<pid>]: fatal: Timeout before authentication for 10.0.0.<n:1:250> port <n:30000:60000>
sshd[<pid>]: pam_unix(sshd:session): session opened for user trainer(uid=1000) by (uid=0)
CRON[<pid>]: (root) CMD (   cd / && run-parts --report /etc/cron.hourly)
chronyd[<n:400:900>]: Selected source 10.0.0.5 (ntp1.example.net)
dockerd[<n:900:4000>]: time="2026-03-02T07:00:00.<n:100000000:999999999>Z" level=info msg="Container failed to exit within 10s of signal 15 - using the force" container=<hex><hex>
dockerd[<n:900:4000>]: time="2026-03-02T07:00:00.<n:100000000:999999999>Z" level=error msg="Handler for GET /v1.41/images/x/json returned error: No such image: x:latest"
containerd[<n:900:4000>]: time="2026-03-02T07:00:00.<n:100000000:999999999>Z" level=info msg="shim disconnected" id=<hex><hex> namespace=moby
containerd[<n:900:4000>]: time="2026-03-02T07:00:00.<n:100000000:999999999>Z" level=warning msg="cleaning up after shim disconnected" id=<hex>
kubelet[<n:900:4000>]: I0302 07:00:00.<n:100000:999999>    2211 kuberuntime_container.go:709] "Killing container with a grace period" pod="default/train-0" gracePeriod=30
kubelet[<n:900:4000>]: E0302 07:00:00.<n:100000:999999>    2211 pod_workers.go:1301] "Error syncing pod, skipping" err="failed to \\"StartContainer\\" for \\"web\\" with ImagePullBackOff" pod="default/web-<n:0:9>"
kubelet[<n:900:4000>]: I0302 07:00:00.<n:100000:999999>    2211 prober.go:107] "Probe failed" probeType="Readiness" pod="default/web-<n:0:9>" output="Get \\"http://10.1.0.9:80/\\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
kubelet[<n:900:4000>]: W0302 07:00:00.<n:100000:999999>    2211 eviction_manager.go:366] "Eviction manager: no resources are starved"
gnome-shell[<pid>]: JS ERROR: TypeError: this._settings is null
gnome-shell[<pid>]: libinput error: client bug: timer event8 debounce: scheduled expiry is in the past (-<n:1:90>ms), your system is too slow
gdm-x-session[<pid>]: (EE) client bug: timer event debounce short: scheduled expiry is in the past
tracker-miner-fs[<pid>]: (tracker-extract-3:<pid>): GLib-GIO-WARNING **: 07:00:00.123: Error creating IO channel for /proc/self/mountinfo: Invalid argument (g-io-error-quark, 13)
pulseaudio[<pid>]: X11 I/O error handler called
smartd[<n:400:900>]: Device: /dev/nvme0, number of Error Log entries increased from <n:1:40> to <n:41:90>
smartd[<n:400:900>]: Device: /dev/sda [SAT], SMART Prefailure Attribute: 1 Raw_Read_Error_Rate changed from 78 to 79
nvidia-persistenced[<n:900:4000>]: device <pci> - persistence mode enabled.
nvidia-persistenced[<n:900:4000>]: Failed to change ownership of /var/run/nvidia-persistenced: Operation not permitted
nv-fabricmanager[<n:900:4000>]: Successfully configured all the available GPUs and NVSwitches to route NVLink traffic.
slurmd[<n:900:4000>]: launch task StepId=<n:1000:9000>.0 request from UID:1000 GID:1000 HOST:10.0.0.9 PORT:<n:30000:60000>
slurmd[<n:900:4000>]: error: Unable to register: Unable to contact slurm controller (connect failure)
slurmstepd[<pid>]: done with job
rsyslogd[<n:400:900>]: imjournal: journal files changed, reloading...  [v8.2112.0 try https://www.rsyslog.com/e/0 ]
postfix/smtp[<pid>]: connect to mail.example.net[203.0.113.9]:25: Connection timed out
dhclient[<pid>]: DHCPREQUEST for 10.0.0.17 on eno1 to 10.0.0.1 port 67
NetworkManager[<n:400:900>]: <info>  [<epoch>.<n:1000:9999>] device (veth<hex>): carrier: link connected
NetworkManager[<n:400:900>]: <warn>  [<epoch>.<n:1000:9999>] dhcp4 (eno1): request timed out
dbus-daemon[<n:400:900>]: [system] Failed to activate service 'org.bluez': timed out (service_start_timeout=25000ms)
cloud-init[<n:900:4000>]: 2026-03-02 05:13:00,123 - url_helper.py[WARNING]: Calling 'http://169.254.169.254/latest/meta-data' failed [1/120s]: request error [timed out. (connect timeout=2.0)]
"""

ORDERLY = """
systemd[1]: Stopping User Login Management...
systemd[1]: Reached target System Shutdown.
systemd-shutdown[1]: Syncing filesystems and block devices.
systemd-shutdown[1]: Sending SIGTERM to remaining processes...
systemd-shutdown[1]: Sending SIGKILL to remaining processes...
"""

WORDS = """
/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:464: UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.
FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use `torch.amp.GradScaler('cuda', args...)` instead.
The attention mask is not set and cannot be inferred from input because pad token is same as eos token.
Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...
urllib3.connectionpool WARNING Retrying (Retry(total=<n:1:4>, connect=None, read=None, redirect=None, status=None)) after connection broken by 'ReadTimeoutError("HTTPSConnectionPool(host='api.example.com', port=443): Read timed out. (read timeout=10)")': /v1/runs
wandb: Network error (ConnectionError), entering retry loop.
wandb: WARNING A graphql request initiated by the public wandb API timed out (timeout=19 sec). Create a new API with an integer timeout larger than 19
wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [500]>)
wandb: network issue resolved, continuing
botocore.retries WARNING Retry needed, error code: SlowDown, attempt <n:1:3> of 5
GET s3://bucket/shard-<n:100:999>.tar failed with HTTP 503, retrying in 2 s (attempt <n:1:3>/5)
GET s3://bucket/shard-<n:100:999>.tar succeeded after 2 attempts
fetch of shard-<n:100:999>.tar timed out after 30 s, retry 1 of 3 ... ok
sample <n:1:99999>: skipped, image could not be decoded (OSError: image file is truncated (<n:1:99> bytes not processed))
[Dataset] <n:1:99> of <n:1000:9000> documents failed the length filter
error_rate=0.00<n:10:99> timeout_rate=0.0000 failed_requests=0 killed_workers=0
Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 65536.0
OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
[2026-03-02 09:00:01,210] [WARNING] [stage3.py:2069:step] <n:1:9> pytorch allocator cache flushes since last step. this happens when there is high memory pressure and is detrimental to performance.
{"id": <n:1:99999>, "prompt": "What does 'Killed' mean when my process dies with exit code 137?", "answer": "The kernel's OOM killer ended it."}
{"id": <n:1:99999>, "prompt": "NCCL timeout, how do I fix it?", "answer": "Watchdog caught collective operation timeout means that one rank never came."}
{"id": <n:1:99999>, "question": "Why do I get this? Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in <module>\\nKeyError: 'x'", "answer": "The key is not there."}
{"id": <n:1:99999>, "prompt": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."}
{"text": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. is what PyTorch says", "meta": {"source": "forum"}}
prompt: 'He was Killed in action; the mission failed with a fatal error and the connection timed out.'
sample text: Segmentation fault (core dumped) is what the shell prints when a program touches memory it must not touch.
preview: "RuntimeError: CUDA error: device-side assert triggered" -> tokens [<n:100:999>, <n:100:999>, <n:100:999>]
<s> The server said: No space left on device. He deleted the old files and all was well again. </s>
Q: why 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'? A: use a smaller batch. score=0.8<n:1:9>
tokenized: Xid 79 means that a GPU has fallen off the bus, says the vendor's manual.
config: ddp_timeout=1800 nccl_timeout_s=600 max_failed_shards=3 on_error=retry kill_timeout=30
Flags: --error-threshold 0.1 --timeout 600 --abort-on-nan false --preempted-resume true
TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600 NCCL_TIMEOUT=1800
Heartbeat monitor enabled, timeout 600 s; watchdog thread started
Fault tolerance: 0 nodes failed, 0 ranks missing, 0 hung; health check passed on <n:8:512> ranks
Straggler report: max rank <n:0:7> 1.0<n:1:9>x median, no straggler found
UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 8, which can cause the DataLoader to freeze
UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.
Trainer: signal handlers installed for SIGTERM, SIGUSR1 (preemption)
Checkpoint /lustre/run/step_<n:100:999> exists, resume from it
could not lock /root/.cache/x.lock, waiting ... acquired
CUDA_LAUNCH_BLOCKING is not set; asynchronous errors may be reported late
Triton autotune: config <n:1:40> failed: OutOfResources: shared memory, Required: 131072, Hardware limit: 101376; trying next
torch._dynamo hit config.recompile_limit (8), falling back to eager
ray.train: Worker health check ok, restarts 0, failures 0/3
[W302 09:00:01.<n:100000000:999999999> socket.cpp:697] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 97 - Address family not supported by protocol).
[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).
[W socket.cpp:663] [c10d] The IPv6 network addresses of (node-a, 29500) cannot be retrieved (gai error: -2 - Name or service not known).
[rank<n:0:7>]:[W302 09:00:02.<n:100000000:999999999> ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank <n:0:7>]  using GPU <n:0:7> as device used by this process is currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect. You can specify device_id in init_process_group() to force use of a particular device.
[rank<n:0:7>]:[W302 09:00:02.<n:100000000:999999999> reducer.cpp:1389] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass. (function operator())
[W302 09:00:02.<n:100000000:999999999> Utils.hpp:136] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function operator())
[W CudaIPCTypes.cpp:15] Producer process has been terminated before all shared CUDA tensors released. See Note [Sharing CUDA tensors]
node-a:4001:4601 [0] misc/utils.cc:<n:100:900> NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!
node-a:4001:4601 [0] NCCL INFO NET/OFI Configuring AWS-specific options
node-a:4001:4601 [0] nccl_net_ofi_init:1234 NCCL WARN NET/OFI Only EFA provider is supported
mkdir: cannot create directory '/lustre/run': File exists
rm: cannot remove '/lustre/run/step_<n:100:999>': No such file or directory
nc: connect to node-a port 29500 (tcp) failed: Connection refused
waiting for node-a:29500 ... Connection refused, retry <n:1:9> of 60
node-a:29500 is reachable after <n:1:9> retries
INFO Could not estimate the number of tokens of the input, floating-point operations will not be computed
old checkpoint step_<n:100:999> could not be removed: [Errno 2] No such file or directory; somebody else has removed it
ssh: Could not resolve hostname node-z: Name or service not known; host is not in this job, ignored
(raylet) [2026-03-02 09:00:00,123 W 21 21] (raylet) file_system_monitor.cc:111: /tmp/ray is over 80% full, available space: 91 GB
The following processes were killed by the previous job's epilog: none
ProcessGroupNCCL is initialized; timeout of 1800000 ms for each collective
NCCL health probe: allreduce ok in 0.<n:1:9> ms, no errors
"""
"""Lines of jobs that go well: boilerplate, retries that succeed, and scary words in data and settings."""

CAUGHT = (
    (
        "WARNING failed to push metrics, will retry",
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.11/site-packages/urllib3/connection.py", line 203, in _new_conn',
        "    sock = connection.create_connection(",
        "TimeoutError: [Errno 110] Connection timed out",
        "metrics pushed after 1 retry",
    ),
    (
        "WARNING:root:sample 8812 could not be decoded, skipped",
        "Traceback (most recent call last):",
        '  File "/srv/app/data.py", line 88, in decode',
        "    return Image.open(blob).convert('RGB')",
        "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f00>",
    ),
    (
        "--- Logging error ---",
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.11/logging/__init__.py", line 1110, in emit',
        "    msg = self.format(record)",
        "TypeError: not all arguments converted during string formatting",
        "Call stack:",
        '  File "/srv/app/train.py", line 12, in <module>',
    ),
    (
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f8a2c1b0d30>",
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1604, in __del__',
        "    self._shutdown_workers()",
        "AssertionError: can only test a child process",
    ),
)
"""Exceptions that somebody caught: the job goes on behind them."""

ENDS = (
    "[rank0]:[W302 11:00:00.123456789 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed"
    " before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to"
    " ensure that any pending NCCL operations have finished in this process. (function ~ProcessGroupNCCL)",
    "[rank0]:[W302 11:00:00.123456789 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not"
    " called before program exit, which can leak resources. For more info, please see"
    " https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
)

FIELDS: dict[str, Draw] = {
    "hex": lambda r: f"{r.getrandbits(28):07x}",
    "pid": lambda r: str(r.randrange(900, 4_000_000)),
    "pci": lambda r: f"0000:{r.choice((0x01, 0x0B, 0x41, 0x9B, 0xC1)):02x}:00.0",
    "epoch": lambda r: str(1772428361 + r.randrange(500_000)),
    "kernel": lambda r: r.choice(("6.8.0-52-generic", "5.15.0-1063-nvidia", "5.14.0-427.el9.x86_64", "6.1.0-28-amd64")),
    "driver": lambda r: r.choice(("470.256.02", "535.183.06", "550.144.03", "570.133.20")),
    "flavour": lambda r: r.choice(("", "Open Kernel Module for ")),
}


@cache
def parts(template: str) -> tuple[str | tuple[str, int, int], ...]:
    """A template's fixed pieces and fields, in turn."""
    found: list[str | tuple[str, int, int]] = []
    at = 0
    for m in FIELD.finditer(template):
        if m[1] == "n" or m[1] in FIELDS:
            found += [template[at : m.start()], (m[1], int(m[2] or 0), int(m[3] or 0))]
            at = m.end()
    return (*found, template[at:])


def fill(template: str, r: random.Random) -> str:
    return "".join(
        x if isinstance(x, str) else str(r.randrange(x[1], x[2])) if x[0] == "n" else FIELDS[x[0]](r)
        for x in parts(template)
    )


def rows(block: str) -> list[str]:
    return [x.replace("\\\\", "\\") for x in block.strip("\n").split("\n")]


# --- hosts ------------------------------------------------------------------------------------------------------------

Head = Callable[[datetime, float, str, str], str]
"""(time, uptime in s, host, program's tag) → what stands before the message."""


def _tag(tag: str) -> str:
    return "kernel:" if tag == "kernel" else f"{tag}:"


HEADS: dict[str, Head] = {
    "kern.log": lambda t, up, h, g: f"{t:%b} {t.day:2} {t:%H:%M:%S} {h} {_tag(g)} " + _up(up, g),
    "syslog": lambda t, up, h, g: f"{t:%Y-%m-%dT%H:%M:%S.%f}+01:00 {h} {_tag(g)} " + _up(up, g),
    "messages": lambda t, up, h, g: f"{t:%b} {t.day:2} {t:%H:%M:%S} {h} {_tag(g)} ",
    "journal.txt": lambda t, up, h, g: f"{t:%Y-%m-%dT%H:%M:%S.%f}+0000 {h} {_tag(g)} ",
    "journal-short.txt": lambda t, up, h, g: f"{t:%b %d %H:%M:%S} {h} {_tag(g)} ",
    "dmesg.txt": lambda t, up, h, g: f"[{up:12.6f}] ",
    "dmesg-T.txt": lambda t, up, h, g: f"[{t:%a %b} {t.day:2} {t:%H:%M:%S %Y}] ",
    "dmesg-x.txt": lambda t, up, h, g: f"kern  :err   : [{up:12.6f}] ",
    "rfc5424.log": lambda t, up, h, g: f"<3>1 {t:%Y-%m-%dT%H:%M:%S.%f}+00:00 {h} {g} - - - ",
    "console.log": lambda t, up, h, g: f"[{up:12.6f}] ",
}
KERNEL_ONLY = ("dmesg.txt", "dmesg-T.txt", "dmesg-x.txt", "console.log", "kern.log")


def _up(up_s: float, tag: str) -> str:
    return f"[{up_s:12.6f}] " if tag == "kernel" else ""


def host_log(name: str, host: str, lines: int, r: random.Random) -> Iterator[str]:
    """A boot or two of one host, in the shape of the file called `name`."""
    head = HEADS[name]
    daemons, later = rows(DAEMONS), rows(LATER)
    begin = datetime(2026, 3, 2, 5, 12, 40)
    boots = 1 if lines < 300 else r.choice((1, 2))
    for boot in range(boots):
        up = 0.0
        for text in rows(BOOT):
            if r.random() < 0.9 or text.startswith("Linux version"):
                up += r.expovariate(8)
                yield head(begin + timedelta(seconds=up), up, host, "kernel") + fill(text, r)
        once, quiet = rows(ONCE), max(40, lines // boots // 4)
        at = sorted(r.randrange(quiet, max(quiet + 1, lines // boots)) for _ in range(3))
        blocks = {at[0]: once[0:2], at[1]: once[3:7], at[2]: once[7:9]}
        if boot == 0:
            blocks[at[0] + 7] = once[2:3]
            blocks[at[1] + 9] = once[11:13]
        up = 90.0
        for number in range(lines // boots):
            up += r.expovariate(0.05)
            moment = begin + timedelta(seconds=up)
            for text in blocks.get(number, ()):
                yield head(moment, up, host, "kernel") + fill(text, r)
            if name in KERNEL_ONLY or r.random() < 0.4:
                yield head(moment, up, host, "kernel") + fill(r.choice(later), r)
            else:
                tag, _, text = fill(r.choice(daemons), r).partition(": ")
                yield head(moment, up, host, tag) + text
        if boot + 1 < boots:
            for text in rows(ORDERLY):
                tag, _, rest = text.partition(": ")
                if name not in KERNEL_ONLY:
                    yield head(begin + timedelta(seconds=up), up, host, tag) + rest
            yield head(begin + timedelta(seconds=up + 5), up + 5, host, "kernel") + "reboot: Restarting system"
            begin += timedelta(seconds=up + 90)


def smi_q(host: str, r: random.Random) -> Iterator[str]:
    """`nvidia-smi -q` of eight cards that are well."""
    yield from (
        "",
        "==============NVSMI LOG==============",
        "",
        "Timestamp                                 : Mon Mar  2 07:00:00 2026",
    )
    yield from (
        "Driver Version                            : 550.144.03",
        "CUDA Version                              : 12.4",
        "",
    )
    yield "Attached GPUs                             : 8"
    for n, bus in enumerate((0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)):
        yield f"GPU 00000000:{bus:02X}:00.0"
        for key, value in (
            ("Product Name", "NVIDIA H100 80GB HBM3"), ("Persistence Mode", "Enabled"), ("Serial Number", f"16532{r.randrange(10**8):08}"),
            ("GPU UUID", f"GPU-{r.getrandbits(32):08x}-1e3e-04d9-9043-{r.getrandbits(48):012x}"), ("Minor Number", n),
            ("Lost GPU", "No"), ("GPU Reset Required", "No"), ("Drain and Reset Recommended", "No"),
            ("GPU Recovery Action", "None"), ("Fabric State", "Completed"), ("Fabric Status", "Success"),
        ):  # fmt: skip
            yield f"    {key:38}: {value}"
        yield "    Clocks Event Reasons"
        for key in (
            "Idle",
            "Applications Clocks Setting",
            "SW Power Cap",
            "HW Slowdown",
            "HW Thermal Slowdown",
            "HW Power Brake Slowdown",
        ):
            yield f"        {key:34}: {'Active' if key in ('Idle', 'SW Power Cap') else 'Not Active'}"
        yield "    ECC Errors"
        for span in ("Volatile", "Aggregate"):
            yield f"        {span}"
            for key in ("SRAM Correctable", "SRAM Uncorrectable Parity", "DRAM Correctable", "DRAM Uncorrectable"):
                many = 3 if key == "DRAM Correctable" and span == "Aggregate" and n == 2 else 0
                yield f"            {key:30}: {many}"
        yield "    Remapped Rows"
        for key, value in (
            ("Correctable Error", 0),
            ("Uncorrectable Error", 0),
            ("Pending", "No"),
            ("Remapping Failure Occurred", "No"),
        ):
            yield f"        {key:34}: {value}"
        yield f"    Temperature\n        GPU Current Temp                  : {r.randrange(30, 70)} C\n        GPU Shutdown Temp                 : 92 C"


def fabric_manager(r: random.Random) -> Iterator[str]:
    for text in (
        "Fabric Manager version 550.144.03 is running with the following configuration options",
        "Logging level = 4", "Fabric Manager - Number of retries on error = 3", "Abort CUDA jobs when FM exits = 1",
        "getting NVSwitch device information", "detected system version DGXH100",
        "Connected to 1 node.", "NVSwitch firmware mismatch check: none found, 0 errors",
        "Successfully configured all the available NVSwitches to route NVLink traffic.",
    ):  # fmt: skip
        yield f"[Mar 02 2026 05:13:{r.randrange(10, 60)}] [INFO] [tid {r.randrange(800, 3000)}] {text}"


# --- jobs -------------------------------------------------------------------------------------------------------------

NCCL_VERSIONS = ("2.10.3", "2.14.3", "2.18.5", "2.21.5", "2.26.2", "2.31.1")


def nccl(host: str, rank: int, world: int, version: str, r: random.Random) -> Iterator[str]:
    """NCCL's INFO from start to the end of one process."""
    pid, new = 4000 + rank, version >= "2.18"
    head = f"{host}:{pid}:{pid + 600} [{rank % 8}] NCCL INFO "
    bus = f"{(0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)[rank % 8]:x}000"
    yield head + f"NCCL version {version}+cuda12.4"
    for text in (
        "NCCL_SOCKET_IFNAME set by environment to eth0", "Bootstrap : Using eth0:10.0.0.5<0>", "NCCL_TIMEOUT is not set, ignored",
        "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
        "NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation",
        "Failed to open libibverbs.so[.1]", "NET/IB : No device found.", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.5<0>",
        "NET/Socket : Using [0]eth0:10.0.0.5<0>", "cudaDriverVersion 12040", "Comm config Blocking set to 1", "ncclCommInitRank_impl: retry 0 errors 0",
        "NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)", "DMA-BUF is available on GPU device 0", "MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",
    ):  # fmt: skip
        if r.random() < 0.8:
            yield head + text
    comm = f"comm 0x55d0c{r.getrandbits(28):07x} rank {rank}"
    tail = f" nvmlDev {rank % 8} busId {bus} commId 0x{r.getrandbits(60):x}" if new else f" busId {bus}"
    start = f"nranks {world} cudaDev {rank % 8}{tail}"
    if new:
        yield head + f"ncclCommInitRank {comm} {start} - Init START"
    for channel in range(8):
        yield (
            head
            + f"Channel {channel:02}/0 : {rank}[{rank % 8}] -> {(rank + 1) % world}[{(rank + 1) % 8}] via P2P/CUMEM/read"
        )
    yield head + "Connected all rings"
    yield head + "threadThresholds 8/8/64 | 64/8/64 | 512 | 512"
    yield head + f"{'ncclCommInitRank ' if new else ''}{comm} {start} - Init COMPLETE"
    yield (
        head
        + "AllReduce: opCount 0 sendbuff 0x7f00 recvbuff 0x7f00 count 1 datatype 7 op 0 root 0 comm 0x55d0 [nranks=8] stream 0x55"
    )
    if r.random() < 0.5:
        yield head + f"[Service thread] Connection closed by localRank {rank % 8}"
        yield head + f"{comm} {start.replace('nranks', 'nranks')} - Destroy COMPLETE"
    else:
        yield head + f"{comm} nranks {world} cudaDev {rank % 8} busId {bus} - Destroy COMPLETE"


def torchrun(r: random.Random, *, ends: bool) -> Iterator[str]:
    at = "2026-03-02 09:00:00"
    yield "W0302 09:00:00.150000 4001 torch/distributed/run.py:792] *****************************************"
    yield "W0302 09:00:00.150000 4001 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed."
    yield f"[{at},100] torch.distributed.elastic.agent.server.api: [INFO] [default] Rendezvous'ing worker group"
    yield f"[{at},110] torch.distributed.elastic.agent.server.api: [INFO] [default] Rendezvous complete for workers. Result:"
    for key, value in (
        ("restart_count", 0),
        ("master_addr", "node-a"),
        ("master_port", 29500),
        ("group_rank", 0),
        ("global_ranks", "[0, 1, 2, 3, 4, 5, 6, 7]"),
    ):
        yield f"  {key}={value}"
    yield f"[{at},120] torch.distributed.elastic.multiprocessing.api: [INFO] Setting worker0 reply file to: /tmp/torchelastic_x/none_y/attempt_0/0/error.json"
    if ends:
        yield "[2026-03-02 11:00:00,120] torch.distributed.elastic.agent.server.api: [INFO] [default] worker group successfully finished. Waiting 300 seconds for other agents to finish."
        yield "[2026-03-02 11:00:00,320] torch.distributed.elastic.agent.server.api: [INFO] Local worker group finished (WorkerState.SUCCEEDED). Waiting 300 seconds for other agents to finish"
        yield "[2026-03-02 11:00:00,420] torch.distributed.elastic.agent.server.api: [INFO] Done waiting for other agents. Elapsed: 0.0004534721374511719 seconds"


def step(kind: str, n: int, total: int, r: random.Random) -> str:
    t = datetime(2026, 3, 2, 9) + timedelta(seconds=n * 2)
    loss = f"{2 + r.random():.4f}"
    if kind == "megatron":
        return (
            f" [{t:%Y-%m-%d %H:%M:%S}] iteration {n:8}/{total:8} | consumed samples: {n * 512:12} | elapsed time per iteration (ms): {r.uniform(1900, 2100):.1f} |"
            f" learning rate: 1.500E-04 | global batch size:   512 | lm loss: {loss} | loss scale: 65536.0 | grad norm: 0.412 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    if kind == "hf":
        return f"{{'loss': {loss}, 'grad_norm': {r.random():.4f}, 'learning_rate': 1.2e-05, 'epoch': {n / total:.2f}}}"
    if kind == "titan":
        return f"[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},{r.randrange(1000):03} - root - INFO - step: {n:2}  loss: {loss}  grad_norm:  0.9  memory: 42.11GiB(53.2%)  tps: 7,412  tflops: 301.1  mfu: 30.4%"
    if kind == "lightning":
        return f"\rEpoch 0: {100 * n // total:3}%|███▍      | {n}/{total} [{n // 60:02}:{n % 60:02}<10:00,  1.37it/s, v_num=95nc, train_loss={loss}]"
    if kind == "deepspeed":
        return f"[{t:%Y-%m-%d %H:%M:%S},{r.randrange(1000):03}] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]"
    if kind == "mm":
        return f"{t:%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train)  [1][{n:5}/{total}]  lr: 2.0e-02  eta: 1:02:03  time: 0.41  data_time: 0.01  memory: 9123  loss: {loss}"
    return (
        f'{t:%Y-%m-%dT%H:%M:%S.%f}Z {{"level": "info", "msg": "step {n}/{total} loss {loss}", "errors": 0, "rank": 0}}'
    )


KINDS = ("megatron", "hf", "titan", "lightning", "deepspeed", "mm", "json")
LAST = {
    "megatron": "[after training is done] datetime: 2026-03-02 11:00:00",
    "hf": "{'train_runtime': 7200.1, 'train_samples_per_second': 12.3, 'train_loss': 2.1, 'epoch': 1.0}",
    "lightning": "`Trainer.fit` stopped: `max_epochs=1` reached.",
}


EARLY = (
    "[rank3]:[W302 11:00:00.3<n:10000000:99999999> ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 3] Failed to check the"
    ' "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe'
)
"""Rank 0, which holds the store, ended a moment before this one: nothing is lost."""


def job_log(kind: str, lines: int, r: random.Random) -> Iterator[str]:
    """One job from start to end: steps, warnings, checkpoints, evaluation."""
    words, torch = rows(WORDS), r.choice(("2.1.2", "2.3.1", "2.5.1", "2.8.0"))
    yield from torchrun(r, ends=False)
    yield f"PyTorch version: {torch}+cu124"
    version = r.choice(NCCL_VERSIONS)
    if r.random() < 0.6:
        for rank in range(8):
            yield from nccl("node-a", rank, 8, version, r)
    for n in range(1, lines + 1):
        dice = r.random()
        yield step(kind, n, lines, r)
        if dice < 0.25:
            yield fill(r.choice(words), r)
        elif dice < 0.254:
            yield f"saving checkpoint at iteration {n} to /lustre/run/ckpt"
            yield f"  successfully saved checkpoint from iteration {n} to /lustre/run/ckpt [ t 1/1, p 1/1 ]"
        elif dice < 0.258 and 20 < n < lines - 20:
            yield from r.choice(CAUGHT)
            yield step(kind, n, lines, r)
    yield LAST.get(kind, "Training finished")
    yield r.choice((*ENDS, fill(EARLY, r)))
    yield from list(torchrun(r, ends=True))[-3:]


WRAPS: dict[str, Callable[[str, int], str]] = {
    "cri": lambda x, n: f"2026-03-02T09:{n // 60 % 60:02}:{n % 60:02}.{n % 10**9:09}Z stderr F {x}",
    "docker": lambda x, n: json.dumps({"log": x + "\n", "stream": "stdout", "time": "2026-03-02T09:00:00.123456789Z"}),
    "pdsh": lambda x, n: f"node-{n // 80 % 2}: {x}",
    "srun": lambda x, n: f"{n // 80 % 2 * 8}: {x}",
    "torchrun": lambda x, n: f"[default{n // 80 % 8}]:{x}",
    "mpirun": lambda x, n: f"[1,{n // 80 % 8}]<stdout>:{x}",
    "compose": lambda x, n: f"trainer-{n // 80 % 2 + 1}  | {x}",
    "kubectl": lambda x, n: f"[pod/train-{n // 80 % 2}/main] {x}",
    "journal": lambda x, n: f"2026-03-02T09:{n // 60 % 60:02}:{n % 60:02}.000000+0000 node-a train[4001]: {x}",
    "ray": lambda x, n: f"(RayTrainWorker pid={4000 + n // 80 % 8}, ip=10.0.0.5) {x}",
    "logger": lambda x, n: f"2026-03-02 09:{n // 60 % 60:02}:{n % 60:02},123 - root - INFO - {x}",
}
"""What launchers and collectors put before each line of a job."""


def _wrapped(lines: Iterable[str], wrap: Callable[[str, int], str]) -> Iterator[str]:
    """Each line behind its prefix; another process speaks only from a step on, never inside a traceback."""
    number = 0
    for text in lines:
        number += " step: " in text
        yield wrap(text, number)


def slurm(r: random.Random) -> Iterator[str]:
    yield "srun: job 4711 queued and waiting for resources"
    yield "srun: job 4711 has been allocated resources"
    yield "slurmstepd: task_prolog: health check ok, 0 errors, 8 GPUs"
    for task in range(16):
        yield f"{task:2}: node-{task // 8}: NCCL version 2.21.5+cuda12.4"
    for n in range(40):
        for task in range(2):
            yield f"{task * 8:2}: step {n} loss {r.uniform(2, 3):.3f} timeout_s 600 errors 0"
    yield "srun: Step created for StepId=4711.0"


# --- the pile ---------------------------------------------------------------------------------------------------------


def files(seed: int, size_bytes: int) -> Iterator[tuple[str, bytes]]:
    """(name, content) of a pile of about `size_bytes`, the same for the same seed."""
    r = random.Random(seed)
    sizes = [max(300, size_bytes // 20 // 110)] * 10
    for number, name in enumerate(HEADS):
        host = f"trn-node-{number:02}"
        yield f"hosts/{host}/{name}", _joined(host_log(name, host, sizes[number], r), name)
    yield "hosts/trn-node-00/nvidia-smi-q.txt", _joined(smi_q("trn-node-00", r))
    yield "hosts/trn-node-00/fabricmanager.log", _joined(fabric_manager(r))
    for number, kind in enumerate(KINDS):
        yield f"jobs/{number}-{kind}/train.log", _joined(job_log(kind, size_bytes // 20 // 200, r))
    for name, wrap in WRAPS.items():
        lines = _wrapped(job_log("titan", size_bytes // 40 // 200, r), wrap)
        yield f"jobs/{name}/train.log", _joined(lines)
    for number, version in enumerate(NCCL_VERSIONS):
        for rank in range(8):
            yield f"jobs/nccl-{number}/rank{rank}.log", _joined(nccl("node-b", rank, 8, version, r))
    yield "jobs/slurm-4711.out", _joined(slurm(r))
    yield "jobs/torchrun.log", _joined(torchrun(r, ends=True))


def _joined(lines: Iterable[str], name: str = "") -> bytes:
    end = "\r\n" if name == "console.log" else "\n"
    return "".join(x if x.startswith("\r") else x + end for x in lines).encode()


def write(folder: Path, seed: int, size_bytes: int) -> int:
    """The pile as files below `folder`; gives its size in bytes."""
    written = 0
    for name, data in files(seed, size_bytes):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        written += len(data)
    return written


if __name__ == "__main__":
    made = write(Path(sys.argv[1]), int((sys.argv[3:] or ["1"])[0]), round(float((sys.argv[2:] or ["2"])[0]) * 1e6))
    print(f"{made / 1e6:.1f} MB")
