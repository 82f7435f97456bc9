package proxy

import (
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/relay"
)

// A connection takes two sockets, a page where it can outlive the proxy, and, where
// it is spliced, a pipe for each direction; everything else uses the descriptors
// that are set apart.
const (
	descriptorsEach  = 7
	descriptorsApart = 32
)

// scarceFor is how long the proxy takes no connections after it ran out of
// descriptors.
const scarceFor = time.Second

// affordable returns how many connections the limit of open files allows, at
// least one and at most as many as wanted, beside others that take one each.
func affordable(wanted, others int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<31 {
		return wanted
	}
	return max(1, min(wanted, (int(limit.Cur)-descriptorsApart-others)/descriptorsEach))
}

// admission bounds how many connections are carried at a time, and tells when
// no more are taken: those that the job makes meanwhile can go direct.
type admission struct {
	most int
	tell func(full bool) // does not block; may be nil

	mu      sync.Mutex  // guards the rest; held while tell is called
	serving int         // at most most
	scarce  *time.Timer // runs while descriptors are short
	full    bool        // as logged last

	spare *os.File // kept to have a descriptor when there are none
}

func newAdmission(most int) *admission {
	a := &admission{most: most}
	a.keepSpare()
	return a
}

// enter takes a connection, or not.
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

func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serving--
	a.judge()
}

// ranShort notes that there was no descriptor left.
func (a *admission) ranShort() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.scarce != nil {
		a.scarce.Reset(scarceFor)
		return
	}
	a.scarce = time.AfterFunc(scarceFor, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.scarce = nil
		a.judge()
	})
	a.judge()
}

// judge tells whether there is room, with some slack before it says so again.
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

func (a *admission) keepSpare() {
	if a.spare == nil {
		a.spare, _ = os.Open(os.DevNull) // without one nothing is shed
	}
}

// shed resets the connection that waits at a listener, which could not be
// accepted for want of a descriptor: it would wait for ever, and its client
// with it.
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
	bounded.SetDeadline(time.Now().Add(10 * time.Millisecond))
	if conn, err := l.Accept(); err == nil {
		relay.Reset(conn)
	}
	bounded.SetDeadline(time.Time{})
	a.keepSpare()
}

// close ends what admission keeps, when the proxy has ended.
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
