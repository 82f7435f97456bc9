package proxy

import (
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/sock"
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

	mu      sync.Mutex     // guards the rest; held while tell is called
	serving int            // slots in use, at most most
	tenants map[uint64]int // listeners by cgroup; no entry is 0
	cgroups map[uint64]int // slots in use for processes of a cgroup; no entry is 0
	scarce  *time.Timer    // runs after a lack of descriptors; nil: there is none
	full    bool           // as last reported by tell
	crowd   uint64         // as crowded last returned

	spare *os.File // a descriptor that is given up to accept and reset a connection
}

func newAdmission(most int) *admission {
	a := &admission{most: most, tenants: map[uint64]int{}, cgroups: map[uint64]int{}}
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

// serve notes that there is a listener for a cgroup, until end is called.
func (a *admission) serve(cgroup uint64) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tenants[cgroup]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.tenants[cgroup]--; a.tenants[cgroup] == 0 {
			delete(a.tenants, cgroup)
		}
	}
}

// claim has a slot that is taken count as one of a cgroup's, 0 where that is not known. It returns
// false where the cgroup has its share, which is all but an eighth of the slots if there are other
// cgroups: one of them cannot take the proxy from the rest.
func (a *admission) claim(cgroup uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cgroup != 0 && len(a.tenants) > 1 && a.cgroups[cgroup] >= a.most-a.most/8 {
		return false
	}
	a.cgroups[cgroup]++
	return true
}

// disclaim ends a claim.
func (a *admission) disclaim(cgroup uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cgroups[cgroup]--; a.cgroups[cgroup] == 0 {
		delete(a.cgroups, cgroup)
	}
}

// crowded returns the cgroup that has nearly its share, three quarters of the slots, and no longer
// has it below five eighths; 0 if none has. The agent lets its new connections go direct before any
// is reset.
func (a *admission) crowded() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	crowd := uint64(0)
	for cgroup, n := range a.cgroups {
		if len(a.tenants) > 1 && cgroup != 0 && (n >= a.most-a.most/4 || cgroup == a.crowd && n > a.most*5/8) {
			crowd = cgroup
		}
	}
	a.crowd = crowd
	return crowd
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
		sock.Reset(conn)
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
