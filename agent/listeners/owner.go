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
	"github.com/psidecar/psidecar/proxy/handover"
)

const (
	// maxQuestions is how many questions of a proxy are looked into at a time.
	maxQuestions = 64
	// meetWithin is how long a process may be listening before its cgroup is
	// known: processes are found by looking around.
	meetWithin = 2 * time.Second
	// maxStrangers bounds how many sockets are remembered that were waited for.
	maxStrangers = 4096
	// maxBelow bounds how many cgroups below a group are looked through.
	maxBelow = 4096
)

// owners answers one proxy's queries for the cgroup that listens at an address.
type owners struct {
	listeners *Listeners
	conn      *handover.Conn
	busy      chan struct{} // has an entry for each question under way
	ended     <-chan struct{}
}

func (l *Listeners) owners(conn *handover.Conn, ended <-chan struct{}) *owners {
	return &owners{l, conn, make(chan struct{}, maxQuestions), ended}
}

// answer answers one query.
func (o *owners) answer(m handover.Message) error {
	return o.later(m, func(answer *handover.Message) error {
		group, found, err := o.listeners.owner(m.Netns, m.Address, o.ended)
		answer.Cgroup, answer.Found = uint64(group), found
		return err
	})
}

// heardWithin is how long a signal that has come may take to be heard of.
const heardWithin = 20 * time.Millisecond

var errEnds = errors.New("the agent is about to end, too")

// stays answers whether this agent stays. Where it says so, and is to end before that
// proxy has, it waits for the proxy after it (kept.settle).
func (o *owners) stays(m handover.Message) error {
	return o.later(m, func(*handover.Message) error {
		o.listeners.kept.rely(o.conn, true) // before it is looked
		select {
		case <-o.listeners.leaving:
			o.listeners.kept.rely(o.conn, false)
			return errEnds
		case <-time.After(heardWithin):
			return nil
		}
	})
}

// later answers a question in a goroutine of its own, of which there are not too many.
func (o *owners) later(m handover.Message, find func(answer *handover.Message) error) error {
	select {
	case o.busy <- struct{}{}:
	default:
		return o.conn.Send(handover.Message{Kind: handover.Result, Sequence: m.Sequence, Error: fmt.Sprintf("%d questions are under way already", maxQuestions)}, nil)
	}
	o.listeners.attended.Go(func() {
		defer func() { <-o.busy }()
		answer := handover.Message{Kind: handover.Result, Sequence: m.Sequence}
		if err := find(&answer); err != nil {
			answer.Error = err.Error()
		}
		if err := o.conn.Send(answer, nil); err != nil {
			o.listeners.log.Debug("answering a proxy", "question", m.Kind, "error", err)
		}
	})
	return nil
}

// owner returns the group one of whose processes listens at an address, 0 where
// none does; found where anybody does.
func (l *Listeners) owner(netns uint64, at netip.AddrPort, ended <-chan struct{}) (group redirect.GroupID, found bool, err error) {
	for {
		l.mu.Lock()
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

// strangers remembers since when it is asked for sockets whose processes belong
// to no job that is known. A process is waited for to be found once, not with
// each connection that a job makes to some other service.
type strangers struct {
	mu    sync.Mutex           // guards asked
	asked map[uint64]time.Time // by the socket's cookie; at most maxStrangers
}

// since returns when it was first asked for the one of the sockets that was
// asked for last.
func (s *strangers) since(sockets []discover.ListeningSocket, now time.Time) (since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range sockets {
		first, ok := s.asked[l.Cookie]
		if !ok {
			if len(s.asked) >= maxStrangers {
				clear(s.asked) // they are waited for once more
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

// listening returns the sockets that take connections to an address: those
// bound to it, or to every address where there are none.
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

// within runs f in the network namespace of a process that is served.
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

// groupOf returns the group in or below which the cgroups of all sockets are, 0
// where there is none.
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

var errAll = errors.New("all are found")

// below reports whether the cgroups are all at, or below, the one at a path.
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

// tellsOwners reports whether the kernel shows the cgroups of listening sockets.
func tellsOwners() error {
	_, err := discover.ListeningSockets(0)
	return err
}
