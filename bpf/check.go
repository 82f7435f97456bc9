package bpf

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckFacts judges facts. It always returns the same findings, one for each requirement, in
// the same order. It asks nothing of this host, so recorded facts of another host can be
// judged.
func CheckFacts(f Facts) []Finding {
	findings := []Finding{kernel(f), machine(f)}
	findings = append(findings, capabilities(f)...)
	findings = append(findings, cgroup2(f), lockedDown(f), lockedMemory(f))
	for _, k := range kernelFeatures() {
		findings = append(findings, kernelFeature(f, k))
	}
	return append(findings, jit(f), btf(f), bpffs(f), tracefs(f), rdma(f))
}

// good returns the finding that a requirement is met.
func good(name string, needed bool, found string) Finding {
	return Finding{Name: name, OK: true, Needed: needed, Found: found}
}

// bad returns the finding that something is missing: what to do about it, and what works
// without it.
func bad(name string, needed bool, found string, missing MissingError, do, without string) Finding {
	return Finding{
		Name: name, Needed: needed, Found: found,
		Missing: missing.Error(), Do: do, Without: without, err: &missing,
	}
}

// lowest is the oldest kernel that psidecar supports. Single features are probed, because
// distributions backport them.
const lowest = "5.15"

// kernel checks the release.
func kernel(f Facts) Finding {
	if !older(f.Kernel, lowest) {
		return good("kernel", true, f.Kernel)
	}
	return bad("kernel", true, f.Kernel, MissingError{What: "a kernel of Linux " + lowest + " or newer", Detail: "this is " + f.Kernel},
		"upgrade the host's kernel; the checks below say what exactly this one lacks", noWatching)
}

// older compares the first two numbers of kernel releases, such as 5.15 in 5.15.0-91-generic.
func older(release, than string) bool {
	a, b := numbers(release), numbers(than)
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}

// numbers returns the first two numbers of a release; what is no number is 0, which makes the
// release too old rather than unknown.
func numbers(release string) (n [2]int) {
	for i, part := range strings.SplitN(release, ".", 3) {
		if i == 2 {
			break
		}
		if end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			part = part[:end]
		}
		n[i], _ = strconv.Atoi(part)
	}
	return n
}

// machine checks the architecture: the object is compiled for little endian, and 64-bit loads
// of the programs assume such a machine.
func machine(f Facts) Finding {
	if f.Machine == "amd64" || f.Machine == "arm64" {
		return good("machine", true, f.Machine)
	}
	return bad("machine", true, f.Machine, MissingError{What: "a little endian 64-bit machine (amd64 or arm64)", Detail: "this is " + f.Machine},
		"run the agent on such hosts", noWatching)
}

// capability is a capability that psidecar uses.
type capability struct {
	number      int
	name, since string // since: the kernel that introduced it
	needed      bool
	use         string // what it is needed for, to complete "needed ..."
	// What works without it.
	without string
}

var usedCapabilities = []capability{
	{unix.CAP_BPF, "CAP_BPF", "5.8", true, "to load the programs", noWatching},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "", true, "to attach them to a cgroup", noWatching},
	{unix.CAP_PERFMON, "CAP_PERFMON", "5.8", true, "for the verifier to accept them", noWatching},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "", false, "to read the environment of other users' processes",
		"watching a cgroup named by flag; jobs are not found by themselves, and roles are inferred from traffic alone"},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "", false, "to have the kernel measure the programs' run time and to open listeners in other network namespaces",
		"watching, without the metrics of its run time; the proxy serves its own network namespace only"},
}

// capabilities checks each capability. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which
// were split off from it.
func capabilities(f Facts) []Finding {
	var findings []Finding
	for _, c := range usedCapabilities {
		if has(f, c.number) || (c.number == unix.CAP_BPF || c.number == unix.CAP_PERFMON) && has(f, unix.CAP_SYS_ADMIN) {
			findings = append(findings, good(c.name, c.needed, "held, "+c.use))
			continue
		}
		findings = append(findings, bad(c.name, c.needed, "not held", MissingError{What: c.name, Since: c.since, Detail: "needed " + c.use},
			fmt.Sprintf("run as root, or give it: setcap, AmbientCapabilities=%s in a systemd unit, securityContext.capabilities.add in a pod", c.name), c.without))
	}
	return findings
}

// has reports whether a capability is in the effective set.
func has(f Facts, capability int) bool { return f.Capabilities>>capability&1 == 1 }

