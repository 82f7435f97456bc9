package discover

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/psidecar/psidecar/internal/policy"
)

// Bounds of the data read of one process.
const (
	// maxEnviron exceeds what the kernel allows at exec, except for environments that are too
	// large by far: a pod has a few variables for each service of its namespace.
	maxEnviron = 4 << 20
	maxCommand = 4 << 10
	maxGroups  = 64 << 10
	maxStat    = 4 << 10
	// maxValue is the length of the longest value that is taken from an
	// environment; a host name has 253 characters.
	maxValue = 256
	// maxMembers is the largest number of servers or workers that is believed.
	maxMembers = 1 << 16
)

// IsNode reports whether the process's environment names a PS-lite role.
func IsNode(proc fs.FS, pid int) bool {
	env, _ := environment(proc, pid)
	return env != nil
}

// role is the variable that every node of a job has and nothing else is likely to.
const role = "DMLC_ROLE"

// environment returns the variables of PS-lite and psidecar in a process's environment, or nil
// if the process is no node or cannot be read. The error is not nil only if this process ran
// out of descriptors or memory: the answer is then unknown, and taking the process for no node
// would drop a job.
func environment(proc fs.FS, pid int) (map[string]string, error) {
	b, err := ReadMemory(proc, pid, "environ", maxEnviron)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) {
		return nil, err
	}
	// Most processes are no nodes. They are recognized by one search, without splitting
	// anything.
	if err != nil && !errors.Is(err, ErrTooLarge) || !bytes.Contains(b, []byte(role+"=")) {
		return nil, nil
	}
	env := map[string]string{}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		name, value, ok := bytes.Cut(v, []byte{'='})
		if !ok || len(name) > maxValue || len(value) > maxValue {
			continue
		}
		if _, policy := policy.KeyOf(string(name)); policy || bytes.HasPrefix(name, []byte("DMLC_")) {
			env[string(name)] = string(value)
		}
	}
	if text, ok := env[role]; !ok || !printable(text) {
		return nil, nil
	}
	return env, nil
}

// printable reports whether a text of a process can be passed on. A role is sent to the planner: a
// report with text that is not UTF-8 cannot be encoded, so that one process would silence the host.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// describe reads the properties of a process that stay the same until it execs: environment,
// user, command line, cgroup and network namespace. It returns false for a process that is no
// node of a job. Errors are those of environment.
//
// Everything the process says is untrusted; whatever does not parse is left out.
func describe(proc fs.FS, pid int) (Process, bool, error) {
	env, err := environment(proc, pid)
	if err != nil || env == nil {
		return Process{}, false, err
	}
	p := Process{PID: pid, Role: env[role], Van: env["DMLC_PS_VAN_TYPE"]}
	p.Local = env["DMLC_LOCAL"] != "" && env["DMLC_LOCAL"] != "0"
	var ok bool
	if p.Scheduler, p.SchedulerName, ok = schedulerOf(env); !ok {
		return Process{}, false, nil
	}
	p.Servers, p.Workers = number(env["DMLC_NUM_SERVER"]), number(env["DMLC_NUM_WORKER"])
	// Port 0 marks an address without a socket; own combines it with the ports of wildcard
	// listeners.
	if ip, err := netip.ParseAddr(env["DMLC_NODE_HOST"]); err == nil && ip.Zone() == "" {
		p.Listens = append(p.Listens, netip.AddrPortFrom(ip.Unmap(), 0))
	}
	for name, value := range env {
		if key, ok := policy.KeyOf(name); ok {
			if p.Settings == nil {
				p.Settings = policy.Settings{}
			}
			p.Settings[key] = value
		}
	}
	p.UID, p.Owned = user(proc, pid)
	dir := strconv.Itoa(pid)
	if args, err := ReadMemory(proc, pid, "cmdline", maxCommand); err == nil || errors.Is(err, ErrTooLarge) {
		p.Command = strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
	}
	if groups, err := ReadProc(proc, dir+"/cgroup", maxGroups); err == nil {
		p.Cgroup = cgroupOf(string(groups))
		p.Pod, p.Container = Pod(p.Cgroup)
	}
	p.netns = dir // unknown namespace: the process's number keeps it apart from all others
	if ns, err := fs.ReadLink(proc, dir+"/ns/net"); err == nil {
		p.netns = ns
	}
	return p, true, nil
}

// number parses a count of nodes; 0 if it is missing or implausible.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxMembers {
		return 0
	}
	return n
}

// user returns the real user of a process, the first of the four in its Uid line. ok is false
// if it cannot be read.
func user(proc fs.FS, pid int) (uid uint32, ok bool) {
	text, err := ReadProc(proc, strconv.Itoa(pid)+"/status", maxStat)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(text) {
		if rest, found := bytes.CutPrefix(line, []byte("Uid:")); found {
			f := bytes.Fields(rest)
			if len(f) == 0 {
				return 0, false
			}
			n, err := strconv.ParseUint(string(f[0]), 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}

// ticksPerSecond is USER_HZ, the unit of times in /proc on all architectures that Go supports.
const ticksPerSecond = 100

// Started returns how long after the host's boot a process started, and false if it has ended.
func Started(proc fs.FS, pid int) (sinceBoot time.Duration, ok bool) {
	ticks, err := strconv.ParseInt(began(proc, pid), 10, 64)
	return time.Duration(ticks) * time.Second / ticksPerSecond, err == nil
}

// began returns a process's start time in clock ticks since boot. Together with the PID it
// identifies the process, since a reused PID has a later start. It is empty if it cannot be
// read.
func began(proc fs.FS, pid int) string {
	text, err := ReadProc(proc, strconv.Itoa(pid)+"/stat", maxStat)
	if err != nil {
		return ""
	}
	// The second field is the program's name, in parentheses, with whatever
	// characters it has.
	rest := text[bytes.LastIndexByte(text, ')')+1:]
	if f := bytes.Fields(rest); len(f) > 19 {
		return string(f[19])
	}
	return ""
}
