package values

import (
	"net"
	"strconv"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy/relay"
)

// client is the process that made a connection which this proxy carries.
type client struct {
	codec  *Codec
	link   relay.Link
	member *member // of the link's origin; nil: another host's process made the connection

	role  pslite.Role // valid if known, as are node and id
	node  string      // its id in the form of a ZMTP identity, "ps9"
	id    int32
	known bool
}

// Ready implements [relay.Greeter]: the identity names the sender.
func (c *client) Ready(r zmtp.Ready) {
	id, ok := pslite.ParseIdentity(r.Identity)
	if !ok {
		return
	}
	c.role, _, c.known = pslite.Rank(id)
	c.id = id
	c.node = string(r.Identity)
}

// Ready implements [relay.Greeter]. Where the process's connection went over another link
// before, its streams go on with this one at once: after its last push the process sends
// nothing more that would tell them, and what waits has yet to be sent. Over any other link
// another process may come.
func (s *Sender) Ready(r zmtp.Ready) {
	s.client.Ready(r)
	if !s.link.Continues || !s.known {
		return
	}
	for o := range s.codec.streamsOf(s.link.Origin, s.node) {
		if o.server != s.link.Destination {
			continue
		}
		st, _ := s.streamOf([2]int32{o.app, o.customer}, false)
		if st == nil {
			continue
		}
		st.mu.Lock()
		if st.sender == nil {
			st.sender = s
		}
		st.mu.Unlock()
	}
}

// learn reads a control message for the job that the process belongs to, and for the
// announcement of its last push. In the second case it blocks until the residuals are
// sent and answered: the message, a barrier, is held back meanwhile, or the servers
// could end before the last push arrives.
func (c *client) learn(m *pslite.Meta) {
	if c.link.Job == "" && c.member != nil {
		c.member.names(c.tells(m))
	}
	if c.known && c.role == pslite.Worker && isLast(m) {
		c.codec.endWorker(c.link.Origin, c.node)
	}
}

// tells returns the job that a control message shows, empty if it does not: the scheduler's
// list of nodes does, and so does any message that goes to the scheduler alone. The
// registration is not enough: a node reconnects once it has its id, and in between there
// may be no link that keeps its origin known.
func (c *client) tells(m *pslite.Meta) string {
	fromScheduler := c.known && c.id == pslite.SchedulerID
	switch m.Control.Cmd {
	case pslite.AddNode:
		for _, n := range m.Control.Nodes {
			// The table has the scheduler's address as all nodes know it, which is
			// the job's name here.
			if n.ID == pslite.SchedulerID {
				return net.JoinHostPort(n.Hostname, strconv.Itoa(int(n.Port)))
			}
		}
		if len(m.Control.Nodes) == 1 && !fromScheduler {
			return c.link.Destination.String()
		}
	// These go to the scheduler alone, so the connection's destination is the
	// scheduler.
	case pslite.Barrier, pslite.InstanceBarrier, pslite.Heartbeat:
		if c.known && !fromScheduler {
			return c.link.Destination.String()
		}
	}
	return ""
}

// observer watches a connection whose messages go without this codec: direct, as to a host
// without a proxy, or by another codec. Of its messages those to the scheduler matter.
type observer struct {
	client
	detector pslite.Detector
	meta     pslite.Meta
}

// Observe returns the observer of a connection that a process of this host made and that
// goes without this codec, so that messages to a scheduler on a host without a proxy are
// seen nevertheless.
func (c *Codec) Observe(l relay.Link) relay.Observer {
	o := &observer{client: client{codec: c, link: l, member: c.joinOrigin(l.Origin, false)}}
	o.member.names(l.Job)
	return o
}

// Observe implements [relay.Observer]. A connection that carries pushes, pulls or their
// answers leads to a server or worker: nothing of interest follows on it.
func (o *observer) Observe(shown *relay.Message) (more bool) {
	frames := shown.Frames
	if _, ok := pslite.ParseIdentity(frames[0]); ok && len(frames) > 1 {
		frames = frames[1:]
	}
	if _, err := o.detector.Decode(frames[0], &o.meta); err != nil {
		return false
	}
	o.learn(&o.meta)
	return !o.meta.Data()
}

// Close implements [relay.Observer].
func (o *observer) Close() { o.member.leave() }
