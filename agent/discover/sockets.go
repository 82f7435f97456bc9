package discover

import (
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// socket is a line of /proc/PID/net/tcp or tcp6.
type socket struct {
	local, peer netip.AddrPort
	listening   bool
	inode       uint64
}

// stateListen is TCP_LISTEN, as /proc/PID/net/tcp spells it.
const stateListen = "0A"

// readSockets returns the TCP sockets of the process's network namespace.
func readSockets(proc fs.FS, pid int) []socket {
	var all []socket
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/net/"+name)
		if err != nil {
			continue // no IPv6, or the process has ended
		}
		for line := range strings.Lines(string(text)) {
			if s, ok := parseSocket(line); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

// parseSocket reads a line: number, local and peer address, state, two pairs
// of queue figures, retransmissions, user, timeout, inode.
func parseSocket(line string) (s socket, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || !strings.HasSuffix(f[0], ":") {
		return s, false
	}
	if s.local, ok = parseAddress(f[1]); !ok {
		return s, false
	}
	if s.peer, ok = parseAddress(f[2]); !ok {
		return s, false
	}
	inode, err := strconv.ParseUint(f[9], 10, 64)
	if err != nil || inode == 0 {
		return s, false
	}
	s.inode, s.listening = inode, f[3] == stateListen
	return s, true
}

// parseAddress reads an address as the kernel prints it: 32-bit words in the
// machine's byte order (little endian here, as package bpf requires), a colon,
// the port in network order.
func parseAddress(text string) (netip.AddrPort, bool) {
	address, portText, ok := strings.Cut(text, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	raw, err := hex.DecodeString(address)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.LittleEndian.Uint32(raw[i:]))
	}
	ip, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), true
}
