package hosts

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plug connects the host to the switch by a veth pair.
func (h *Host) plug() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = fmt.Sprintf("port%d", h.Index), h.net.config.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU = "eth0", uint32(h.net.config.MTU)
	// Created there at once. In the switch's namespace there could be only one eth0.
	veth.PeerNamespace = netlink.NsFd(h.ns)
	var err error
	if err = h.net.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("adding the pair: %w", err)
	}
	if h.port, err = h.net.nl.LinkByName(attrs.Name); err != nil {
		return fmt.Errorf("the switch's end: %w", err)
	}
	if h.uplink, err = h.nl.LinkByName("eth0"); err != nil {
		return fmt.Errorf("the host's end: %w", err)
	}
	if err := h.net.nl.LinkSetMaster(h.port, h.net.bridge); err != nil {
		return fmt.Errorf("joining the bridge: %w", err)
	}
	if err := h.net.nl.LinkSetUp(h.port); err != nil {
		return fmt.Errorf("starting the switch's end: %w", err)
	}
	if err := h.nl.LinkSetUp(h.uplink); err != nil {
		return fmt.Errorf("starting the host's end: %w", err)
	}
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := h.nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("starting loopback: %w", err)
	}
	return h.clsact()
}

// awaitLink waits until both ends of the link are up and the host answers neighbour
// solicitations for its IPv6 address. On a busy machine the kernel gets to both somewhat later,
// and a connection that is tried earlier loses its first packet and with it a second.
func (h *Host) awaitLink() error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		uplink, err := h.nl.LinkByIndex(h.uplink.Attrs().Index)
		if err != nil {
			return fmt.Errorf("the host's end: %w", err)
		}
		port, err := h.net.nl.LinkByIndex(h.port.Attrs().Index)
		if err != nil {
			return fmt.Errorf("the switch's end: %w", err)
		}
		hears, err := h.hearsNeighbours()
		if err != nil {
			return err
		}
		if hears && uplink.Attrs().OperState == netlink.OperUp && port.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("its link is not up after 10 s: %s on the host, %s on the switch, neighbours heard %v",
				uplink.Attrs().OperState, port.Attrs().OperState, hears)
		}
		time.Sleep(time.Millisecond)
	}
}

// hearsNeighbours reports whether the host has joined the solicited-node multicast group of its
// IPv6 address, which has the address's last three bytes (RFC 4291, 2.7.1).
func (h *Host) hearsNeighbours() (hears bool, err error) {
	if !h.IPv6.IsValid() {
		return true, nil
	}
	a := h.IPv6.As16()
	group := fmt.Sprintf("ff0200000000000000000001ff%x", a[13:])
	err = inNamespace(h.ns, func() error {
		groups, err := os.ReadFile("/proc/thread-self/net/igmp6")
		hears = strings.Contains(string(groups), group)
		return err
	})
	return hears, err
}

// clsact prepares the switch's end for the programs that count and lose packets. A kernel
// without it can still do everything else.
func (h *Host) clsact() error {
	err := h.net.nl.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: h.port.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("adding the clsact qdisc: %w", err)
	}
	return nil
}

// address gives the host its addresses. Everything on the switch is on-link, so that no routes
// are needed.
func (h *Host) address() error {
	v4 := &netlink.Addr{IPNet: &net.IPNet{IP: h.IPv4.AsSlice(), Mask: net.CIDRMask(15, 32)}}
	if err := h.nl.AddrAdd(h.uplink, v4); err != nil {
		return fmt.Errorf("adding %s: %w", h.IPv4, err)
	}
	if !h.IPv6.IsValid() {
		return nil
	}
	v6 := &netlink.Addr{
		IPNet: &net.IPNet{IP: h.IPv6.AsSlice(), Mask: net.CIDRMask(64, 128)},
		Flags: unix.IFA_F_NODAD,
	}
	if err := h.nl.AddrAdd(h.uplink, v6); err != nil {
		return fmt.Errorf("adding %s: %w", h.IPv6, err)
	}
	return nil
}

// SetRate limits the host's link to bits per second in each direction; 0 removes the limit. The
// bucket holds what 4 ms bring, at least 64 KiB, and the queue in front of it what 50 ms bring,
// at least 256 KiB. A faster sender finds the queue full, and TCP loses a packet, as at a real
// port.
func (h *Host) SetRate(bits uint64) error {
	h.link.Lock()
	defer h.link.Unlock()
	ends := []struct {
		nl   *netlink.Handle
		link netlink.Link
	}{{h.nl, h.uplink}, {h.net.nl, h.port}}
	for _, end := range ends {
		attrs := netlink.QdiscAttrs{
			LinkIndex: end.link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		}
		if bits == 0 {
			// EINVAL means that the default queue is there, and no limit.
			err := end.nl.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
			if err != nil && !isGone(err) && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("host %s: lifting the limit: %w", h.Name, err)
			}
			continue
		}
		if err := end.nl.QdiscReplace(tokenBucket(attrs, bits)); err != nil {
			return fmt.Errorf("host %s: limiting its link to %d bit/s: %w", h.Name, bits, err)
		}
	}
	return nil
}

// tokenBucket converts a rate to the units of tbf: the bucket is given as the time to fill it,
// in ticks.
func tokenBucket(attrs netlink.QdiscAttrs, bits uint64) *netlink.Tbf {
	bytes := float64(bits) / 8
	burst := max(bytes*0.004, 64<<10)
	limit := max(bytes*0.050, 256<<10)
	ticks := burst / bytes * 1e6 * netlink.TickInUsec()
	return &netlink.Tbf{
		QdiscAttrs: attrs,
		Rate:       bits / 8,
		Limit:      uint32(min(limit, math.MaxUint32)),
		Buffer:     uint32(min(ticks, math.MaxUint32)),
	}
}

// Cut removes the host's port from the switch: packets from and to it vanish without an error,
// as with a failed switch. Cutting a cut link does nothing.
func (h *Host) Cut() error {
	h.link.Lock()
	defer h.link.Unlock()
	if err := h.net.nl.LinkSetNoMaster(h.port); err != nil {
		return fmt.Errorf("cutting host %s off: %w", h.Name, err)
	}
	return nil
}

// Heal undoes Cut.
func (h *Host) Heal() error {
	h.link.Lock()
	defer h.link.Unlock()
	if err := h.net.nl.LinkSetMaster(h.port, h.net.bridge); err != nil {
		return fmt.Errorf("joining host %s again: %w", h.Name, err)
	}
	return nil
}

// Counters are what went over a host's link since it was created: whole frames with all
// headers, including ARP and neighbour discovery. A packet that is still to be divided into
// segments counts its headers once.
type Counters struct {
	SentBytes, SentPackets         uint64
	ReceivedBytes, ReceivedPackets uint64
}

// Counters returns the link's counters, read at the switch: what a limit or a full queue on the
// host held back does not count as sent.
func (h *Host) Counters() (Counters, error) {
	link, err := h.net.nl.LinkByIndex(h.port.Attrs().Index)
	if err != nil {
		return Counters{}, fmt.Errorf("counters of host %s: %w", h.Name, err)
	}
	s := link.Attrs().Statistics
	return Counters{
		SentBytes: s.RxBytes, SentPackets: s.RxPackets,
		ReceivedBytes: s.TxBytes, ReceivedPackets: s.TxPackets,
	}, nil
}

// isGone reports whether an error means that the object no longer exists.
func isGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT)
}
