package discover

import (
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// schedulerOf returns the scheduler's address and name from a node's environment. If the
// environment has a host name, the address part of at is invalid until it is resolved (locate).
// ok is false where PS-lite itself would not start.
func schedulerOf(env map[string]string) (at netip.AddrPort, name string, ok bool) {
	port, err := strconv.ParseUint(env["DMLC_PS_ROOT_PORT"], 10, 16)
	host := env["DMLC_PS_ROOT_URI"]
	if err != nil || port == 0 || host == "" {
		return at, "", false
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" { // a zone is any text, and says nothing on another host
		return netip.AddrPortFrom(netip.Addr{}, uint16(port)), host, true
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), host, true
}

// locate resolves the scheduler's host name as the process sees it, without a DNS query. The
// sockets are the best source: the scheduler itself listens at the port, and every other node
// is connected to it. Before that, the process's own hosts file may have the name. If neither
// helps, the address stays invalid and the next look tries again.
func (p *Process) locate(proc fs.FS, table []socket) {
	if p.Scheduler.Addr().IsValid() {
		return
	}
	port := p.Scheduler.Port()
	for _, k := range table {
		switch {
		case p.Role == "scheduler" && k.local.Port() == port && !k.local.Addr().IsUnspecified():
			p.Scheduler = k.local
			return
		case p.Role != "scheduler" && !k.listening && k.peer.Port() == port:
			p.Scheduler = k.peer
			return
		}
	}
	if ip, ok := inHosts(proc, p.PID, p.SchedulerName); ok {
		p.Scheduler = netip.AddrPortFrom(ip, port)
	}
}

// maxHosts bounds the bytes read of a hosts file.
const maxHosts = 256 << 10

// inHosts looks a name up in the hosts file below the process's root. The process controls that
// file; see [ReadInRoot].
func inHosts(proc fs.FS, pid int, name string) (netip.Addr, bool) {
	text, err := ReadInRoot(proc, pid, "etc/hosts", maxHosts)
	if err != nil {
		return netip.Addr{}, false // there need not be one
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		for i, word := range words {
			if i > 0 && strings.EqualFold(word, strings.TrimSuffix(name, ".")) {
				if ip, err := netip.ParseAddr(words[0]); err == nil && ip.Zone() == "" {
					return ip.Unmap(), true
				}
			}
		}
	}
	return netip.Addr{}, false
}
