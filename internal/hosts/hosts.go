// Package hosts simulates hosts on one machine. Each is a network namespace with an address of
// its own, a link of a chosen speed to a common switch, and a cgroup v2. Processes run on a
// host from their first instruction, links are cut and healed, slowed down and made to lose
// packets, and the bytes that each host sent to each other host are counted.
//
// [New] makes a [Net] of [Host]s from a [Config]. The end-to-end, interop, fault and speed
// tests use it (through test/hoststest, which closes a Net with its test), and so does
// `psidecar demo`. It needs root, and a kernel with veth, bridge and tbf; counting by pairs and
// losing packets need BPF as well.
//
// A host consists of:
//
//	namespace HOST                      namespace of the switch
//	  lo                                  bridge br0
//	  eth0 198.18.0.n/15, 2001:2::n/64 ──── port n    (veth)
//	  tbf on eth0: what it sends          tbf on port n: what it gets
//
// Everything is named after the process that owns it, its start time and the boot. The next
// [New] on the machine removes what an owner that was killed has left behind. Delay and jitter
// are not simulated, because they need the netem qdisc, which small kernels lack. Loss and
// duplication are done by a BPF program instead.
package hosts

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// MaxHosts is the largest number of hosts of a Net: a bridge has no more than
// 1,024 ports.
const MaxHosts = 1000

// Config says which hosts to make.
type Config struct {
	// Hosts is the number of hosts, 1 to MaxHosts.
	Hosts int
	// Names are the hosts' names, by default host0, host1 and so on. A name consists of 1 to 16
	// letters, digits and hyphens.
	Names []string
	// Rate is the speed of every host's link in bits per second, in each direction; 0 means no
	// limit. Host.SetRate changes it.
	Rate uint64
	// MTU is the MTU of the links; 0 means 1500. Below IPv6's minimum of 1280, hosts have IPv4
	// only.
	MTU int
	// Pairs counts traffic for each pair of hosts (Net.Traffic), by BPF.
	Pairs bool
}

// A Net is a set of hosts on one switch. Its methods, and those of its hosts, may be called
// from any goroutine.
type Net struct {
	config Config
	prefix string // of all names that belong to it
	hosts  []*Host
	ns     netns.NsHandle // of the switch
	nl     *netlink.Handle
	bridge netlink.Link
	cgroup string
	spawn  *spawner
	pairs  *pairCounter

	state    sync.RWMutex // held for reading while a process is started, so that none starts after Close
	closed   bool
	closeErr error
}

// New makes hosts, after removing what killed processes left of theirs. Close removes them.
// After an error nothing is left behind.
func New(cfg Config) (*Net, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if uid := os.Geteuid(); uid != 0 {
		return nil, fmt.Errorf("making hosts needs root, for network namespaces and cgroups; this runs as uid %d: use sudo", uid)
	}
	mount, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	// Processes of a killed owner would otherwise go on taking memory and processor time. What cannot be
	// removed, as below a later mount of ip netns, has a name that is not used again.
	if err := Reap(); err != nil {
		slog.Warn("hosts of killed processes cannot be removed", "error", err)
	}
	prefix, err := ownPrefix()
	if err != nil {
		return nil, err
	}
	n := &Net{config: cfg, prefix: prefix, ns: -1, spawn: newSpawner()}
	if n.cgroup, err = makeCgroup(mount, prefix+"net"); err == nil {
		err = n.build()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making %d hosts: %w", cfg.Hosts, err), n.Close())
	}
	return n, nil
}

// complete fills in defaults and checks the configuration.
func (cfg *Config) complete() error {
	if cfg.Hosts < 1 || cfg.Hosts > MaxHosts {
		return fmt.Errorf("number of hosts is %d, must be 1 to %d", cfg.Hosts, MaxHosts)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.MTU < 68 || cfg.MTU > 65535 {
		return fmt.Errorf("MTU is %d, must be 68 to 65535", cfg.MTU)
	}
	if cfg.Names == nil {
		for i := range cfg.Hosts {
			cfg.Names = append(cfg.Names, fmt.Sprintf("host%d", i))
		}
	}
	if len(cfg.Names) != cfg.Hosts {
		return fmt.Errorf("%d names for %d hosts", len(cfg.Names), cfg.Hosts)
	}
	seen := make(map[string]bool)
	for _, name := range cfg.Names {
		if !validName(name) {
			return fmt.Errorf("host name %q: use 1 to 16 letters, digits and hyphens", name)
		}
		if seen[name] {
			return fmt.Errorf("host name %q is given twice", name)
		}
		seen[name] = true
	}
	return nil
}

// validName reports whether a name can be part of the names of cgroups and namespaces. "switch"
// is taken.
func validName(name string) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(name) > 0 && len(name) <= 16 && name != "switch"
}

