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
	// maxCarried is how many connections are sent on at a time; some thousand
	// hosts make two each.
	maxCarried = 16384
	reachIn    = 3 * time.Second // how long the leader may take to answer
)

// A standbyListener accepts for a planner that waits for the lead. A connection goes on
// to the planner that has it where To says where that is, and is otherwise what
// Accept returns. To must not be changed once Accept has been called.
type standbyListener struct {
	net.Listener
	To func() netip.AddrPort

	carrying sync.WaitGroup
	mu       sync.Mutex            // guards the rest
	ends     map[net.Conn]net.Conn // of a forwarded connection: the caller's end, and the leader's (nil: not reached yet)
	closed   bool
	counts   [len(outcomes)]uint64
}

// What became of connections.
const (
	carried = iota
	refused // too many at a time
	failed  // the leader did not answer
)

var outcomes = [...]string{carried: "carried", refused: "too_many", failed: "unreachable"}

// Accept implements net.Listener.
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

// Close implements net.Listener. All forwarded connections have ended when it
// returns.
func (l *standbyListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Drop()
	l.carrying.Wait()
	return err
}

// Drop ends forwarded connections, because their planner has lost the lead.
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

// sendOn carries a connection in goroutines of its own, where there is room.
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
			slog.Debug("the planner that has the lead is not reached", "address", to, "error", err)
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

// carry copies until either end is closed, then closes both.
func carry(to, from net.Conn) {
	io.Copy(to, from) // its error is that one of them has ended
	to.Close()
	from.Close()
}

// reached notes the leader's end, if nothing has changed since.
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

var sentOnDesc = prometheus.NewDesc("psidecar_planner_sent_on_total", "Connections that came to this planner while another had the lead, by what became of them.", []string{"outcome"}, nil)

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
