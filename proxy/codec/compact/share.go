package compact

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/relay"
)

// scope names the links that may refer to each other's values: those of one job of this
// host to one process of the other proxy. Values of another job must not be visible even by
// their equality.
type scope struct {
	other relay.Instance
	job   string
}

// group is a scope's sending end with the number of open link ends in it.
type group struct {
	*shared.Group
	ends int
}

// sharesOf and sharesInAll say which part of the memory of all connections one group may
// keep, and all groups and stores together: 1/sharesOf and 1/sharesInAll.
const (
	sharesOf    = 8
	sharesInAll = 4
)

// share joins a link's ends to sharing, if they may. Answers go over links that their
// sender dialed, so dialed links refer to values (Sender), and accepted links resolve the
// references (Receiver). The caller calls leave once for each end.
func (c *Codec) share(l relay.Link, other relay.Instance, most int, s *Sender, r *Receiver) (leave func(), err error) {
	leave = func() {}
	if most == 0 {
		return leave, nil
	}
	if !l.Dialed {
		alive := l.Alive
		if alive == nil {
			alive = func() bool { return true }
		}
		r.inlet = c.stores.Open(shared.Peer(other), l.ID, alive)
		c.asks(other, l.Destination, 1)
		return sync.OnceFunc(func() { c.asks(other, l.Destination, -1) }), nil
	}
	// A link within the host crosses no network: sharing would only copy.
	onHost := l.Dialer == l.Acceptor || l.Client.Addr().Unmap() == l.Destination.Addr().Unmap()
	if l.Scope == "" || l.Lane == nil || onHost {
		return leave, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := scope{other, l.Scope}
	g := c.groups[of]
	if g == nil {
		made, err := shared.NewGroup(c.mostShared(most, l.Memory), c.reserver(l.Memory), func(ctx context.Context, id shared.ID) (net.Conn, error) {
			return l.Lane(ctx, id[:])
		})
		if err != nil {
			return nil, err
		}
		made.SetTrials(c.limits.ShareTrials)
		made.SetPerByte(l.PerByte)
		if c.limits.ShareLeast > 0 && s.peer.limits.SharedForms >= sharedByKey {
			made.SetLeast(c.limits.ShareLeast)
		}
		g = &group{Group: made}
		c.groups[of] = g
	}
	// One for the Sender and one for the Receiver of the link, which end at different
	// times.
	g.ends += 2
	s.group, s.outlet = g.ID, g.Join(l.ID, l.Destination)
	c.tell(other)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if g.ends--; g.ends > 0 {
			return
		}
		delete(c.groups, of)
		// The group's counts outlive it; what it held does not.
		counts := g.Counts()
		counts.HeldBytes = 0
		c.past.Add(counts)
		g.Close()
	}, nil
}

// tell informs the groups of another proxy whether several of its processes are about
// to be answered: those that connect to one process of this host. Workers connect to
// servers and not to each other, so these are workers that pull from one server. The
// caller holds c.mu.
func (c *Codec) tell(other relay.Instance) {
	several := false
	if k := c.peers[other]; k != nil {
		for _, links := range k.asking {
			several = several || links > 1
		}
	}
	for of, g := range c.groups {
		if of.other == other {
			g.Expect(several)
		}
	}
}

// asks counts a link from another proxy to a process of this host or, with n -1, its end.
func (c *Codec) asks(other relay.Instance, to netip.AddrPort, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.peers[other]
	if k == nil {
		return
	}
	if k.asking[to] += n; k.asking[to] == 0 {
		delete(k.asking, to)
	}
	c.tell(other)
}

// mostShared is how many bytes one group may keep.
func (c *Codec) mostShared(most int, m *relay.Memory) int {
	if m == nil {
		return most
	}
	return min(most, int(m.Limit()/sharesOf))
}

// bounded is the part of the memory of all connections that groups and stores may have. Its
// lock is taken while theirs are held and must be the last.
type bounded struct {
	memory *relay.Memory
	codec  *Codec
	mu     *sync.Mutex
}

func (c *Codec) reserver(m *relay.Memory) shared.Reserver {
	if m == nil {
		return nil
	}
	return bounded{m, c, &c.keeping}
}

