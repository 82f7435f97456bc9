package observe

import (
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// readControl learns about the job's nodes from a control message. A node that starts asks the
// scheduler to be added (takeJoin). When all have asked, the scheduler sends everybody the node
// table, with ids (takeTable). Heartbeats and acks name ids later on, which helps an agent that
// started in the middle of a run.
func (o *Observer) readControl(s *stream, m *pslite.Meta, at int64) {
	c := &m.Control
	switch c.Cmd {
	case pslite.AddNode:
		if table := schedulerOf(c.Nodes); table.IsValid() {
			o.takeTable(table, c.Nodes)
		} else if len(c.Nodes) == 1 {
			o.takeJoin(s, &c.Nodes[0])
		}
	case pslite.Barrier:
		o.barrier(s, m.Request, at)
		o.lastPush(s, m, at)
	case pslite.InstanceBarrier:
		o.lastPush(s, m, at)
	case pslite.Heartbeat:
		o.place(s, at)
		if s.sender != nil && len(c.Nodes) == 1 {
			s.sender = o.identify(s.sender, c.Nodes[0].ID, fromMessage)
		}
	case pslite.Ack:
		// An ack carries the signature of the message that it acknowledges, which went the
		// other way: that message's sender receives this one. The signature has the low byte of
		// both ids.
		o.place(s, at)
		if j := s.job(); j == nil || max(j.serverCount, j.workerCount) > 123 {
			return // ids beyond 255 are cut off in signatures
		}
		sender, receiver := int32(c.MsgSig>>40&0xff), int32(c.MsgSig>>32&0xff)
		if s.sender != nil && s.sender.id == 0 {
			s.sender.setID(receiver, fromMessage)
		}
		if s.receiver != nil && s.receiver.id == 0 {
			s.receiver.setID(sender, fromMessage)
		}
	}
}

// schedulerOf returns the scheduler's address if nodes are a job's node table, an invalid
// address otherwise.
func schedulerOf(nodes []pslite.Node) netip.AddrPort {
	for i := range nodes {
		if nodes[i].Role == pslite.Scheduler && len(nodes) > 1 {
			return addressOf(&nodes[i])
		}
	}
	return netip.AddrPort{}
}

// addressOf returns where a node listens; invalid if its host is not an IP address.
func addressOf(n *pslite.Node) netip.AddrPort {
	ip, err := netip.ParseAddr(n.Hostname)
	if err != nil || n.Port <= 0 || n.Port > 65535 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n.Port))
}

// digestOf returns a digest of a node table, by which runs are told apart. It is 0 for the
// table that is sent when a node recovers: the run is the same, with another address in it.
func digestOf(nodes []pslite.Node) uint64 {
	if slices.ContainsFunc(nodes, func(n pslite.Node) bool { return n.IsRecovery }) {
		return 0
	}
	var t pslite.Table
	t.Learn(&pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode, Nodes: nodes}})
	return t.Digest()
}

// takeTable learns from the node table that the scheduler sends to every node. A table with
// another digest, or one after requests to join, begins a new run: sums restart, and what
// earlier runs left at addresses and PIDs is forgotten. The same table comes by once for each
// node, so it must be idempotent.
func (o *Observer) takeTable(scheduler netip.AddrPort, nodes []pslite.Node) {
	j := o.job(scheduler)
	if j == nil {
		return
	}
	digest := digestOf(nodes)
	isNew := j.joining || j.table != 0 && digest != 0 && digest != j.table // in a new run, the ids may be assigned differently
	if isNew {
		j.joining = false
		j.Sums.Restart()
		clear(j.looked.clocks)
		if digest != 0 {
			j.table = digest // after Restart, which drops the window of the run before
		}
	} else if digest != j.table && digest != 0 {
		j.Sums.DropWindow() // the first table seen, in the middle of a run: it is unknown which run the window is of
	}
	now := map[netip.AddrPort]bool{}
	// Taken before ids move: which process is at which address does not change by the table.
	running := j.processes()
	servers, workers := 0, 0
	for i := range nodes {
		entry := &nodes[i]
		address := addressOf(entry)
		if roleOfID(entry.ID) == roleUnknown || !address.IsValid() {
			continue
		}
		switch roleOf(entry.Role) {
		case roleServer:
			servers++
		case roleWorker:
			workers++
		}
		n := j.listening(address, roleOf(entry.Role))
		if n != nil {
			n = o.identify(n, entry.ID, fromTable)
		} else {
			n = j.withID(entry.ID, fromTable) // unknown address: the node of this id listens there now
		}
		if n == nil {
			break // beyond the limit
		}
		now[address] = true
		if j.byAddress[address] != n {
			j.removeNode(address)
		}
		n.setAddress(address)
		n.address = address
	}
	j.giveProcesses(running)
	if isNew { // it has all nodes, of this run
		j.prune(now)
		j.serverCount, j.workerCount = servers, workers
	}
	j.serverCount, j.workerCount = max(j.serverCount, servers), max(j.workerCount, workers)
}

// takeJoin learns from a node's request to be added, which it sends to the scheduler and which
// says where it listens. The receiver of the message is the scheduler, whatever else is known.
func (o *Observer) takeJoin(s *stream, entry *pslite.Node) {
	j := o.job(s.to)
	if j == nil {
		return
	}
	if (entry.ID == pslite.Empty || entry.ID <= 0) && !j.joining {
		j.joining = true
		j.Sums.DropWindow() // the new run's table may never pass this host
	}
	if scheduler := j.byAddress[s.to]; scheduler == nil {
		if n := j.addNode(roleScheduler); n != nil {
			n.setAddress(s.to)
		}
	}
	address := addressOf(entry)
	n := j.listening(address, roleOf(entry.Role))
	if n == nil && address.IsValid() {
		if n = j.addNode(roleOf(entry.Role)); n != nil {
			n.setAddress(address)
		}
	}
	if n != nil && s.sender == nil {
		s.sender = n
	}
}

// Meet adds the node of a PS-lite process on this host before it sends anything, so that jobs
// appear as soon as they start.
func (o *Observer) Meet(p Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodeOf(p)
}

// Reconcile looks up the processes of senders on this host that are known by their messages
// alone, up to ten times for each stream. Call it every second or so; it may block in the
// Resolver, for which it does not hold the lock.
func (o *Observer) Reconcile() {
	if o.opts.Resolver == nil {
		return
	}
	var open []*stream
	o.mu.Lock()
	for _, s := range o.streams {
		if s.sender != nil && s.sender.process.PID == 0 && s.id.Direction() == bpf.Egress && !s.closed && s.asked < 10 {
			s.asked++
			open = append(open, s)
		}
	}
	o.mu.Unlock()
	for _, s := range open {
		p, ok := o.opts.Resolver.Owner(s.ends[0], s.ends[1]) // may take long: not under the lock
		if !ok {
			continue
		}
		o.mu.Lock()
		// The lock was released meanwhile: the stream's sender may be another node now.
		if n, known := o.nodeOf(p), s.sender; n != nil && n != known && n.id == 0 && n.job == known.job {
			o.absorb(known, n)
		}
		o.mu.Unlock()
	}
}
