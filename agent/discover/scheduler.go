package discover

import (
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// schedulerOf returns where the environment says that the scheduler is: an
// address, or a name whose address is to be found out; ok is false where it
// says nothing that PS-lite would take.
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

// locate finds the address of a scheduler that the process knows by name: in
// the hosts file that the process sees, or by its sockets. The scheduler itself
// listens at the port, every other node is connected to it. Until then the
// Scheduler's address is not valid.
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

// inHosts looks a name up in the hosts file of the process's root, where
// anything may lie: see [ReadInRoot].
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
