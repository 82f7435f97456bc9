package shared

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Peer names the process of the proxy at the other end.
type Peer [16]byte

// Stores are a proxy's Stores, by group. A group exists from its first lane on until
// neither a lane nor a link needs it. They are safe for concurrent use; mu is taken before
// a Store's lock.
type Stores struct {
	mu    sync.Mutex // guards the rest
	byID  map[ID]*served
	links map[Peer]int // open links of each peer, whether they share or not
	ended Counts       // of groups that have ended
}

// served is a Store with its lane.
type served struct {
	*Store
	id   ID
	from Peer
	lane net.Conn      // nil: none
	ends chan struct{} // closed when the lane has ended
	soon chan struct{} // signalled when there is something to send; holds one signal
	now  chan struct{} // likewise, for what must not wait
}

const (
	maxStores = 1 << 10
	// sayWithin is how long an acknowledgement may be delayed, so that more goes with it.
	sayWithin = 10 * time.Millisecond
	// laneWithin is how long values are waited for without a lane while the link that
	// refers to them is whole; laneAfterLink applies where it is not, since its sender has
	// ended then, as a rule. lookEvery is how often that is checked.
	laneWithin    = 10 * time.Second
	laneAfterLink = 250 * time.Millisecond
	lookEvery     = 10 * time.Millisecond
)

// NewStores returns Stores without any group.
func NewStores() *Stores { return &Stores{byID: map[ID]*served{}, links: map[Peer]int{}} }

// An Inlet is the receiving end of a link. It is for one goroutine, except for Abort. It
// uses one entry at a time.
type Inlet struct {
	stores *Stores
	from   Peer
	link   uint64
	alive  func() bool
	group  *served // nil until the link's first reference
	number uint64  // of the values in use, if uses
	uses   bool
	abort  chan struct{}
	once   sync.Once
}

// Open returns the Inlet of a link. alive reports whether the link's connection is whole.
func (s *Stores) Open(from Peer, link uint64, alive func() bool) *Inlet {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[from]++
	return &Inlet{stores: s, from: from, link: link, alive: alive, abort: make(chan struct{})}
}

// Abort ends the Inlet's waiting, now and later: its link is about to be reset. Any
// goroutine may call it.
func (i *Inlet) Abort() { i.once.Do(func() { close(i.abort) }) }

// Close records that the link uses nothing any more.
func (i *Inlet) Close() {
	i.Release()
	i.Abort()
	s := i.stores
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[i.from]--; s.links[i.from] == 0 {
		delete(s.links, i.from)
	}
	// A link that has not named its group may have been about to, in any of its sender's.
	for _, g := range s.byID {
		if (g == i.group || i.group == nil && g.from == i.from) && g.leave(i.link) {
			s.remove(g)
		}
	}
}

// remove ends a group that nothing needs. The caller holds s.mu.
func (s *Stores) remove(g *served) {
	if s.byID[g.id] == g {
		delete(s.byID, g.id)
		c := g.Counts()
		c.HeldBytes = 0
		s.ended.Add(c)
		g.close()
	}
}

// Begin joins the link to the group that its first reference names. The group must exist,
// and must be of the same peer: its lane was made before anything could be referred to.
func (i *Inlet) Begin(id ID) error {
	i.stores.mu.Lock()
	defer i.stores.mu.Unlock()
	g := i.stores.byID[id]
	if i.group != nil || g == nil || g.from != i.from {
		return corrupt("a link of a group that is not known, or of two")
	}
	i.group = g
	g.bind(i.link)
	return nil
}

// Take returns the values that a number stands for, unchanged until Release. It blocks
// while they are on their way and there is a lane; without a lane for a while only, since
// it is made again. An error that wraps [ErrLost] says that they cannot come any more.
func (i *Inlet) Take(number uint64) ([]byte, error) {
	i.Release()
	if i.group == nil {
		return nil, corrupt("a reference of a link that has not said of which group it is")
	}
	var detached time.Time
	for {
		values, changed, attached, err := i.group.take(number)
		if err != nil {
			return nil, err
		}
		if values != nil {
			i.number, i.uses = number, true
			return values, nil
		}
		var late <-chan time.Time
		switch {
		case attached:
			detached = time.Time{}
		// The time without a lane begins with the first look that finds none.
		case detached.IsZero():
			detached = time.Now()
			fallthrough
		default:
			if lost(time.Since(detached), i.alive()) {
				return nil, fmt.Errorf("%w: their lane has ended", ErrLost)
			}
			late = time.After(lookEvery)
		}
		select {
		case <-changed:
		case <-late:
		case <-i.abort:
			return nil, fmt.Errorf("%w: the link was reset", ErrLost)
		}
	}
}

