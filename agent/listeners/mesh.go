package listeners

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/handover"
)

// Addresses of the listeners for a job's connects: loopback, at any free port. The BPF programs
// rewrite a connect to the port that was chosen.
var (
	anyLoopback4 = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	anyLoopback6 = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
)

// listeners returns all listeners, those for connects and those for links. The caller holds
// l.mu.
func (l *Listeners) listeners() []*opened {
	return slices.AppendSeq(slices.Collect(maps.Values(l.open)), maps.Values(l.mesh))
}

// listenMesh opens the mesh port in a process's network namespace, unless it is open there, and
// marks the namespace in wanted. In this process's own namespace the proxy listens for links
// itself. A process that has ended is no error. The caller holds l.mu.
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
		return nil // the PID was reused; the next Reconcile has the truth
	}
	port := l.opts.MeshPort
	o, err := openIn(ns, l.mark, netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("port %d is in use in its network namespace, so other hosts' proxies connect to it directly (choose another --mesh-port, on all hosts): %w", port, err)
	}
	if err != nil {
		return fmt.Errorf("opening port %d for other hosts' proxies: %w", port, err)
	}
	// The job is that of the process at hand. Links name the destination themselves, so it is
	// only a label where several jobs share the namespace.
	o.job, o.netns, o.mesh = p.Job, netns, true
	l.mesh[netns] = o
	l.hand(o)
	return nil
}

// closeMeshes closes the mesh ports of namespaces that are not in wanted. Other hosts' proxies
// find the port closed and let the job connect directly. The caller holds l.mu.
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