// TryReserve implements [shared.Reserver].
func (b bounded) TryReserve(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.codec.kept+int64(n) > b.memory.Limit()/sharesInAll || !b.memory.TryReserve(n) {
		return false
	}
	b.codec.kept += int64(n)
	return true
}

// Unreserve implements [shared.Reserver].
func (b bounded) Unreserve(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.codec.kept -= int64(n)
	b.memory.Unreserve(n)
}

// ServeLane serves a lane, over which another proxy sends what its links to this one refer
// to, until it ends. id is the group's name, which the lane's hello has. It blocks.
func (c *Codec) ServeLane(ctx context.Context, from relay.Instance, id []byte, conn net.Conn, m *relay.Memory) error {
	var group shared.ID
	if c.limits.SharedBytes == 0 || len(id) != len(group) {
		return fmt.Errorf("%w: a lane where nothing is shared, or of a name of %d bytes", ErrCorrupt, len(id))
	}
	copy(group[:], id)
	return c.stores.Serve(ctx, group, shared.Peer(from), conn, c.mostShared(c.limits.SharedBytes, m), c.reserver(m), func(link, number uint64) []byte {
		c.mu.Lock()
		k := c.peers[from]
		c.mu.Unlock()
		if k == nil {
			return nil
		}
		return k.peer.keysOf(request{link, number})
	})
}

// Shared returns what has been shared since the start, groups that have ended included.
func (c *Codec) Shared() shared.Counts {
	counts := c.stores.Counts()
	c.mu.Lock()
	defer c.mu.Unlock()
	counts.Add(c.past)
	for _, g := range c.groups {
		counts.Add(g.Counts())
	}
	return counts
}

// subjectOf returns what an answer is about, of a link with an outlet; false if the message is no
// answer with values to share.
func (s *Sender) subjectOf(m *pslite.Message, bytes int) (subject shared.Subject, ok bool) {
	keys := m.Keys()
	if m.Meta.Request || !m.Meta.Data() || keys.Len() == 0 || bytes < s.outlet.Least() {
		return subject, false
	}
	return shared.Subject{App: m.Meta.AppID, First: keys.At(0), Last: keys.At(keys.Len() - 1), Keys: keys.Len(), Bytes: bytes}, true
}

// wantsShared reports whether a frame too large for the relay to hold by itself is to be
// held, so that it can be shared.
func (s *Sender) wantsShared(m *pslite.Message, shown *relay.Message) bool {
	if s.outlet == nil || shown.Next > uint64(s.peer.limits.SharedBytes) || len(m.Data) != 1 {
		return false
	}
	subject, ok := s.subjectOf(m, int(shown.Next))
	return ok && s.outlet.Wants(subject)
}

// elsewhere records how a message's values left that are not on the link.
type elsewhere struct {
	isShared bool
	number   uint64
	lane     int // bytes that they took on the lane
	spared   int // bytes that went nowhere, since the other end had them
	// Values that were packed for the lane but did not go there are used for the link,
	// rather than packed again:
	isPacked bool
	form     byte
	packed   []byte
	some     []byte // room for packing some of the values
	// The request that the message answers, once answered was called.
	isNamed, isAnswer bool
	answers           request
}

// refer shares the values of an answer if it can; s.away records how. It may block, see
// [shared.Outlet.Refer].
func (s *Sender) refer(m *pslite.Message, shown *relay.Message) bool {
	s.away.isShared, s.away.isPacked, s.away.lane, s.away.spared = false, false, 0, 0
	if s.outlet == nil || shown.Rest || len(m.Data) < 2 {
		return false
	}
	values := m.Data[1]
	subject, ok := s.subjectOf(m, len(values))
	if !ok {
		return false
	}
	r, ok := s.outlet.Refer(subject, values, func([]byte) (byte, []byte) { return s.packAway(m) }, s.byKeys(m))
	if ok {
		s.away.isShared, s.away.number, s.away.lane, s.away.spared = true, r.Number, r.Lane, r.Spared
		s.values.settle(true)
	}
	return ok
}

