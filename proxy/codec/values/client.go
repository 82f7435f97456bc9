package values

import (
	"net"
	"strconv"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/proxy/zmtp"
)

// client is a process that made a connection which this proxy carries.
type client struct {
	codec *Codec
	link  relay.Link

	role  pslite.Role // where known is set
	node  string      // its id, as the identity has it
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

// learn takes from a control message what job the process is of, and that it has
// made its last push: the message is held back until what waits is sent.
func (c *client) learn(m *pslite.Meta) {
	if c.link.Job == "" {
		c.codec.names(c.link.Origin, c.tells(m))
	}
	if c.known && c.role == pslite.Worker && isLast(m) {
		c.codec.endWorker(c.link.Origin, c.node)
	}
}

// tells returns the job that a control message is of, empty where it does not
// say: the scheduler's list of nodes does, and what goes to the scheduler alone.
// That is not only the registration: a node reconnects once it has its id, and
// in between there may be no link by which its origin is remembered.
func (c *client) tells(m *pslite.Meta) string {
	fromScheduler := c.known && c.id == pslite.SchedulerID
	switch m.Control.Cmd {
	case pslite.AddNode:
		for _, n := range m.Control.Nodes {
			if n.ID == pslite.SchedulerID {
				return net.JoinHostPort(n.Hostname, strconv.Itoa(int(n.Port)))
			}
		}
		if len(m.Control.Nodes) == 1 && !fromScheduler {
			return c.link.Destination.String()
		}
	case pslite.Barrier, pslite.InstanceBarrier, pslite.Heartbeat:
		if c.known && !fromScheduler {
			return c.link.Destination.String()
		}
	}
	return ""
}

// observer is a connection whose messages go without this codec: direct, as to a
// host without a proxy, or by another codec. Of these, those to the scheduler
// matter.
type observer struct {
	client
	detector pslite.Detector
	meta     pslite.Meta
	leave    func()
}

// Observe returns the observer of a connection that a process of this host made and
// that goes without this codec, so that messages to a scheduler on a host without a
// proxy are seen all the same.
func (c *Codec) Observe(l relay.Link) relay.Observer {
	o := &observer{client: client{codec: c, link: l}, leave: c.joinOrigin(l.Origin)}
	c.names(l.Origin, l.Job)
	return o
}

// Observe implements [relay.Observer]. Pushes, pulls and their answers go to servers
// and workers: what else goes there is of no interest.
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
func (o *observer) Close() { o.leave() }
