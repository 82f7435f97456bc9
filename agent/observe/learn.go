package observe

import (
	"net/netip"
	"slices"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// readControl takes from a control message what it says of the job's nodes.
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
		// The signature is that of the acknowledged message, which went the
		// other way: its sender receives this one.
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

// schedulerOf returns the scheduler's address, if nodes are a job's node
// table.
func schedulerOf(nodes []pslite.Node) netip.AddrPort {
	for i := range nodes {
		if nodes[i].Role == pslite.Scheduler && len(nodes) > 1 {
			return addressOf(&nodes[i])
		}
	}
	return netip.AddrPort{}
}

func addressOf(n *pslite.Node) netip.AddrPort {
	ip, err := netip.ParseAddr(n.Hostname)
	if err != nil || n.Port <= 0 || n.Port > 65535 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n.Port))
}

// digestOf tells runs apart by their whole node tables; 0 where a node comes back
// into a run.
func digestOf(nodes []pslite.Node) uint64 {
	if slices.ContainsFunc(nodes, func(n pslite.Node) bool { return n.IsRecovery }) {
		return 0
	}
	var t pslite.Table
	t.Learn(&pslite.Meta{Control: pslite.Control{Cmd: pslite.AddNode, Nodes: nodes}})
	return t.Digest()
}

// takeTable takes the node table that the scheduler sends to everybody.
func (o *Observer) takeTable(scheduler netip.AddrPort, nodes []pslite.Node) {
	j := o.job(scheduler)
	if j == nil {
		return
	}
	digest := digestOf(nodes)
	isNew := j.joining || j.table != 0 && digest != 0 && digest != j.table // ids may be dealt again
	if isNew {
		j.joining = false
		j.Sums.Restart()
		clear(j.looked.clocks)
		if digest != 0 {
			j.table = digest // after the window of the run before is gone
		}
	} else if digest != j.table && digest != 0 {
		j.Sums.DropWindow() // it began within a run: which one the window is of is not known
	}
	now := map[netip.AddrPort]bool{}
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
			n = j.withID(entry.ID, fromTable) // the one that has this id now listens there
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

// takeJoin takes a node's request to be added, which says where it listens.
func (o *Observer) takeJoin(s *stream, entry *pslite.Node) {
	j := o.job(s.to)
	if j == nil {
		return
	}
	if (entry.ID == pslite.Empty || entry.ID <= 0) && !j.joining {
		j.joining = true
		j.Sums.DropWindow() // the table need not come by here
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

// Meet tells the observer of a PS-lite process on this host, so that its node
// is known before it says anything.
func (o *Observer) Meet(p Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodeOf(p)
}

// Reconcile asks again for the processes of senders on this host that were met
// by what they said alone. Call it every second or so.
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
		if n, known := o.nodeOf(p), s.sender; n != nil && n != known && n.id == 0 && n.job == known.job {
			o.absorb(known, n)
		}
		o.mu.Unlock()
	}
}