// byKeys returns the keys of an answer if the other end has them; nil if not. An answer that is shown
// to it is encoded: it has been named.
func (s *Sender) byKeys(m *pslite.Message) *shared.ByKeys {
	keys := m.Data[0]
	if s.peer.limits.SharedForms < sharedByKey || len(m.Data) != 2 || len(keys) < fewestKeys {
		return nil
	}
	of, ok := s.answered(m, keys)
	if !ok {
		return nil
	}
	return &shared.ByKeys{Keys: keys, Link: of.link, Request: of.number, Pack: func(values []byte) (byte, []byte) {
		a := &s.away
		var form byte
		a.some, form = s.packSome(a.some[:0], values, widthOf(m, m.Data[1]))
		return formOnLane(form), a.some
	}}
}

// packAway packs values for the lane, once for each message.
func (s *Sender) packAway(m *pslite.Message) (form byte, packed []byte) {
	a := &s.away
	if !a.isPacked {
		a.isPacked = true
		a.packed, a.form = s.packValues(a.packed[:0], m, s.headLimit-headSlack)
	}
	return formOnLane(a.form), a.packed
}

// formOnLane returns what the flag of packed values is called on a lane.
func formOnLane(flag byte) byte {
	switch flag {
	case packedValues:
		return shared.Words
	case sparseValues:
		return shared.Sparse
	case planeValues:
		return shared.Planes
	}
	return shared.Plain
}

// appendValues appends a message's values, as a reference or packed, unless they are to
// follow as they are. form is the flag that says which, 0 if nothing was appended.
func (s *Sender) appendValues(dst []byte, m *pslite.Message, room int) (_ []byte, form byte) {
	a := &s.away
	switch {
	case a.isShared:
		if !s.named {
			s.named = true
			dst = append(dst, s.group[:]...)
		}
		return binary.AppendUvarint(dst, a.number), sharedValues
	case a.isPacked && a.form == 0:
		return dst, 0
	case a.isPacked && len(a.packed)+headSlack <= room:
		dst = append(dst, a.packed...)
		return dst, a.form
	}
	return s.packValues(dst, m, room)
}

// Elsewhere implements [relay.Sharer].
func (s *Sender) Elsewhere() (lane, spared int) {
	lane, spared = s.away.lane, s.away.spared
	s.away.lane, s.away.spared = 0, 0
	return lane, spared
}

// AnswersSeveral reports whether several processes of the other host are answered, so that
// they share values.
func (s *Sender) AnswersSeveral() bool { return s.outlet != nil && s.outlet.AnswersSeveral() }

// MayWait implements [relay.Sharer].
func (s *Sender) MayWait(bytes int) bool { return s.outlet != nil && s.outlet.MayWait(bytes) }

// Abort implements [relay.Aborter].
func (s *Sender) Abort() {
	if s.outlet != nil {
		s.outlet.Abort()
	}
}

// readShared returns the values that a head refers to. It blocks while they are on their
// way over the lane.
func (r *Receiver) readShared(src []byte) (values, rest []byte, err error) {
	if r.inlet == nil {
		return nil, nil, fmt.Errorf("%w: shared values, which was not agreed on", ErrCorrupt)
	}
	// The first reference on a link brings the group's name. From then on the link
	// belongs to that group.
	if !r.named {
		var group shared.ID
		if len(src) < len(group) {
			return nil, nil, fmt.Errorf("%w: the name of a group in %d bytes", ErrCorrupt, len(src))
		}
		copy(group[:], src)
		if err := r.inlet.Begin(group); err != nil {
			return nil, nil, err
		}
		r.named, src = true, src[len(group):]
	}
	number, src, err := uvarint(src)
	if err != nil {
		return nil, nil, err
	}
	values, err = r.inlet.Take(number)
	// The link did nothing wrong: what it refers to is gone. The job's connection
	// breaks with it, and is made again.
	if errors.Is(err, shared.ErrLost) {
		return nil, nil, fmt.Errorf("%w: %w", relay.ErrLinkLost, err)
	}
	return values, src, err
}

// Waits implements [relay.Waiter].
func (r *Receiver) Waits(head []byte) bool { return len(head) > 0 && head[0]&sharedValues != 0 }

// Abort implements [relay.Aborter].
func (r *Receiver) Abort() {
	r.loan.Abort()
	if r.inlet != nil {
		r.inlet.Abort()
	}
}
