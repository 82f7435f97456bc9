package discover

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// socket is a line of /proc/PID/net/tcp or tcp6. The process's own network namespace is shown
// there, not the reader's.
type socket struct {
	local, peer netip.AddrPort
	listening   bool
	inode       uint64
}

// stateListen is TCP_LISTEN, as /proc/PID/net/tcp spells it.
const stateListen = "0A"

// maxLines bounds the lines read of each table of a network namespace.
const maxLines = 1 << 20

// readSockets calls each with the TCP sockets of a process's network namespace whose inode is
// wanted. It reports whether it could read any line.
func readSockets(proc fs.FS, pid int, wanted func(inode uint64) bool, each func(socket)) (read bool) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := proc.Open(strconv.Itoa(pid) + "/net/" + name)
		if err != nil {
			continue // no IPv6, or the process has ended
		}
		lines := bufio.NewScanner(f)
		for n := 0; n < maxLines && lines.Scan(); n++ {
			read = true
			if inode, ok := inodeOf(lines.Bytes()); ok && wanted(inode) {
				if s, ok := parseSocket(lines.Text()); ok {
					each(s)
				}
			}
		}
		f.Close()
	}
	return read
}

// inodeOf returns the tenth field of a line. Most sockets belong to processes the agent is not
// interested in, so the inode alone is extracted before anything else is parsed. The first line
// is a header and has none.
func inodeOf(line []byte) (uint64, bool) {
	for range 9 {
		line = bytes.TrimLeft(line, " ")
		i := bytes.IndexByte(line, ' ')
		if i < 0 {
			return 0, false
		}
		line = line[i:]
	}
	line = bytes.TrimLeft(line, " ")
	inode, digits := uint64(0), 0
	for ; digits < min(len(line), 19) && line[digits] >= '0' && line[digits] <= '9'; digits++ {
		inode = inode*10 + uint64(line[digits]-'0')
	}
	return inode, inode != 0
}

// parseSocket parses a line: number, local and peer address, state, queues, timer,
// retransmissions, user, timeout, inode. Sockets without an inode, such as those in TIME_WAIT,
// belong to no process and are left out.
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

// inodes returns the inodes of the sockets among a process's first most descriptors, sorted and
// without duplicates, and the number of descriptors that were examined.
func inodes(proc fs.FS, pid, most int) (held []uint64, looked int) {
	dir := strconv.Itoa(pid) + "/fd"
	names, err := ListNames(proc, dir, most)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		return nil, 0
	}
	for _, name := range names {
		target, err := fs.ReadLink(proc, dir+"/"+name)
		if err != nil {
			continue
		}
		digits, ok := strings.CutPrefix(target, "socket:[")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64); err == nil {
			held = append(held, n)
		}
	}
	slices.Sort(held)
	return slices.Compact(held), len(names)
}

// parseAddress parses an address as the kernel prints it: 32-bit words in host byte order
// (little endian, which package bpf requires), a colon, and the port in network byte order, all
// in hexadecimal.
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
