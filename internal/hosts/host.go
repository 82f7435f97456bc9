package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Host is one host of a Net.
type Host struct {
	Name  string
	Index int        // in the Net, from 0
	IPv4  netip.Addr // its address on the switch
	IPv6  netip.Addr // the zero Addr where the MTU is too small for IPv6

	net    *Net
	ns     netns.NsHandle
	nl     *netlink.Handle // in the host's namespace
	uplink netlink.Link    // eth0, in the host's namespace
	port   netlink.Link    // its other end, in the switch's
	cgroup string
	memory []*MemoryGroup // of cgroup v1
	faults *faultInjector

	link      sync.Mutex // held while the link is changed
	processes sync.WaitGroup
}

func (h *Host) build() error {
	var err error
	if h.cgroup, err = makeCgroup(h.net.cgroup, h.Name); err != nil {
		return err
	}
	if h.ns, err = newNamespace(h.Namespace()); err != nil {
		return err
	}
	if h.nl, err = netlink.NewHandleAt(h.ns); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := inNamespace(h.ns, quietHost); err != nil {
		return err
	}
	if err := h.plug(); err != nil {
		return fmt.Errorf("its link: %w", err)
	}
	if err := h.address(); err != nil {
		return fmt.Errorf("its addresses: %w", err)
	}
	if h.net.pairs != nil {
		if err := h.net.pairs.attach(h); err != nil {
			return err
		}
	}
	return h.SetRate(h.net.config.Rate)
}

// quietHost keeps a host from sending packets that no process asked for, and
// makes its IPv6 address usable at once: no duplicate address detection, no
// link-local address, no router solicitations.
func quietHost() error {
	return setSysctls(map[string]string{
		"net/ipv6/conf/default/accept_dad":           "0",
		"net/ipv6/conf/default/accept_ra":            "0",
		"net/ipv6/conf/default/autoconf":             "0",
		"net/ipv6/conf/default/router_solicitations": "0",
		"net/ipv6/conf/default/addr_gen_mode":        "1",
		// Ports of their own for jobs whose nodes pick one at random.
		"net/ipv4/ip_local_port_range": "32768 60999",
	})
}

// Namespace is the name of the host's network namespace, as in
// `ip netns exec NAME`.
func (h *Host) Namespace() string { return h.net.prefix + h.Name }

// Handle returns the host's network namespace. It belongs to the host and is
// closed with it.
func (h *Host) Handle() netns.NsHandle { return h.ns }

// Cgroup is the folder of the host's cgroup v2.
func (h *Host) Cgroup() string { return h.cgroup }

// Group makes a cgroup of that name inside the host's, where it is not there
// yet, and returns its folder: for a job beside the sidecar that watches it.
func (h *Host) Group(name string) (string, error) {
	if !validName(name) {
		return "", fmt.Errorf("cgroup %q on host %s: use 1 to 16 letters, digits and hyphens", name, h.Name)
	}
	return makeCgroup(h.cgroup, name)
}

// GroupCPU returns the processor time that all processes of a cgroup inside the
// host's have taken, user and system, since it was made.
func (h *Host) GroupCPU(name string) (time.Duration, error) {
	dir, err := h.Group(name)
	if err != nil {
		return 0, err
	}
	return CgroupCPU(dir)
}

// Sysctl sets a network setting of the host, such as net/ipv4/tcp_retries2.
func (h *Host) Sysctl(name, value string) error {
	return h.Do(func() error {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("setting %s to %s: %w", name, value, err)
		}
		return nil
	})
}

// Do runs f in the host's network namespace, on a thread locked to it. The
// sockets that f opens stay on the host; goroutines that it starts are not.
func (h *Host) Do(f func() error) error {
	if err := inNamespace(h.ns, f); err != nil {
		return fmt.Errorf("on host %s: %w", h.Name, err)
	}
	return nil
}

// Listen listens on the host, as net.Listen; host and port are literal.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// Dial connects from the host, as net.Dial; host and port are literal (names
// are not looked up on the host).
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dialing from host %s: %w", h.Name, err)
	}
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func (h *Host) close() error {
	var errs []error
	for _, g := range h.memory {
		errs = append(errs, removeMemoryGroup(g.dir))
	}
	if h.faults != nil {
		errs = append(errs, h.faults.close())
	}
	if h.nl != nil {
		h.nl.Close()
	}
	if h.ns.IsOpen() {
		errs = append(errs, h.ns.Close(), deleteNamespace(h.Namespace()))
	}
	if h.port != nil {
		// The namespace goes when its last socket does; the link goes now.
		if err := h.net.nl.LinkDel(h.port); err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("host %s: removing its link: %w", h.Name, err))
		}
	}
	return errors.Join(errs...)
}
