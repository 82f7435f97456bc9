package planner

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxCarried is how many connections are forwarded at a time. Some thousand hosts make two
	// each.
	maxCarried = 16384
	// reachIn is how long the leader may take to accept a connection.
	reachIn = 3 * time.Second
)

// A standbyListener accepts connections for a planner that waits for the lead. While To returns the
// address of the leader, each connection is forwarded there and Accept returns none; otherwise
// Accept returns it. To must be set before the first Accept.
//
// Each forwarded connection has two goroutines, one per direction. carrying counts them, and ends
// has their connections, so that Drop and Close can end them.
type standbyListener struct {
	net.Listener
	To func() netip.AddrPort

	carrying sync.WaitGroup
	mu       sync.Mutex // guards the rest
	// By the caller's end, the leader's end; nil until the leader was reached.
	ends   map[net.Conn]net.Conn
	closed bool
	counts [len(outcomes)]uint64
}

// What became of connections.
const (
	// Outcomes of connections, as counted in counts.
	carried = iota
	refused // too many at a time
	failed  // the leader did not answer
)

var outcomes = [...]string{carried: "carried", refused: "too_many", failed: "unreachable"}

// Accept implements net.Listener. It returns only connections that came while no other planner was
// known to have the lead.
func (l *standbyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		to := l.To()
		if !to.IsValid() {
			return c, nil
		}
		l.sendOn(c, to)
	}
}

// Close implements net.Listener. When it returns, all forwarded connections are closed and their
// goroutines have ended.
func (l *standbyListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	// From here on no connection is added to ends.
	l.closed = true
	l.mu.Unlock()
	l.Drop()
	l.carrying.Wait()
	return err
}

// Drop closes all forwarded connections, because their planner has lost the lead. Its callers must
// not go on talking to it.
func (l *standbyListener) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, leader := range l.ends {
		c.Close()
		if leader != nil {
			leader.Close()
		}
	}
}

// sendOn forwards a connection in goroutines of its own, or closes it if there are too many.
func (l *standbyListener) sendOn(c net.Conn, to netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.ends) >= maxCarried {
		l.counts[refused]++
		c.Close()
		return
	}
	if l.ends == nil {
		l.ends = map[net.Conn]net.Conn{}
	}
	l.ends[c] = nil
	l.carrying.Go(func() {
		defer l.dropConn(c)
		defer c.Close()
		leader, err := net.DialTimeout("tcp", to.String(), reachIn)
		if err != nil {
			slog.Debug("cannot reach the leading planner", "address", to, "error", err)
			l.countOutcome(failed)
			return
		}
		defer leader.Close()
		if !l.reached(c, leader, to) {
			return
		}
		l.countOutcome(carried)
		var back sync.WaitGroup
		back.Go(func() { carry(c, leader) })
		carry(leader, c)
		back.Wait()
	})
}

// carry copies until either end is closed, then closes both, which ends the copy in the other
// direction too.
func carry(to, from net.Conn) {
	io.Copy(to, from) // an error only says that one of them has ended
	to.Close()
	from.Close()
}

// reached records the leader's end of a connection, so that Drop closes it. It returns false if the
// listener was closed or the lead changed while the leader was dialled: Drop has not seen this
// connection.
func (l *standbyListener) reached(c, leader net.Conn, to netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.To() != to {
		return false
	}
	l.ends[c] = leader
	return true
}

func (l *standbyListener) dropConn(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ends, c)
}

func (l *standbyListener) countOutcome(outcome int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[outcome]++
}

var sentOnDesc = prometheus.NewDesc("psidecar_planner_sent_on_total", "Connections to this planner while another one had the lead, by outcome.", []string{"outcome"}, nil)

// Describe implements prometheus.Collector.
func (l *standbyListener) Describe(out chan<- *prometheus.Desc) { out <- sentOnDesc }

// Collect implements prometheus.Collector.
func (l *standbyListener) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	counts := l.counts
	l.mu.Unlock()
	for outcome, n := range counts {
		out <- prometheus.MustNewConstMetric(sentOnDesc, prometheus.CounterValue, float64(n), outcomes[outcome])
	}
}