// lost reports whether a lane that has been missing for so long will not come back.
func lost(since time.Duration, alive bool) bool {
	return since > laneWithin || !alive && since > laneAfterLink
}

// Release records that what Take returned has been used.
func (i *Inlet) Release() {
	if i.uses {
		i.uses = false
		i.group.used(i.link, i.number)
	}
}

// Serve serves a lane until it ends. Only a proxy that has a link here may make one.
// An error wraps ErrCorrupt and names the fault; the end of the lane is no error. keysOf returns the
// keys of requests to the peer.
func (s *Stores) Serve(ctx context.Context, id ID, from Peer, conn net.Conn, most int, memory Reserver, keysOf KeysOf) error {
	g, ends, err := s.begin(id, from, conn, most, memory)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var saying sync.WaitGroup
	said := make(chan struct{})
	_, err = conn.Write(g.appendStart(nil))
	if err == nil {
		g.attach(true)
		saying.Go(func() { g.say(conn, said) })
		err = g.read(bufio.NewReaderSize(conn, readBuffer), keysOf)
	}
	close(said)
	conn.Close()
	saying.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another lane may have taken its place, which attaches by itself.
	if g.lane == conn {
		g.lane = nil
		g.attach(false)
	}
	close(ends)
	if g.leaveLane() {
		s.remove(g)
	}
	if !errors.Is(err, ErrCorrupt) {
		return nil // it has ended; one with something unread, as at a job's end, is reset
	}
	return err
}

// begin makes conn the lane of its group, which it creates if need be. An earlier lane of
// the group is closed first, and begin waits until its reader has ended: two readers would
// mix their frames.
func (s *Stores) begin(id ID, from Peer, conn net.Conn, most int, memory Reserver) (*served, chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.byID[id]
	switch {
	// A lane takes memory here, so it takes a link to be allowed one.
	case s.links[from] == 0:
		return nil, nil, corrupt("a lane of a proxy that has no link here")
	case g != nil && g.from != from:
		return nil, nil, corrupt("a lane of another proxy's group")
	case g == nil && len(s.byID) >= maxStores:
		return nil, nil, corrupt("%d groups are all that are kept", maxStores)
	case g == nil:
		g = &served{Store: NewStore(most, memory), id: id, from: from, soon: make(chan struct{}, 1), now: make(chan struct{}, 1)}
		g.Store.wake = g.look
		g.grow(firstLimit)
		s.byID[id] = g
	}
	// Counted before the lock is released, so that the group is not removed meanwhile.
	g.joinLane()
	for g.lane != nil { // of a connection that the other end has given up
		old, ends := g.lane, g.ends
		old.Close()
		s.mu.Unlock()
		<-ends
		s.mu.Lock()
	}
	g.lane, g.ends = conn, make(chan struct{})
	return g, g.ends, nil
}

// joinLane and leaveLane count lanes; leaveLane reports whether nothing needs the Store any
// more.
func (s *Store) joinLane() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes++
}

func (s *Store) leaveLane() (unused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes--
	return len(s.links) == 0 && s.lanes == 0
}

// look signals the goroutine that writes to the sender, at once or with the usual delay.
func (g *served) look(now bool) {
	which := g.soon
	if now {
		which = g.now
	}
	select {
	case which <- struct{}{}:
	default:
	}
}

// say sends the sender the Store's acknowledgements and grants, until the lane ends.
func (g *served) say(conn net.Conn, ended <-chan struct{}) {
	var news []byte
	for {
		select {
		case <-ended:
			return
		case <-g.now:
		// Something to say that can wait: acknowledgements of several answers go in
		// one write.
		case <-g.soon:
			select {
			case <-g.now:
			case <-time.After(sayWithin):
			case <-ended:
				return
			}
		}
		if news = g.appendNews(news[:0]); len(news) == 0 {
			continue
		}
		if _, err := conn.Write(news); err != nil {
			conn.Close()
			return
		}
	}
}

// Counts returns the figures so far, ended groups included.
func (s *Stores) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Counts
	c.Add(s.ended)
	for _, g := range s.byID {
		c.Add(g.Counts())
	}
	return c
}
