package observe

import (
	"net/netip"
)

// place finds the nodes at the ends of a stream, as far as they are not known yet. It goes from
// certain to derived evidence: the node that listens at the destination; for answers that flow
// back on a connection, its forward direction; the processes of this host; the sender's ZMTP
// identity; and the role that faces the sender.
func (o *Observer) place(s *stream, at int64) {
	o.markTwin(s)
	if s.sender != nil && s.receiver != nil {
		return
	}
	// An address that a node is known to listen at is the best evidence there is.
	if s.receiver == nil {
		s.receiver = o.nodeAt(s.to)
	}
	if s.receiver == nil {
		o.placeBackward(s)
	}
	if (s.sender == nil || s.receiver == nil) && s.mayAsk(at) {
		o.placeByProcess(s)
	}
	// The sender is on another host, and its source port is not the one that it listens on.
	if s.timing && s.sender == nil && s.identity <= 0 && s.receiver != nil {
		s.sender = s.receiver.job.onlyServerAt(s.from.Addr())
	}
	if s.receiver != nil && s.sender == nil && s.identity > 0 {
		s.sender = s.receiver.job.withID(s.identity, fromIdentity)
	}
	if s.sender != nil && s.identity > 0 && s.sender.id != s.identity {
		s.sender = o.identify(s.sender, s.identity, fromIdentity)
	}
	if s.sender != nil && s.receiver == nil {
		s.receiver = s.sender.facing(s.to)
	}
}

// onlyServerAt returns the job's only server at an address. It returns nil if there are several
// or none, or if not all servers are known, in which case another may turn up at the same
// address.
func (j *Job) onlyServerAt(a netip.Addr) *Node {
	var found *Node
	known := 0
	for _, n := range j.servers {
		if n.gone {
			continue
		}
		if known++; n.address.Addr() != a {
			continue
		}
		if found != nil {
			return nil
		}
		found = n
	}
	if known < j.serverCount {
		return nil
	}
	return found
}

// placeBackward places a stream that flows from a listening node back to the one that
// connected, as BytePS's answers do. Plain PS-lite uses a connection in one direction only.
func (o *Observer) placeBackward(s *stream) {
	node := o.nodeAt(s.from)
	forward := o.streams[o.sending[[2]netip.AddrPort{s.to, s.from}]]
	if node == nil || forward == nil || forward.sender == nil {
		return
	}
	s.sender, s.receiver, s.identity = node, forward.sender, 0
}

// markTwin marks a received stream whose sender is watched by this agent too. Its messages are
// counted where they are sent.
func (o *Observer) markTwin(s *stream) {
	if s.twin || s.id.Direction() == 0 {
		return
	}
	_, s.twin = o.sending[[2]netip.AddrPort{s.from, s.to}]
}

// nodeAt returns the node that listens at an address, in any job. If the jobs of several
// network namespaces use the same address, the job that was active last wins.
func (o *Observer) nodeAt(a netip.AddrPort) *Node {
	var found *Node
	for _, j := range o.jobs {
		if n := j.byAddress[a]; n != nil && (found == nil || j.last > found.job.last) {
			found = n
		}
	}
	return found
}

// withID returns the node with an id, adding one if there is none; nil at maxNodes.
func (j *Job) withID(id int32, from string) *Node {
	if n := j.byID[id]; n != nil {
		return n
	}
	n := j.addNode(roleOfID(id))
	if n != nil {
		n.setID(id, from)
	}
	return n
}

// mayAsk rations questions to the Resolver, which may scan /proc: a hundred a second for the
// first 200, then one a second. at is in nanoseconds.
func (s *stream) mayAsk(at int64) bool {
	again := int64(10e6)
	if s.tries > 200 {
		again = 1e9
	}
	if s.tries > 0 && at-s.tried < again {
		return false
	}
	s.tried = at
	s.tries++
	return true
}

// placeByProcess asks which processes of this host are at the ends of a stream. On a timing
// stream, the sender is on another host. The socket's own addresses are used, which differ from
// s.from and s.to where a proxy is in between.
func (o *Observer) placeByProcess(s *stream) {
	if o.opts.Resolver == nil {
		return
	}
	if s.sender == nil && !s.timing { // else it is on another host
		if p, ok := o.opts.Resolver.Owner(s.ends[0], s.ends[1]); ok {
			s.sender = o.nodeOf(p)
		}
	}
	if s.receiver == nil {
		if p, ok := o.opts.Resolver.Owner(s.ends[1], s.ends[0]); ok {
			s.receiver = o.nodeOf(p)
		}
	}
}

// nodeOf returns the node of a process, adding one if there is none. It returns nil if the
// process is no PS-lite node, or does not listen yet and so cannot be told apart from others.
// The node is found by PID, unless that was reused, then by the addresses at which the process
// listens.
func (o *Observer) nodeOf(p Process) *Node {
	if p.Role == "" || !p.Scheduler.IsValid() || len(p.Listens) == 0 {
		return nil // no node, or one that others cannot reach yet
	}
	j := o.job(p.Scheduler)
	if j == nil {
		return nil
	}
	if p.Servers > 0 && p.Workers > 0 { // an earlier run may have had other numbers
		j.serverCount, j.workerCount = p.Servers, p.Workers
	}
	role := roleNamed(p.Role)
	n := j.byPID[p.PID]
	if n != nil && !n.process.mayBe(&p) {
		n = nil // that process has ended, and this one has its number
	}
	for i := 0; n == nil && i < len(p.Listens); i++ {
		n = j.listening(p.Listens[i], role)
	}
	if n == nil {
		n = j.addNode(role)
	}
	if n == nil {
		return nil
	}
	// Recency decides between nodes of several runs at one place: see processes.
	j.met++
	j.byPID[p.PID], n.process, n.met = n, p, j.met
	n.setRole(role)
	for _, a := range p.Listens {
		n.setAddress(a)
	}
	return n
}

func roleNamed(name string) role {
	for _, r := range []role{roleScheduler, roleServer, roleWorker} {
		if r.String() == name {
			return r
		}
	}
	return roleUnknown
}

// facing returns the node at an address that n sends to, adding one if there is none. Its role
// follows from n's: servers and workers connect to the scheduler and to each other, never to
// nodes of their own role.
func (n *Node) facing(to netip.AddrPort) *Node {
	other := n.job.byAddress[to]
	if other != nil {
		return other
	}
	r := roleUnknown
	switch {
	case to == n.job.Scheduler:
		r = roleScheduler
	case n.role == roleWorker:
		r = roleServer
	case n.role == roleServer:
		r = roleWorker
	default:
		return nil
	}
	if other = n.job.addNode(r); other != nil {
		other.setAddress(to)
	}
	return other
}
