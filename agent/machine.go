// This file finds out how fast the host's link is and how many processors it has. It reads a
// file system with /proc and /sys and returns a [Machine], which the agent reports and the
// planner plans with.

package agent

import (
	"fmt"
	"io/fs"
	"net"
	"runtime"
	"strconv"
	"strings"
)

// A Machine describes a host as far as it is known.
type Machine struct {
	LinkMbit   uint32 // speed of its link in Mbit/s; 0: unknown
	LinkSource string // where the speed comes from (flag, node, interface), or why it is unknown
	Cores      int
}

// MeasureMachine returns what the system reports. Virtual links often report no speed, or a
// meaningless one.
func MeasureMachine(root fs.FS) Machine {
	m := Machine{Cores: runtime.NumCPU()}
	name, err := defaultInterface(root)
	if err == nil {
		m.LinkMbit, err = speed(root, name, index)
	}
	if err != nil {
		m.LinkSource = err.Error()
		return m
	}
	m.LinkSource = "interface " + name
	return m
}

// defaultInterface returns the interface of the default route with the lowest metric, of IPv4
// if there is one, else of IPv6.
func defaultInterface(root fs.FS) (string, error) {
	for _, r := range []struct {
		file                     string
		to, width, name, metrics int // fields; to and width are those of the destination
		base                     int // of the metric
	}{
		{"proc/self/net/route", 1, 7, 0, 6, 10},
		{"proc/self/net/ipv6_route", 0, 1, 9, 5, 16},
	} {
		text, err := fs.ReadFile(root, r.file)
		if err != nil {
			continue // no IPv6, for instance
		}
		best, found := uint64(0), ""
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			// A default route has destination and mask, or prefix length, 0 in hexadecimal
			// digits.
			if len(f) <= max(r.name, r.width, r.metrics) || strings.Trim(f[r.to]+f[r.width], "0") != "" || f[r.name] == "lo" {
				continue
			}
			metric, err := strconv.ParseUint(f[r.metrics], r.base, 64)
			if err == nil && (found == "" || metric < best) {
				best, found = metric, f[r.name]
			}
		}
		if found != "" {
			return found, nil
		}
	}
	return "", fmt.Errorf("no default route")
}

// speed returns the speed of an interface in Mbit/s. In a container, /sys may show the
// interfaces of another network namespace under the same names; their indexes differ.
func speed(root fs.FS, name string, index func(string) int) (uint32, error) {
	number, err := fs.ReadFile(root, "sys/class/net/"+name+"/ifindex")
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	if strings.TrimSpace(string(number)) != strconv.Itoa(index(name)) {
		return 0, fmt.Errorf("interface %s: /sys shows another network namespace", name)
	}
	text, err := fs.ReadFile(root, "sys/class/net/"+name+"/speed")
	if err != nil {
		return 0, fmt.Errorf("interface %s has no speed", name)
	}
	mbit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || mbit <= 0 {
		return 0, fmt.Errorf("interface %s has no speed", name)
	}
	return uint32(mbit), nil
}

// index returns the index of an interface in this process's network namespace, -1 if there is
// none.
func index(name string) int {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return -1
	}
	return i.Index
}
