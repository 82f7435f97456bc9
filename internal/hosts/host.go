package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// A Host is one host of a Net. Its methods may be called from any goroutine.
type Host struct {
	Name  string
	Index int        // in the Net, from 0
	IPv4  netip.Addr // its address on the switch
	IPv6  netip.Addr // the zero Addr if the MTU is too small for IPv6

	net    *Net
	ns     netns.NsHandle
	nl     *netlink.Handle // in the host's namespace
	uplink netlink.Link    // eth0, in the host's namespace
	port   netlink.Link    // the other end of eth0, in the switch's namespace
	cgroup string

	link      sync.Mutex // serializes changes of the link
	processes sync.WaitGroup
}

// build creates the host's cgroup, namespace, link and addresses. After an error, close removes
// what exists.
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

// quietHost keeps a host from sending packets that no process asked for, and makes its IPv6
// address usable at once: no duplicate address detection, link-local address or router
// solicitations.
func quietHost() error {
	return setSysctls(map[string]string{
		"net/ipv6/conf/default/accept_dad":           "0",
		"net/ipv6/conf/default/accept_ra":            "0",
		"net/ipv6/conf/default/autoconf":             "0",
		"net/ipv6/conf/default/router_solicitations": "0",
		"net/ipv6/conf/default/addr_gen_mode":        "1",
		// The range of ephemeral ports is fixed, so that jobs whose nodes pick a port at random
		// can stay out of it.
		"net/ipv4/ip_local_port_range": "32768 60999",
	})
}

// Namespace returns the name of the host's network namespace, as in `ip netns exec NAME`.
func (h *Host) Namespace() string { return h.net.prefix + h.Name }

// Handle returns the host's network namespace. The host owns and closes it.
func (h *Host) Handle() netns.NsHandle { return h.ns }

// Cgroup returns the folder of the host's cgroup v2.
func (h *Host) Cgroup() string { return h.cgroup }

// Address returns the host:port of a service on the host.
func (h *Host) Address(port int) string { return net.JoinHostPort(h.IPv4.String(), strconv.Itoa(port)) }

// Group creates a cgroup inside the host's, unless it exists, and returns its folder. A job and
// the sidecar that watches it need cgroups of their own.
func (h *Host) Group(name string) (string, error) {
	if !validName(name) {
		return "", fmt.Errorf("cgroup %q on host %s: use 1 to 16 letters, digits and hyphens", name, h.Name)
	}
	return makeCgroup(h.cgroup, name)
}

// GroupCPU returns the processor time, user and system, that the processes of a cgroup inside
// the host's have taken since it was created.
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

// Do runs f in the host's network namespace, on a thread locked to it. Sockets that f opens
// stay in that namespace; goroutines that it starts are not in it.
func (h *Host) Do(f func() error) error {
	if err := inNamespace(h.ns, f); err != nil {
		return fmt.Errorf("on host %s: %w", h.Name, err)
	}
	return nil
}

// Listen listens on the host, like net.Listen; address must be numeric.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// Dial connects from the host, like net.Dial; address must be numeric, since names would be
// resolved elsewhere.
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

// close removes the host. Its processes must be gone.
func (h *Host) close() error {
	var errs []error
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
