package proxy

import (
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/relay"
)

// Descriptors of one connection: two sockets, a page where it can outlive the proxy and,
// where it is spliced, a pipe for each direction (two descriptors each). Everything else uses
// those set apart.
const (
	descriptorsEach  = 7
	descriptorsApart = 32
)

// scarceFor is how long the proxy takes no connections after it ran out of descriptors.
const scarceFor = time.Second

// affordable returns how many connections the limit of open files allows, at least one and at
// most as many as wanted, besides others that take one descriptor each.
func affordable(wanted, others int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<31 {
		return wanted
	}
	return max(1, min(wanted, (int(limit.Cur)-descriptorsApart-others)/descriptorsEach))
}

// admission bounds the connections that are carried at a time, and reports when no more are
// taken: the agent then lets new connections go direct, so that the job does not suffer.
type admission struct {
	most int
	tell func(full bool) // does not block; may be nil

	mu      sync.Mutex  // guards the rest; held while tell is called
	serving int         // slots in use, at most most
	scarce  *time.Timer // runs after a lack of descriptors; nil: there is none
	full    bool        // as last reported by tell

	spare *os.File // a descriptor that is given up to accept and reset a connection
}

func newAdmission(most int) *admission {
	a := &admission{most: most}
	a.keepSpare()
	return a
}

// enter takes a slot, and returns false where there is none.
func (a *admission) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.serving >= a.most {
		return false
	}
	a.serving++
	a.judge()
	return true
}

// leave gives a slot back.
func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serving--
	a.judge()
}

// ranShort notes that there was no descriptor left. For a while no connections are taken.
func (a *admission) ranShort() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.scarce != nil {
		a.scarce.Reset(scarceFor)
		return
	}
	// After that the lack may be over; if not, the next accept starts it again.
	a.scarce = time.AfterFunc(scarceFor, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.scarce = nil
		a.judge()
	})
	a.judge()
}

// judge reports by tell whether there is room, if that has changed. It needs an eighth of the
// slots free before it reports room again, so that it does not alternate. The caller holds
// mu.
func (a *admission) judge() {
	full := a.scarce != nil || a.serving >= a.most || a.full && a.serving > a.most*7/8
	if full == a.full {
		return
	}
	a.full = full
	if a.tell != nil {
		a.tell(full)
	}
}

// keepSpare reserves the spare descriptor; the caller holds mu.
func (a *admission) keepSpare() {
	if a.spare == nil {
		a.spare, _ = os.Open(os.DevNull) // without one nothing is shed
	}
}

// shed resets the connection that waits at a listener and could not be accepted for want of a
// descriptor. It would stay in the queue forever, and its client would wait. The spare
// descriptor is given up for it, and taken back. If another goroutine takes the descriptor in
// between, the next call finds no spare and only tries to get one.
func (a *admission) shed(l net.Listener) {
	bounded, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spare == nil {
		a.keepSpare()
		return
	}
	a.spare.Close()
	a.spare = nil
	// The connection may have gone meanwhile, and Accept must not wait for another one.
	bounded.SetDeadline(time.Now().Add(10 * time.Millisecond))
	if conn, err := l.Accept(); err == nil {
		relay.Reset(conn)
	}
	bounded.SetDeadline(time.Time{})
	a.keepSpare()
}

// close releases the timer and the spare descriptor, when the proxy has ended.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.scarce != nil {
		a.scarce.Stop()
	}
	if a.spare != nil {
		a.spare.Close()
		a.spare = nil
	}
}
