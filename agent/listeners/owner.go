package listeners

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
)

const (
	// maxQuestions bounds the queries of one proxy that are answered at the same time.
	maxQuestions = 64
	// meetWithin is how long a query waits for an unknown listener's process to be discovered.
	// Discovery scans /proc, so a process may listen before the agent knows it.
	meetWithin = 2 * time.Second
	// maxStrangers bounds the sockets that are remembered as having been waited for.
	maxStrangers = 4096
	// maxBelow bounds the cgroups that are searched below a group.
	maxBelow = 4096
)

// owners answers one proxy's queries: which group listens at an address (handover.Owner), and
// whether this agent stays (handover.Stays). A proxy asks for the owner before it lets another
// host's proxy connect to a port, so that links reach jobs and nothing else on this host.
type owners struct {
	listeners *Listeners
	conn      *handover.Conn
	busy      chan struct{}   // a semaphore: one entry for each query in progress
	ended     <-chan struct{} // closed when the proxy hangs up
}

func (l *Listeners) owners(conn *handover.Conn, ended <-chan struct{}) *owners {
	return &owners{l, conn, make(chan struct{}, maxQuestions), ended}
}

// answer answers an Owner query. It returns at once; an error means that the proxy cannot be
// written to.
func (o *owners) answer(m handover.Message) error {
	return o.later(m, func(answer *handover.Message) error {
		group, found, err := o.listeners.owner(m.Netns, m.Address, o.ended)
		answer.Cgroup, answer.Found = uint64(group), found
		return err
	})
}

// heardWithin is how long a termination signal that has been sent may take to close
// Listeners.leaving. A service manager signals the proxy and the agent together, and the
// proxy's query can overtake the agent's own signal.
const heardWithin = 20 * time.Millisecond

// errEnds is the answer to a Stays query of a proxy while the agent itself ends.
var errEnds = errors.New("the agent is shutting down too")

// stays answers whether this agent will outlive the proxy that asks. After a yes, the proxy may
// leave its connections here; if the agent is told to end before the next proxy has them, it
// waits (kept.awaitHandover).
func (o *owners) stays(m handover.Message) error {
	return o.later(m, func(*handover.Message) error {
		o.listeners.kept.rely(o.conn, true) // before the check: an agent that ends right after it must see the promise
		select {
		case <-o.listeners.leaving:
			o.listeners.kept.rely(o.conn, false)
			return errEnds
		case <-time.After(heardWithin):
			return nil
		}
	})
}

// later runs find in a goroutine and sends its answer. With maxQuestions in progress it answers
// with an error instead, so a proxy cannot make the agent start goroutines without bound. The
// reader of the proxy's messages is never blocked by a query.
func (o *owners) later(m handover.Message, find func(answer *handover.Message) error) error {
	select {
	case o.busy <- struct{}{}:
	default:
		return o.conn.Send(handover.Message{Kind: handover.Result, Sequence: m.Sequence, Error: fmt.Sprintf("%d lookups are already in flight", maxQuestions)}, nil)
	}
	o.listeners.attended.Go(func() {
		defer func() { <-o.busy }()
		answer := handover.Message{Kind: handover.Result, Sequence: m.Sequence}
		if err := find(&answer); err != nil {
			answer.Error = err.Error()
		}
		if err := o.conn.Send(answer, nil); err != nil {
			o.listeners.log.Debug("responding to a proxy", "question", m.Kind, "error", err)
		}
	})
	return nil
}

// owner returns the group whose process listens at an address of a network namespace. group is
// 0 if the listener belongs to no group, found is false if nothing listens there. It blocks for
// up to meetWithin, or until ended is closed, while the listener is unknown: each Reconcile may
// bring its process.
func (l *Listeners) owner(netns uint64, at netip.AddrPort, ended <-chan struct{}) (group redirect.GroupID, found bool, err error) {
	for {
		l.mu.Lock()
		// Taken before the sockets are listed, so that a Reconcile in between is not missed.
		news := l.news
		l.mu.Unlock()
		sockets, err := l.listening(netns, at)
		if err != nil || len(sockets) == 0 {
			return 0, false, err
		}
		if group = l.groupOf(sockets); group != 0 {
			return group, true, nil
		}
		left := time.Until(l.strangers.since(sockets, time.Now()).Add(meetWithin))
		if left <= 0 {
			return 0, true, nil
		}
		late := time.NewTimer(left)
		select {
		case <-news:
			late.Stop()
		case <-late.C:
		case <-ended:
			late.Stop()
			return 0, true, nil
		}
	}
}