// build creates the switch, then one host after another, and then waits for all links together.
func (n *Net) build() error {
	var err error
	if n.ns, err = newNamespace(n.prefix + "switch"); err != nil {
		return fmt.Errorf("the switch: %w", err)
	}
	if n.nl, err = netlink.NewHandleAt(n.ns); err != nil {
		return fmt.Errorf("netlink in the switch: %w", err)
	}
	if err := inNamespace(n.ns, quietSwitch); err != nil {
		return fmt.Errorf("the switch: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "br0", n.config.MTU
	// Multicast such as neighbour solicitations goes to all ports, whether or not the bridge
	// has learned who listens.
	snooping := false
	if err := n.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("adding the bridge: %w", err)
	}
	if n.bridge, err = n.nl.LinkByName("br0"); err != nil {
		return fmt.Errorf("the bridge: %w", err)
	}
	if err := n.nl.LinkSetUp(n.bridge); err != nil {
		return fmt.Errorf("starting the bridge: %w", err)
	}
	if n.config.Pairs {
		if n.pairs, err = newPairCounter(n.config.Hosts); err != nil {
			return err
		}
	}
	for i, name := range n.config.Names {
		h := &Host{Name: name, Index: i, IPv4: ipv4(i), net: n, ns: -1}
		if n.config.MTU >= 1280 {
			h.IPv6 = ipv6(i)
		}
		n.hosts = append(n.hosts, h)
		if err := h.build(); err != nil {
			return fmt.Errorf("host %s: %w", name, err)
		}
	}
	for _, h := range n.hosts {
		if err := h.awaitLink(); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	return nil
}

// quietSwitch keeps the switch from sending packets of its own, so that the
// counters hold the hosts' traffic alone.
func quietSwitch() error {
	return setSysctls(map[string]string{
		"net/ipv6/conf/default/disable_ipv6": "1",
		"net/ipv6/conf/all/disable_ipv6":     "1",
		// Frames pass the bridge without going through a packet filter.
		"net/bridge/bridge-nf-call-iptables":  "0",
		"net/bridge/bridge-nf-call-ip6tables": "0",
		"net/bridge/bridge-nf-call-arptables": "0",
	})
}

// setSysctls writes settings, named relative to /proc/sys, in the calling thread's network
// namespace. Settings that this kernel does not have are skipped.
func setSysctls(settings map[string]string) error {
	for name, value := range settings {
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting %s to %s: %w", name, value, err)
		}
	}
	return nil
}

// Hosts returns the hosts in order of their index.
func (n *Net) Hosts() []*Host { return append([]*Host(nil), n.hosts...) }

// Host returns the host with an index; it panics if there is none.
func (n *Net) Host(i int) *Host { return n.hosts[i] }

// Cgroup returns the folder of the cgroup v2 that contains the hosts' cgroups.
func (n *Net) Cgroup() string { return n.cgroup }

// Close kills what still runs on the hosts and removes them. Further calls return the same
// error.
func (n *Net) Close() error {
	n.state.Lock()
	defer n.state.Unlock()
	if !n.closed {
		n.closed, n.closeErr = true, n.close()
	}
	return n.closeErr
}

// close removes everything, continuing after errors. Processes go first, since a namespace
// lives as long as a process in it.
func (n *Net) close() error {
	var errs []error
	if n.cgroup != "" {
		errs = append(errs, removeCgroup(n.cgroup))
	}
	for _, h := range n.hosts {
		h.processes.Wait()
		errs = append(errs, h.close())
	}
	if n.pairs != nil {
		errs = append(errs, n.pairs.close())
	}
	if n.nl != nil {
		n.nl.Close()
	}
	if n.ns.IsOpen() {
		errs = append(errs, n.ns.Close(), deleteNamespace(n.prefix+"switch"))
	}
	// Last: processes die with the thread that started them.
	n.spawn.stop()
	return errors.Join(errs...)
}

// ipv4 returns the address of host i, from the block for benchmarking (RFC 2544). Its low 16
// bits are the index plus 1, which the BPF programs rely on.
func ipv4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte((i + 1) >> 8), byte(i + 1)})
}

// ipv6 returns the address of host i, from the corresponding block of IPv6 (RFC 5180). Its low
// 16 bits are the index plus 1.
func ipv6(i int) netip.Addr {
	a := netip.MustParseAddr("2001:2::").As16()
	a[14], a[15] = byte((i+1)>>8), byte(i+1)
	return netip.AddrFrom16(a)
}
