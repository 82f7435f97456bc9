package proxy

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/relay"
)

// gather sets up the summing of pushes on a connection, and hearing of the answers to them,
// where that is wanted and possible: on links to other hosts whose messages are seen.
// Connections that outlive a proxy are left out, since they read nothing that has not been
// written.
//
// end must be called when the link has ended. An error means that a push waits that cannot go
// over this link; other workers' values may be in it, and nothing can be sent in its place,
// so the connection must be reset.
func (p *Proxy) gather(c *connection) (end func(), err error) {
	var before gathered
	if c.transit != nil {
		// Taken out, so that it is closed exactly once, wherever this connection ends.
		before, c.transit.gathered = c.transit.gathered, gathered{}
	}
	switch {
	// Without a codec nobody knows where a message begins.
	case p.opts.Aggregate == nil || c.pipe.Sender == nil || c.pipe.Receiver == nil || c.kept != nil:
	// To a server on this host nothing leaves the host, so there is nothing to save.
	case c.kind == kindLink && c.peer != p.instance:
		far, alters := c.pipe.Far, func() bool { return false }
		if a, ok := c.pipe.Sender.(interface{ DropsPushes() bool }); ok {
			alters = a.DropsPushes
		}
		l := aggregate.Link{
			Scope: c.scope, Destination: c.destination, Wake: c.pipe.Wake, Drops: alters,
			Wanted: func(job string, keys measure.KeyRange) bool { return p.aggregates(c, job, keys) },
			Unsent: func() int { return relay.Unsent(far) }, Unacked: func() int { return relay.Unacked(far) },
		}
		l.Routes, _ = c.pipe.Outbound.(relay.Routes)
		if p.opts.AggregateProbed {
			l.Adds = func() bool { return false }
			if line, ok := c.pipe.Outbound.(interface{ Adds() bool }); ok {
				l.Adds = line.Adds
			}
		}
		// A queue that comes from the last link still has what it has not sent.
		q := before.queue
		if q == nil {
			q = p.opts.Aggregate.Queue(l)
		} else {
			q.GoOn(l)
		}
		c.pipe.Gatherer = q
		if known, ok := q.(*aggregate.Queue); ok {
			c.sums.Store(known)
		}
		return c.gathers(gathered{queue: q}), nil
	case c.kind == kindAccepted: // also from this host: a scheduler sends all nodes
		h := before.hearer
		if h == nil {
			h = p.opts.Aggregate.Hearer(c.scope, c.destination)
			// Another proxy has seen the process's READY, and the process sends it once.
			if c.transit != nil {
				if name, data, err := zmtp.ParseCommand(c.transit.theirs); err == nil && string(name) == zmtp.CommandReady {
					if r, err := zmtp.ParseReady(data); err == nil {
						h.Ready(r)
					}
				}
			}
		}
		c.pipe.Hearer = h
		return c.gathers(gathered{hearer: h}), nil
	}
	// The connection came from a link with summing, and this one has none.
	if before.queue != nil && before.queue.Waiting() {
		err = aggregate.ErrLost
	}
	before.close()
	return func() {}, err
}

// gathered is what a connection takes along to its next link.
type gathered struct {
	queue  queue
	hearer *aggregate.Hearer
}

// queue is implemented by [aggregate.Queue]; tests have their own.
type queue interface {
	relay.Gatherer
	GoOn(l aggregate.Link)
	Close()
}

// close ends both; either may be nil.
func (g gathered) close() {
	if g.queue != nil {
		g.queue.Close()
	}
	if g.hearer != nil {
		g.hearer.Close()
	}
}

// gathers returns the function to call when the connection's link has ended. If that was in
// order, g stays for the next link.
func (c *connection) gathers(g gathered) (end func()) {
	return func() {
		if c.transit != nil && c.pipe.Passed() {
			c.transit.gathered = g
			return
		}
		g.close()
	}
}

// endGathering ends summing before connections are handed over, while they still carry
// answers. It blocks for gathersFor at most.
func (p *Proxy) endGathering() {
	if p.opts.Aggregate == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.life, min(p.opts.Grace/2, gathersFor))
	defer cancel()
	p.opts.Aggregate.End(ctx)
}

// gathersFor is how long pushes that others' sums carry may wait for answers while the proxy
// ends.
const gathersFor = 2 * time.Second

// aggregateState returns the counts of summed pushes; nil where nothing is summed.
func (p *Proxy) aggregateState() *aggregate.Counts {
	if p.opts.Aggregate == nil {
		return nil
	}
	c := p.opts.Aggregate.Counts()
	return &c
}

var (
	descAggregate       = prometheus.NewDesc("psidecar_proxy_aggregate_pushes_total", "Pushes of several workers on this host to one server: sums (sent with others' values), carried (sent as zeros), partial (sent as zeros for keys that others carried), alone (waited for a busy link, but no other push arrived), lost (connections reset because the carrier's connection broke).", []string{"what"}, nil)
	descAggregateSpared = prometheus.NewDesc("psidecar_proxy_aggregate_spared_bytes_total", "Bytes of values that did not leave this host because they were added to another worker's push.", nil, nil)
	descAggregateHeld   = prometheus.NewDesc("psidecar_proxy_aggregate_held_bytes", "Bytes of sums waiting for their link.", nil, nil)
	descAggregatePassed = prometheus.NewDesc("psidecar_proxy_aggregate_passed_total", "Pushes of --aggregate-least bytes or more that were not summed, by reason.", []string{"reason"}, nil)
)

// collectAggregate sends them as metrics.
func (p *Proxy) collectAggregate(out chan<- prometheus.Metric) {
	c := p.aggregateState()
	if c == nil {
		return
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	counter(descAggregate, c.Sums, "sums")
	counter(descAggregate, c.Carried, "carried")
	counter(descAggregate, c.Partial, "partial")
	counter(descAggregate, c.Alone, "alone")
	counter(descAggregate, c.Lost, "lost")
	counter(descAggregateSpared, c.SparedBytes)
	out <- prometheus.MustNewConstMetric(descAggregateHeld, prometheus.GaugeValue, float64(c.HeldBytes))
	for why, n := range c.Passed {
		counter(descAggregatePassed, n, why)
	}
}