// cgroup2 checks that there is a hierarchy to attach to.
func cgroup2(f Facts) Finding {
	if f.Cgroup2 != "" {
		return good("cgroup v2", true, "mounted at "+f.Cgroup2)
	}
	return bad("cgroup v2", true, "not mounted", MissingError{What: "a cgroup v2 hierarchy", Since: "4.5"},
		"boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup/unified; in a container, mount the host's /sys/fs/cgroup", noWatching)
}

// lockedDown reports a lockdown that forbids reading kernel memory. It does not affect
// psidecar, but the finding explains failures of other tools.
func lockedDown(f Facts) Finding {
	if f.Lockdown != "confidentiality" {
		return good("lockdown", false, orNone(f.Lockdown))
	}
	return bad("lockdown", false, f.Lockdown, MissingError{What: "access of BPF to kernel memory", Detail: "the kernel is locked down to confidentiality"},
		"nothing for watching; boot with lockdown=integrity to trace the kernel with other tools", "everything: the programs read no kernel memory but the packets")
}

// lockedMemory checks RLIMIT_MEMLOCK, which bounds BPF maps before Linux 5.11.
func lockedMemory(f Facts) Finding {
	const enough = 64 << 20
	if f.Memlock < 0 || f.Memlock >= enough || !older(f.Kernel, "5.11") || has(f, unix.CAP_SYS_RESOURCE) {
		return good("locked memory", true, "enough, or not limited")
	}
	return bad("locked memory", true, fmt.Sprintf("%d bytes", f.Memlock),
		MissingError{What: fmt.Sprintf("the right to lock %d MiB of memory", enough>>20), Detail: "before Linux 5.11 BPF maps count as locked memory"},
		"ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or CAP_SYS_RESOURCE", noWatching)
}

// kernelFeature judges the kernel's answer about a feature. A refusal for want of rights says
// nothing about the feature, so the advice differs.
func kernelFeature(f Facts, k feature) Finding {
	why, asked := f.Features[k.name]
	if asked && why == "" {
		return good(k.name, k.needed, "the kernel accepts it")
	}
	do := "upgrade the kernel to Linux " + k.since + " or newer"
	if strings.Contains(why, "permitted") || strings.Contains(why, "permission") {
		do = "run this check with CAP_BPF and CAP_NET_ADMIN (as root): without them the kernel does not say"
	} else if !older(f.Kernel, k.since) {
		do = "this kernel is new enough but was built without it: look for CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and CONFIG_INET in its configuration"
	}
	if !asked {
		why = "not asked"
	}
	return bad(k.name, k.needed, why, MissingError{What: k.what, Since: k.since, Detail: why}, do, k.without)
}

// jit checks that programs are compiled. If the setting cannot be read (-1), it counts as on,
// as it is by default.
func jit(f Facts) Finding {
	if f.JIT != 0 {
		return good("BPF JIT", false, "on")
	}
	return bad("BPF JIT", false, "off", MissingError{What: "compilation of BPF programs", Since: "3.18"},
		"sysctl net.core.bpf_jit_enable=1", "everything, at several times the cost a segment")
}

// btf checks the kernel's own type information.
func btf(f Facts) Finding {
	if f.BTF {
		return good("BTF", true, "/sys/kernel/btf/vmlinux")
	}
	return bad("BTF", true, "no /sys/kernel/btf/vmlinux", MissingError{What: "the kernel's description of its types (CONFIG_DEBUG_INFO_BTF)", Since: "5.4"},
		"use a kernel built with CONFIG_DEBUG_INFO_BTF=y: the verifier needs it to check the programs' functions one by one", noWatching)
}

// bpffs checks for the file system in which the redirecting programs are pinned.
func bpffs(f Facts) Finding {
	if f.BPFFS != "" {
		return good("BPF file system", false, "mounted at "+f.BPFFS)
	}
	return bad("BPF file system", false, "not mounted", MissingError{What: "the file system that keeps pinned programs", Since: "4.4"},
		"mount -t bpf bpf /sys/fs/bpf", "watching, which pins nothing; the proxy mounts one for its pinned programs where it may")
}

// tracefs checks for the file system that shows what BPF programs print.
func tracefs(f Facts) Finding {
	if f.Tracefs != "" {
		return good("tracefs", false, "mounted at "+f.Tracefs)
	}
	return bad("tracefs", false, "not mounted", MissingError{What: "tracefs", Since: "4.1"},
		"mount -t tracefs tracefs /sys/kernel/tracing", "everything: it is of use for debugging only")
}

// orNone returns a text for a report.
func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
