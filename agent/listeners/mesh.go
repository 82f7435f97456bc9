package listeners

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/handover"
)

// Where listeners for a job's connects are: at a free port.
var (
	anyLoopback4 = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	anyLoopback6 = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
)

// listeners are all that are open.
func (l *Listeners) listeners() []*opened {
	return slices.AppendSeq(slices.Collect(maps.Values(l.open)), maps.Values(l.mesh))
}

// listenMesh opens the mesh port in a process's network namespace, where it is
// not open and other hosts' proxies would not reach this host's at the job's
// addresses, and notes in wanted that it should be open.
func (l *Listeners) listenMesh(p Process, netns uint64, wanted map[uint64]bool) error {
	if l.opts.MeshPort == 0 || netns == l.home || wanted[netns] {
		return nil
	}
	wanted[netns] = true
	if l.mesh[netns] != nil {
		return nil
	}
	ns, inode, err := openNetns(p.Netns)
	if errors.Is(err, errEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	if inode != netns {
		return nil // another process has its number now
	}
	port := l.opts.MeshPort
	o, err := openIn(ns, l.mark, netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("port %d is in use in its network namespace, so other hosts' proxies connect to it directly (choose another --mesh-port, on all hosts): %w", port, err)
	}
	if err != nil {
		return fmt.Errorf("opening port %d for other hosts' proxies: %w", port, err)
	}
	o.job, o.netns, o.mesh = p.Job, netns, true
	l.mesh[netns] = o
	l.hand(o)
	return nil
}

// closeMeshes closes the mesh ports that are not wanted any more: so other
// hosts' proxies connect directly.
func (l *Listeners) closeMeshes(wanted map[uint64]bool) error {
	var failed error
	for netns, o := range l.mesh {
		if wanted[netns] {
			continue
		}
		delete(l.mesh, netns)
		for _, s := range o.sockets {
			l.sendToAll(handover.Message{Kind: handover.Withdrawn, ID: s.id}, nil)
		}
		failed = errors.Join(failed, o.close())
	}
	return failed
}