// strangers remembers when a query first met each socket that belongs to no known group. A
// process is waited for once, when it is new, and not again for each connection that a job
// makes to some other service.
type strangers struct {
	mu    sync.Mutex           // guards asked
	asked map[uint64]time.Time // by the socket's cookie; at most maxStrangers
}

// since returns the time at which the newest of the sockets was first asked for, which is now
// for a socket that was never seen.
func (s *strangers) since(sockets []discover.ListeningSocket, now time.Time) (since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range sockets {
		first, ok := s.asked[l.Cookie]
		if !ok {
			if len(s.asked) >= maxStrangers {
				clear(s.asked) // the rest is waited for once more, which costs time but no correctness
			}
			if s.asked == nil {
				s.asked = map[uint64]time.Time{}
			}
			first = now
			s.asked[l.Cookie] = first
		}
		if first.After(since) {
			since = first
		}
	}
	return since
}

// listening returns the sockets that would take a connection to an address: those bound to it,
// else those bound to the wildcard address, as the kernel decides. Several may share an address
// by SO_REUSEPORT.
func (l *Listeners) listening(netns uint64, at netip.AddrPort) (sockets []discover.ListeningSocket, err error) {
	var all []discover.ListeningSocket
	look := func() error {
		all, err = discover.ListeningSockets(at.Port())
		return err
	}
	if netns == l.home {
		err = look()
	} else {
		err = l.within(netns, look)
	}
	if err != nil {
		return nil, err
	}
	var others []discover.ListeningSocket
	for _, s := range all {
		switch {
		// An exact binding takes precedence over the wildcard one, in the kernel as well.
		case s.Address.Addr() == at.Addr().Unmap():
			sockets = append(sockets, s)
		case s.Address.Addr().IsUnspecified():
			others = append(others, s)
		}
	}
	if len(sockets) == 0 {
		sockets = others
	}
	return sockets, nil
}

// within runs f in a network namespace given by its inode. A namespace can only be entered by
// the file of a process in it, so it tries the namespaces of the processes that are served,
// each once.
func (l *Listeners) within(netns uint64, f func() error) error {
	l.mu.Lock()
	wanted := slices.Clone(l.wanted)
	l.mu.Unlock()
	tried := map[string]bool{}
	for _, p := range wanted {
		if tried[p.Netns] {
			continue
		}
		tried[p.Netns] = true
		ns, inode, err := openNetns(p.Netns)
		if err != nil {
			continue // it has ended
		}
		if inode == netns {
			defer ns.Close()
			return inNetns(ns, f)
		}
		ns.Close()
	}
	return fmt.Errorf("no process of a job is in network namespace %d", netns)
}

// groupOf returns the group whose cgroup, or a cgroup below it, holds every one of the sockets;
// 0 if there is none. All must match: of sockets that share a port by SO_REUSEPORT, the kernel
// may pick any. It may walk the cgroup tree while it holds l.mu, bounded by maxBelow for each
// group.
func (l *Listeners) groupOf(sockets []discover.ListeningSocket) redirect.GroupID {
	var cgroups []uint64
	for _, s := range sockets {
		cgroups = append(cgroups, s.Cgroup)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for path, id := range l.groups {
		if !slices.ContainsFunc(cgroups, func(c uint64) bool { return c != uint64(id) }) || below(path, cgroups) {
			return id
		}
	}
	return 0
}

// errAll ends the walk of below early.
var errAll = errors.New("all are found")

// below reports whether each of the cgroups, given by kernel number, is the one at path or
// below it. More than maxBelow cgroups there count as not found.
func below(path string, cgroups []uint64) bool {
	left := map[uint64]bool{}
	for _, c := range cgroups {
		left[c] = true
	}
	seen := 0
	err := filepath.WalkDir(path, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && dir == path:
			return err
		case err != nil:
			return nil // it has gone
		case !d.IsDir():
			return nil
		}
		// Any process may create cgroups below its own; the walk must not take for ever.
		if seen++; seen > maxBelow {
			return fs.ErrInvalid
		}
		if id, err := redirect.ID(dir); err == nil {
			delete(left, uint64(id))
		}
		if len(left) == 0 {
			return errAll
		}
		return nil
	})
	return errors.Is(err, errAll)
}

// tellsOwners returns nil if the kernel shows the cgroups of listening sockets. Port 0 is no
// filter to the kernel: it lists every listening socket of this namespace, and the first one
// without a cgroup is an error.
func tellsOwners() error {
	_, err := discover.ListeningSockets(0)
	return err
}
