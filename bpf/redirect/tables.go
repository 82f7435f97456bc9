package redirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Ports are the ports at which the proxy listens in a network namespace, on 127.0.0.1 and on
// ::1; 0 where it does not.
type Ports struct{ IPv4, IPv6 uint16 }

// SetListener sets where the proxy listens for a group's processes in the network namespace
// with a cookie (SO_NETNS_COOKIE), from the next connect on. The sockets there must have the
// state's mark; otherwise connects are not redirected to them. It replaces an earlier entry.
func (r *Redirect) SetListener(netns uint64, group GroupID, p Ports) error {
	l := redirectListener{Port4: bigEndian(p.IPv4), Port6: bigEndian(p.IPv6)}
	if err := r.maps["listeners"].Put(redirectPlace{Netns: netns, Group: uint64(group)}, l); err != nil {
		return fmt.Errorf("entering the listener of network namespace %d (4,096 are possible): %w", netns, err)
	}
	return nil
}

// RemoveListener undoes SetListener. Removing an entry that does not exist is no error.
func (r *Redirect) RemoveListener(netns uint64, group GroupID) error {
	err := r.maps["listeners"].Delete(redirectPlace{Netns: netns, Group: uint64(group)})
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the listener of network namespace %d: %w", netns, err)
	}
	return nil
}

// removeKeys removes entries by their key. They are collected first, because deleting entries
// during an iteration makes the kernel skip others.
func removeKeys[K, V any](m *ebpf.Map, which func(K) bool) error {
	var k K
	var v V
	var gone []K
	entries := m.Iterate()
	for entries.Next(&k, &v) {
		if which(k) {
			gone = append(gone, k)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading %v: %w", m, err)
	}
	for _, k := range gone {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing an entry of %v: %w", m, err)
		}
	}
	return nil
}

// Take redirects the connects of a group with [Policy].Spare to one destination, from the next
// one on. Of 16,384 such destinations the least recently used is forgotten first.
func (r *Redirect) Take(group GroupID, to netip.AddrPort) error {
	return r.setWay(group, to, 0)
}

// Hold undoes Take, but has connects there fail for a time that is not 0: until it is over, or
// until Hold is called without one.
func (r *Redirect) Hold(group GroupID, to netip.AddrPort, within time.Duration) error {
	if within > 0 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("reading the clock: %w", err)
		}
		return r.setWay(group, to, uint64(now.Nano()+int64(within)))
	}
	err := r.maps[waysMap].Delete(wayOf(group, to))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("releasing connects to %v: %w", to, err)
	}
	return nil
}

// setWay writes the entry of a destination.
func (r *Redirect) setWay(group GroupID, to netip.AddrPort, until uint64) error {
	if err := r.maps[waysMap].Put(wayOf(group, to), until); err != nil {
		return fmt.Errorf("directing connects to %v: %w", to, err)
	}
	return nil
}

// wayOf returns the key of a destination.
func wayOf(group GroupID, to netip.AddrPort) redirectWay {
	w := redirectWay{Group: uint64(group), ToPort: bigEndian(to.Port())}
	a := to.Addr().As16()
	for i := range w.To.W {
		w.To.W[i] = binary.NativeEndian.Uint32(a[4*i:])
	}
	return w
}

// An Exclusion is a destination to which connects are never redirected, for all groups: a port
// at any address, all ports of some addresses, or a port of some addresses.
type Exclusion struct {
	Addresses netip.Prefix // the zero Prefix means all, and then needs a Port
	Port      uint16       // 0 means all, and then needs Addresses
}

// key returns the key in the prefix trie: the port comes first, then the address in its
// IPv6-mapped form. A lookup is made with the port and with 0, so that both kinds of exclusions
// are found.
func (e Exclusion) key() (redirectExclusion, error) {
	if !e.Addresses.IsValid() {
		if e.Port == 0 {
			return redirectExclusion{}, errors.New("an exclusion of all ports at all addresses: detach the groups instead")
		}
		return redirectExclusion{Prefix: 16, Port: bigEndian(e.Port)}, nil
	}
	// The 16 bits of the port come first. An IPv4 prefix lies below the 96 bits of the mapped
	// form.
	bits := 16 + e.Addresses.Bits()
	if e.Addresses.Addr().Is4() {
		bits += 96
	}
	return redirectExclusion{Prefix: uint32(bits), Port: bigEndian(e.Port), Address: e.Addresses.Masked().Addr().As16()}, nil
}

// SetExclusions replaces the exclusions; at most 1,024. New ones are added before old ones are
// removed, so that an exclusion in both lists has no gap.
func (r *Redirect) SetExclusions(list []Exclusion) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	wanted := map[redirectExclusion]bool{}
	for _, e := range list {
		k, err := e.key()
		if err != nil {
			return err
		}
		wanted[k] = true
		if err := r.maps["exclusions"].Put(k, uint32(1)); err != nil {
			return fmt.Errorf("excluding %v port %d (1,024 are possible): %w", e.Addresses, e.Port, err)
		}
	}
	var k redirectExclusion
	var v uint32
	var gone []redirectExclusion
	entries := r.maps["exclusions"].Iterate()
	for entries.Next(&k, &v) {
		if !wanted[k] {
			gone = append(gone, k)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading the exclusions: %w", err)
	}
	for _, k := range gone {
		if err := r.maps["exclusions"].Delete(k); err != nil {
			return fmt.Errorf("removing an exclusion: %w", err)
		}
	}
	return nil
}

// Exempt lets the connects of processes directly in a cgroup go direct. It is for a proxy that
// runs within a group's cgroup and may not mark its sockets.
func (r *Redirect) Exempt(cgroup string) error {
	id, err := ID(cgroup)
	if err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var g redirectGroup
	switch err := r.maps["groups"].Lookup(uint64(id), &g); {
	case err == nil && g.Flags&exempt == 0:
		return fmt.Errorf("cgroup %s is redirected and cannot be exempt: run the proxy in its own cgroup", cgroup)
	case err == nil:
		return nil
	}
	if err := r.putGroup(id, cgroup, exempt); err != nil {
		return err
	}
	// While the count is 0, the programs save the lookup of the connecting process's own
	// cgroup.
	return r.setting(func(s *redirectSettings) { s.ExemptGroups++ })
}

// Destination returns where the process meant to connect the socket with a cookie (SO_COOKIE),
// if it was redirected and is remembered: as long as the socket lives, and after that until
// many others have closed.
func (r *Redirect) Destination(cookie uint64) (netip.AddrPort, bool) {
	var s redirectRemembered
	err := r.maps["sockets"].Lookup(cookie, &s)
	// The entry moves between the two maps when the socket closes: sockets first, then ended,
	// finds it whenever that happens.
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = r.maps[endedMap].Lookup(cookie, &s)
	}
	if err != nil {
		return netip.AddrPort{}, false
	}
	var a [16]byte
	for i, w := range s.To.W {
		binary.NativeEndian.PutUint32(a[4*i:], w)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), bigEndian(s.ToPort)), true
}

// bigEndian converts a port between host and network byte order. The programs are built for
// little endian machines only.
func bigEndian(port uint16) uint16 { return port<<8 | port>>8 }
